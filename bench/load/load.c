/* The clients of bench/router.py: one thread, epoll, each connection asks again as soon as it has its whole answer.
 *
 * load FILE SESSIONS BASE STEP TURNS GENERATION CONNECTIONS SECONDS PORT...
 *
 * FILE holds SESSIONS bodies of BASE + STEP * (TURNS - 1) bytes each. A connection plays its share of the sessions turn
 * by turn: the body of turn k is the first BASE + STEP * k bytes and "]}", so a prompt begins with the whole of the one
 * before it. After the last turn the session starts anew: every "g000000" in its body becomes the next generation.
 * Prints one line of JSON: counts, seconds, and percentiles of the first byte of the body and of the whole answer, in ms.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 1024
#define MAX_TIMES (1 << 22)
#define MARKS 4
#define DIGITS 6

struct session {
    char *body, *marks[MARKS];
    int marked, turn, generation;
};

struct connection {
    int fd, port, first, session; /* its sessions: first, first + connections, … */
    char head[8192], tail[5];
    size_t have, left; /* bytes of the head so far; bytes of the body still to come */
    int in_body, chunked, began;
    struct iovec out[3];
    int out_from;
    double asked_at;
};

static struct session *sessions;
static struct connection connections[MAX_CONNECTIONS];
static float first_ms[MAX_TIMES], whole_ms[MAX_TIMES];
static size_t firsts, wholes, failed;
static int session_count, base, step, turns, connection_count, queue, running;
static double ends_at;
static char in[1 << 18];

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static void mark(struct session *s) {
    char number[16];
    snprintf(number, sizeof number, "%06u", (unsigned)s->generation % 1000000u);
    for (int i = 0; i < s->marked; i++) memcpy(s->marks[i], number, DIGITS);
}

static void load_sessions(const char *path, int generation) {
    size_t size = (size_t)(base + step * (turns - 1));
    FILE *file = fopen(path, "rb");
    sessions = calloc((size_t)session_count, sizeof *sessions);
    for (int i = 0; i < session_count; i++) {
        struct session *s = &sessions[i];
        s->body = malloc(size + 1);
        if (!file || fread(s->body, 1, size, file) != size) fprintf(stderr, "load: %s is too short\n", path), exit(1);
        s->body[size] = 0;
        for (char *at = s->body; s->marked < MARKS && (at = strstr(at, "g000000")); at++) s->marks[s->marked++] = at + 1;
        s->turn = i % turns; /* not all at the same length */
        s->generation = generation;
        mark(s);
    }
    fclose(file);
}

static void watch(struct connection *c, int op, unsigned int events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    epoll_ctl(queue, op, c->fd, &event);
}

static void dial(struct connection *c) {
    int one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&at, sizeof at)) perror("load: connect"), exit(1);
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

static int put(struct connection *c) {
    while (c->out_from < 3) {
        struct msghdr message = {.msg_iov = c->out + c->out_from, .msg_iovlen = (size_t)(3 - c->out_from)};
        ssize_t n = sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) return watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT), 0;
        if (n < 0) return -1;
        while (c->out_from < 3 && (size_t)n >= c->out[c->out_from].iov_len) n -= (ssize_t)c->out[c->out_from++].iov_len;
        if (n) c->out[c->out_from].iov_base = (char *)c->out[c->out_from].iov_base + n, c->out[c->out_from].iov_len -= (size_t)n;
    }
    return 0;
}

static int ask(struct connection *c) {
    static char heads[MAX_CONNECTIONS][256];
    struct session *s = &sessions[c->session];
    size_t size = (size_t)(base + step * s->turn);
    char *head = heads[c - connections];
    int length = snprintf(head, 256,
                          "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                          "authorization: Bearer x\r\nuser-agent: bench\r\ncontent-length: %zu\r\n\r\n",
                          size + 2);
    c->out[0] = (struct iovec){head, (size_t)length};
    c->out[1] = (struct iovec){s->body, size};
    c->out[2] = (struct iovec){"]}", 2};
    c->out_from = 0;
    c->have = c->left = 0;
    c->in_body = c->chunked = c->began = 0;
    memset(c->tail, 0, sizeof c->tail);
    c->asked_at = now();
    return put(c);
}

