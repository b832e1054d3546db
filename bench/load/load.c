/* The clients of bench/router.py: one thread, epoll.
 *
 * load [-r RATE -s SEED] FILE SESSIONS BASE STEP TURNS GENERATION CONNECTIONS SECONDS PORT...
 *
 * Closed loop: a request is due as soon as a connection is free. With -r it is open: RATE * SECONDS requests are due at
 * moments drawn from SEED alone, as a Poisson process of so many has them in that time. One that finds no free
 * connection waits for the first that is; what still waits after SECONDS is never sent.
 *
 * FILE holds SESSIONS bodies of BASE + STEP * (TURNS - 1) bytes each. A connection plays its share of the sessions turn
 * by turn: the body of turn k is the first BASE + STEP * k bytes and "]}", so a prompt begins with the whole of the one
 * before it. After the last turn the session starts anew: every "g000000" in its body becomes the next generation.
 *
 * Prints one line of JSON: n answers with status 200, failed others, requests unsent; the seconds until the last answer;
 * pace, at most 1: answers per second, from the first to the last, by requests due per second (0 in a closed loop);
 * percentiles of the first byte of the body and of the whole answer, in ms from when the request was due.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 1024
#define MAX_TIMES (1 << 22)
#define MARKS 4
#define DIGITS 6
#define PATIENCE_S 60 /* with the last answers: a slow router left with them would slow the next one measured */

struct session {
    char *body, *marks[MARKS];
    int marked, turn, generation;
};

struct connection {
    int fd, port, first, session; /* its sessions: first, first + connections, … */
    char head[8192], tail[5];
    size_t have, left; /* bytes of the head so far; bytes of the body still to come */
    int asking, ok, in_body, chunked;
    struct iovec out[3];
    int out_from;
    double due, first_at; /* first_at: of the body's first byte, 0 until then */
};

static struct session *sessions;
static struct connection connections[MAX_CONNECTIONS], *idle[MAX_CONNECTIONS]; /* idle: a ring, the longest idle first */
static int idle_from, idle_count;
static double *arrivals; /* of an open loop: when its requests are due; after them never */
static size_t arrival_count, asked, answered, failed;
static float first_ms[MAX_TIMES], whole_ms[MAX_TIMES];
static int session_count, base, step, turns, connection_count, queue;
static double first_answer_at, last_answer_at;
static char in[1 << 18];

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

