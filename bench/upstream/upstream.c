/* A fast engine for bench/router.py: epoll, one thread, keep-alive, answers prepared in advance.
 *
 * upstream FIRST_PORT COUNT   serves on FIRST_PORT, FIRST_PORT + 1, … (one process each)
 * What it answers is set, process by process, with GET /answer/unary, /answer/burst (64 events at once) or /answer/paced
 * (64 events, 5 ms apart), so that no header or field has to pass through the router under test.
 * GET /v1/models names the model, any other GET: {}
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 64
#define PACE_NS 5000000L
#define MAX_FD 4096
#define READ_MAX (1 << 20)

struct connection {
    char *in;
    size_t have, need; /* need: bytes of the whole request, 0 until its head is there */
    int sent;          /* events of a paced stream, -1 when none runs */
    int closes;
    struct timespec due;
};

static struct connection connections[MAX_FD];
static char mode = 'u';
static int timer, paced; /* the timer runs while there are paced streams */
static char unary[8192], chunk[512], head[256], tail[512];
static size_t unary_size, chunk_size, head_size, tail_size;
static const char models[] = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 41\r\n\r\n"
                             "{\"object\":\"list\",\"data\":[{\"id\":\"bench\"}]}";
static const char nothing[] = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
static char burst[65536];
static size_t burst_size;

static size_t chunked(char *to, const char *text) {
    return (size_t)sprintf(to, "%zx\r\n%s\r\n", strlen(text), text);
}

static void prepare(void) {
    char body[6000], text[3800];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    const char *usage = "\"usage\":{\"prompt_tokens\":1024,\"completion_tokens\":64,\"total_tokens\":1088,"
                        "\"prompt_tokens_details\":{\"cached_tokens\":1008}}";
    int size = sprintf(body, "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"bench\",\"choices\":["
                             "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"%s\"},\"finish_reason\":\"length\"}],%s}", text, usage);
    unary_size = (size_t)sprintf(unary, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", size, body);
    head_size = (size_t)sprintf(head, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
    chunk_size = chunked(chunk, "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench\","
                                "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    char last[512];
    sprintf(last, "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench\","
                  "\"choices\":[],%s}\n\n", usage);
    tail_size = chunked(tail, last);
    tail_size += chunked(tail + tail_size, "data: [DONE]\n\n");
    tail_size += (size_t)sprintf(tail + tail_size, "0\r\n\r\n");
    memcpy(burst, head, head_size);
    burst_size = head_size;
    for (int i = 0; i < EVENTS; i++, burst_size += chunk_size) memcpy(burst + burst_size, chunk, chunk_size);
    memcpy(burst + burst_size, tail, tail_size);
    burst_size += tail_size;
}

static void pace(int change) {
    long every_ns = (paced += change) ? 500000L : 0;
    struct itimerspec every = {{0, every_ns}, {0, every_ns}};
    timerfd_settime(timer, 0, &every, 0);
}

static void forget(int fd) {
    if (connections[fd].sent >= 0) pace(-1);
    free(connections[fd].in);
    memset(&connections[fd], 0, sizeof connections[fd]);
    connections[fd].sent = -1;
    close(fd);
}

static int put(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue; /* loopback: the reader is about to read */
        if (n <= 0) return -1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

static int answer(int fd) {
    struct connection *c = &connections[fd];
    int post = c->in[0] == 'P';
    if (!strncmp(c->in, "GET /answer/", 12)) mode = c->in[12];
    c->have = c->need = 0;
    if (!strncmp(c->in, "GET /v1/models", 14)) return put(fd, models, sizeof models - 1);
    if (!post) return put(fd, nothing, sizeof nothing - 1);
    if (mode == 'b') return put(fd, burst, burst_size);
    if (mode != 'p') return put(fd, unary, unary_size);
    c->sent = 0;
    pace(+1);
    clock_gettime(CLOCK_MONOTONIC, &c->due);
    return put(fd, head, head_size);
}

static int take(int fd) {
    struct connection *c = &connections[fd];
    if (!c->in) c->in = malloc(READ_MAX);
    for (;;) {
        ssize_t n = read(fd, c->in + c->have, READ_MAX - c->have);
        if (n < 0 && errno == EAGAIN) return 0;
        if (n <= 0) return -1;
        c->have += (size_t)n;
        if (!c->need) {
            char *end = memmem(c->in, c->have, "\r\n\r\n", 4);
            if (!end) continue;
            c->need = (size_t)(end - c->in) + 4;
            *end = 0;
            char *length = strcasestr(c->in, "\ncontent-length:");
            *end = '\r';
            c->need += length ? strtoul(length + 16, 0, 10) : 0;
        }
        if (c->have >= c->need && answer(fd)) return -1;
    }
}

static void step(struct timespec now) {
    for (int fd = 0; fd < MAX_FD; fd++) {
        struct connection *c = &connections[fd];
        while (c->sent >= 0 && (now.tv_sec > c->due.tv_sec || (now.tv_sec == c->due.tv_sec && now.tv_nsec >= c->due.tv_nsec))) {
            int over = c->sent == EVENTS;
            if (put(fd, over ? tail : chunk, over ? tail_size : chunk_size)) {
                forget(fd);
                break;
            }
            c->sent = over ? -1 : c->sent + 1;
            if (over) pace(-1);
            c->due.tv_nsec += PACE_NS;
            if (c->due.tv_nsec >= 1000000000L) c->due.tv_nsec -= 1000000000L, c->due.tv_sec++;
        }
    }
}

static void serve(int port) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), queue = epoll_create1(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1024)) perror("upstream"), exit(1);
    for (int fd = 0; fd < MAX_FD; fd++) connections[fd].sent = -1;
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event ready[256], event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(queue, EPOLL_CTL_ADD, listener, &event);
    event.data.fd = timer;
    epoll_ctl(queue, EPOLL_CTL_ADD, timer, &event);
    for (;;) {
        int n = epoll_wait(queue, ready, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) {
                while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
                    if (fd >= MAX_FD) { close(fd); continue; }
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    event.data.fd = fd;
                    epoll_ctl(queue, EPOLL_CTL_ADD, fd, &event);
                }
            } else if (fd == timer) {
                unsigned long long ticks;
                struct timespec now;
                if (read(timer, &ticks, sizeof ticks) > 0) clock_gettime(CLOCK_MONOTONIC, &now), step(now);
            } else if (take(fd)) {
                forget(fd);
            }
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: upstream FIRST_PORT COUNT\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    prepare();
    int first = atoi(argv[1]), count = atoi(argv[2]);
    for (int i = 1; i < count; i++) {
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* the others go with the first */
            serve(first + i);
        }
    }
    serve(first);
}