/* The whole head is in c->head: what follows it has begun. */
static void understand(struct connection *c) {
    if (strncmp(c->head, "HTTP/1.1 200", 12)) {
        if (!failed++) fprintf(stderr, "load: first failure: %.400s\n", c->head);
    }
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    c->chunked = !length;
    c->left = length ? strtoul(length + 17, 0, 10) : 0;
    c->in_body = 1;
}

static int over(struct connection *c, const char *data, size_t size) {
    if (size && !c->began) c->began = 1, first_ms[firsts++ % MAX_TIMES] = (float)((now() - c->asked_at) * 1e3);
    if (!c->chunked) return (c->left -= size < c->left ? size : c->left) == 0;
    if (size >= 5) memcpy(c->tail, data + size - 5, 5);
    else memmove(c->tail, c->tail + size, 5 - size), memcpy(c->tail + 5 - size, data, size);
    return !memcmp(c->tail, "0\r\n\r\n", 5);
}

/* The session has had its answer; the next one's turn. */
static void advance(struct connection *c) {
    struct session *s = &sessions[c->session];
    if (++s->turn == turns) s->turn = 0, s->generation++, mark(s);
    if ((c->session += connection_count) >= session_count) c->session = c->first;
}

static void hang_up(struct connection *c) {
    close(c->fd);
    c->fd = -1;
    running--;
}

static void take(struct connection *c) {
    ssize_t n = recv(c->fd, in, sizeof in, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        failed++;
        close(c->fd);
        dial(c);
        if (now() >= ends_at || ask(c)) hang_up(c);
        return;
    }
    const char *data = in;
    size_t size = (size_t)n;
    if (!c->in_body) {
        size_t room = sizeof c->head - 1 - c->have, part = size < room ? size : room, before = c->have;
        memcpy(c->head + c->have, in, part);
        c->have += part;
        c->head[c->have] = 0;
        char *end = memmem(c->head, c->have, "\r\n\r\n", 4);
        if (!end) return;
        size_t of_head = (size_t)(end - c->head) + 4 - before;
        understand(c);
        data += of_head;
        size -= of_head;
        if (!size && (c->chunked || c->left)) return;
    }
    if (!over(c, data, size)) return;
    double at = now();
    whole_ms[wholes++ % MAX_TIMES] = (float)((at - c->asked_at) * 1e3);
    advance(c);
    if (at >= ends_at || ask(c)) hang_up(c);
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void percentiles(const char *name, float *values, size_t count) {
    if (count > MAX_TIMES) count = MAX_TIMES;
    qsort(values, count, sizeof *values, ascending);
    printf(", \"%s_p50\": %.4f, \"%s_p99\": %.4f", name, count ? values[count / 2] : 0, name, count ? values[count * 99 / 100] : 0);
}

int main(int argc, char **argv) {
    if (argc < 10) return fprintf(stderr, "usage: load FILE SESSIONS BASE STEP TURNS GENERATION CONNECTIONS SECONDS PORT...\n"), 2;
    session_count = atoi(argv[2]), base = atoi(argv[3]), step = atoi(argv[4]), turns = atoi(argv[5]);
    connection_count = atoi(argv[7]);
    if (connection_count > MAX_CONNECTIONS || connection_count > session_count) return fprintf(stderr, "load: too many connections\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    load_sessions(argv[1], atoi(argv[6]));
    queue = epoll_create1(0);
    double began = now();
    ends_at = began + atof(argv[8]);
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        c->port = atoi(argv[9 + i % (argc - 9)]);
        c->first = c->session = i;
        dial(c);
        running++;
        if (ask(c)) hang_up(c);
    }
    struct epoll_event ready[256];
    double gives_up = ends_at + 20;
    while (running && now() < gives_up) {
        int n = epoll_wait(queue, ready, 256, 1000);
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            if (c->fd >= 0 && ready[i].events & EPOLLOUT) {
                watch(c, EPOLL_CTL_MOD, EPOLLIN);
                if (put(c)) { failed++; hang_up(c); continue; }
            }
            if (c->fd >= 0 && ready[i].events & ~(unsigned int)EPOLLOUT) take(c);
        }
    }
    failed += (size_t)running;
    printf("{\"n\": %zu, \"failed\": %zu, \"seconds\": %.6f", wholes, failed, now() - began);
    percentiles("ttfb", first_ms, firsts);
    percentiles("e2e", whole_ms, wholes);
    printf("}\n");
    return 0;
}