/* A Poisson process, given how many there are: exponential gaps, scaled so that the next one would be due at the end. */
static void draw_arrivals(double rate, long seed, double began, double seconds) {
    double sum = 0;
    srand48(seed);
    arrival_count = (size_t)(rate * seconds);
    arrivals = calloc(arrival_count + 1, sizeof *arrivals);
    for (size_t i = 0; i <= arrival_count; i++) {
        sum -= log(1 - drand48());
        arrivals[i] = sum;
    }
    for (size_t i = 0; i < arrival_count; i++) arrivals[i] = began + arrivals[i] * seconds / sum;
    arrivals[arrival_count] = HUGE_VAL;
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

static void set_idle(struct connection *c) {
    c->asking = 0;
    idle[(idle_from + idle_count++) % connection_count] = c;
}

static void fail(struct connection *c, const char *why) {
    if (!failed++) fprintf(stderr, "load: first failure: %.400s\n", why);
    set_idle(c);
}

/* The connection is gone: that is a failure only of a request under way. */
static void redial(struct connection *c) {
    close(c->fd);
    dial(c);
    if (c->asking) fail(c, "the connection was closed");
}

static void ask(struct connection *c, double due) {
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
    c->in_body = c->chunked = 0;
    c->first_at = 0;
    memset(c->tail, 0, sizeof c->tail);
    c->due = due;
    c->asking = 1;
    asked++;
    if (put(c)) redial(c);
}

static double next_due(void) {
    return arrivals ? arrivals[asked] : now();
}

static void ask_what_is_due(void) {
    for (double due; idle_count && (due = next_due()) <= now();) {
        struct connection *c = idle[idle_from];
        idle_from = (idle_from + 1) % connection_count;
        idle_count--;
        ask(c, due);
    }
}

/* The whole head is in c->head: what follows it has begun. */
static void understand(struct connection *c) {
    c->ok = !strncmp(c->head, "HTTP/1.1 200", 12);
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    c->chunked = !length;
    c->left = length ? strtoul(length + 17, 0, 10) : 0;
    c->in_body = 1;
}

static int over(struct connection *c, const char *data, size_t size) {
    if (size && !c->first_at) c->first_at = now();
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

static void finish(struct connection *c) {
    advance(c);
    if (!c->ok || !c->first_at) return fail(c, c->head);
    last_answer_at = now();
    if (!answered) first_answer_at = last_answer_at;
    first_ms[answered % MAX_TIMES] = (float)((c->first_at - c->due) * 1e3);
    whole_ms[answered++ % MAX_TIMES] = (float)((last_answer_at - c->due) * 1e3);
    set_idle(c);
}

static void take(struct connection *c) {
    ssize_t n = recv(c->fd, in, sizeof in, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0 || !c->asking) return redial(c);
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
    if (over(c, data, size)) finish(c);
}

static void handle(struct connection *c, unsigned int events) {
    if (events & EPOLLOUT) {
        watch(c, EPOLL_CTL_MOD, EPOLLIN);
        if (put(c)) return redial(c);
    }
    if (events & ~(unsigned int)EPOLLOUT) take(c);
}

/* Asks until ends_at, then hears the answers to the end. */
static void play(double ends_at) {
    struct epoll_event ready[256];
    for (;;) {
        double at = now();
        int closing = at >= ends_at;
        double until = closing ? ends_at + PATIENCE_S : ends_at;
        if (at >= until || (closing && idle_count == connection_count)) return;
        if (!closing && idle_count) until = fmax(at, fmin(until, next_due()));
        struct timespec wait = {(time_t)(until - at), (long)(fmod(until - at, 1) * 1e9)};
        int n = epoll_pwait2(queue, ready, 256, &wait, 0);
        for (int i = 0; i < n; i++) handle(ready[i].data.ptr, ready[i].events);
        if (!closing) ask_what_is_due();
    }
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

static double pace(void) {
    if (arrival_count < 2 || answered < 2) return 0;
    double due_s = arrivals[arrival_count - 1] - arrivals[0], answered_s = last_answer_at - first_answer_at;
    return (double)(answered - 1) / (double)(arrival_count - 1) * fmin(1, due_s / answered_s);
}

static void connect_all(char **ports, int port_count) {
    queue = epoll_create1(0);
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        c->port = atoi(ports[i % port_count]);
        c->first = c->session = i;
        dial(c);
        set_idle(c);
    }
}

int main(int argc, char **argv) {
    const char *usage = "usage: load [-r RATE -s SEED] FILE SESSIONS BASE STEP TURNS GENERATION CONNECTIONS SECONDS PORT...\n";
    double rate = 0;
    long seed = 0;
    for (int option; (option = getopt(argc, argv, "r:s:")) != -1;) {
        if (option == 'r') rate = atof(optarg);
        else if (option == 's') seed = atol(optarg);
        else return 2;
    }
    argc -= optind, argv += optind;
    if (argc < 9) return fputs(usage, stderr), 2;
    session_count = atoi(argv[1]), base = atoi(argv[2]), step = atoi(argv[3]), turns = atoi(argv[4]);
    connection_count = atoi(argv[6]);
    if (connection_count > MAX_CONNECTIONS || connection_count > session_count) return fputs("load: too many connections\n", stderr), 2;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1L); /* or every wake-up for a request would be 50 us late */
    load_sessions(argv[0], atoi(argv[5]));
    connect_all(argv + 8, argc - 8);
    double began = now(), seconds = atof(argv[7]);
    if (rate > 0) draw_arrivals(rate, seed, began, seconds);
    play(began + seconds);
    failed += (size_t)(connection_count - idle_count);
    size_t unsent = arrivals ? arrival_count - asked : 0;
    printf("{\"n\": %zu, \"failed\": %zu, \"unsent\": %zu, \"seconds\": %.6f, \"pace\": %.4f", answered, failed, unsent, now() - began, pace());
    percentiles("ttfb", first_ms, answered);
    percentiles("e2e", whole_ms, answered);
    printf("}\n");
    return 0;
}
