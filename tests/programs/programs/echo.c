/* A server that sends back what comes, and a client that looks at what comes back. Built for programs of
 * 32 bits and of 64, and for 32 with times of 64: each of its ways of waiting has a time in it, whose form
 * is the program's.
 *
 *   echo server PORT WAY               until no client is left
 *   echo client PORT STREAMS MESSAGES  the streams take turns
 *   echo times PORT                    every way of waiting waits as long as it should, and no longer
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STREAMS_MAX 900
#define CHECK(true_if_well) \
    do { \
        if (!(true_if_well)) { \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #true_if_well, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

static const char *const WAYS[] = {"poll", "ppoll", "select", "pselect", "epoll", "recvmmsg", NULL};
static char room[1 << 16];

static struct sockaddr_in address(const char *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

/* Whether each of `fds` has something to read, after at most `ms`; the number of those that have. */
static int wait_by(const char *way, int set, const int *fds, int count, char *ready, int ms) {
    struct timespec span = {ms / 1000, ms % 1000 * 1000000L};
    struct timeval coarse = {ms / 1000, ms % 1000 * 1000L};
    memset(ready, 0, count);
    if (strstr(way, "select")) {
        fd_set members;
        FD_ZERO(&members);
        int highest = 0;
        for (int i = 0; i < count; i++) {
            FD_SET(fds[i], &members);
            highest = fds[i] > highest ? fds[i] : highest;
        }
        int got = *way == 'p' ? pselect(highest + 1, &members, NULL, NULL, &span, NULL)
                              : select(highest + 1, &members, NULL, NULL, &coarse);
        for (int i = 0; i < count; i++)
            ready[i] = got > 0 && FD_ISSET(fds[i], &members);
        return got;
    }
    if (!strcmp(way, "epoll")) {
        static struct epoll_event events[STREAMS_MAX];
        int got = epoll_pwait2(set, events, STREAMS_MAX, &span, NULL);
        for (int i = 0; i < got; i++)
            for (int at = 0; at < count; at++)
                ready[at] |= fds[at] == events[i].data.fd;
        return got;
    }
    static struct pollfd entries[STREAMS_MAX];
    for (int i = 0; i < count; i++)
        entries[i] = (struct pollfd){fds[i], POLLIN, 0};
    int got = !strcmp(way, "ppoll") ? ppoll(entries, count, &span, NULL) : poll(entries, count, ms);
    for (int i = 0; i < count; i++)
        ready[i] = got > 0 && entries[i].revents != 0;
    return got;
}

static ssize_t receive(const char *way, int fd) {
    if (strcmp(way, "recvmmsg"))
        return read(fd, room, sizeof room);
    struct iovec part = {room, sizeof room};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    struct timespec span = {10, 0};
    int got = recvmmsg(fd, &message, 1, MSG_WAITFORONE, &span);
    return got == 1 ? (ssize_t)message.msg_len : got;
}

static int server(const char *port, const char *way) {
    static int fds[STREAMS_MAX];
    static char ready[STREAMS_MAX];
    struct sockaddr_in at = address(port);
    int one = 1, count = 1, came = 0, set = epoll_create1(0);
    CHECK((fds[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(!setsockopt(fds[0], SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    CHECK(!bind(fds[0], (void *)&at, sizeof at) && !listen(fds[0], 500));
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[0]};
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, fds[0], &event));
    while (count > 1 || came < 2) {
        CHECK(wait_by(way, set, fds, count, ready, 20000) > 0);
        for (int i = count - 1; i > 0; i--) {
            if (!ready[i])
                continue;
            ssize_t got = receive(way, fds[i]);
            CHECK(got >= 0);
            came += got > 0;
            for (ssize_t sent = 0, now; sent < got; sent += now)
                CHECK((now = write(fds[i], room + sent, got - sent)) > 0);
            if (!got) {
                close(fds[i]);
                fds[i] = fds[--count];
            }
        }
        if (ready[0] && count < STREAMS_MAX) {
            CHECK((fds[count] = accept(fds[0], NULL, NULL)) >= 0);
            event.data.fd = fds[count];
            CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, fds[count++], &event));
        }
    }
    return 0;
}

static void connect_to(const char *port, int *fd) {
    struct sockaddr_in at = address(port);
    CHECK((*fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(!connect(*fd, (void *)&at, sizeof at));
}

static int client(const char *port, int streams, int messages) {
    static int fds[STREAMS_MAX];
    static char sent[4000];
    for (int i = 0; i < streams; i++)
        connect_to(port, &fds[i]);
    for (int n = 0; n < messages; n++)
        for (int i = 0; i < streams; i++) {
            int length = 1 + (unsigned)(n * 37 + i) % sizeof sent, waiting = 0;
            for (int at = 0; at < length; at++)
                sent[at] = (char)(n * 7 + i * 3 + at);
            CHECK(write(fds[i], sent, length) == length);
            for (ssize_t got = 0, now; got < length; got += now)
                CHECK((now = read(fds[i], room + got, length - got)) > 0);
            CHECK(!memcmp(sent, room, length));
            CHECK(!ioctl(fds[i], FIONREAD, &waiting) && waiting == 0);
            CHECK(!(fcntl(fds[i], F_GETFL) & O_NONBLOCK));
        }
    for (int i = 0; i < streams; i++)
        close(fds[i]);
    printf("%d streams, %d messages, all right\n", streams, messages);
    return 0;
}

static long ms_since(struct timespec began) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000;
}

#ifdef __i386__
/* Calls that programs of 32 bits alone have, by number. */
static void by_number(int fd) {
    long out[] = {fd, (long)"by number", 9, 0}, in[] = {fd, (long)room, 9, MSG_WAITALL};
    long coarse[] = {20, 0};
    long long fine[] = {20, 0};
    fd_set members;
    struct pollfd entry = {fd, POLLIN, 0};
    for (int n = 0; n < 300; n++) {
        memset(room, 0, 9);
        CHECK(syscall(SYS_socketcall, 9, out) == 9);
        FD_ZERO(&members);
        FD_SET(fd, &members);
        long all[] = {fd + 1, (long)&members, 0, 0, (long)coarse};
        coarse[0] = 20;
        CHECK(syscall(SYS_select, all) == 1 && FD_ISSET(fd, &members));
        CHECK(syscall(SYS__newselect, fd + 1, &members, NULL, NULL, coarse) == 1);
        CHECK(syscall(SYS_ppoll_time64, &entry, 1, fine, NULL, 8) == 1 && entry.revents == POLLIN);
        CHECK(!(syscall(SYS_fcntl64, fd, F_GETFL) & O_NONBLOCK));
        CHECK(syscall(SYS_socketcall, 10, in) == 9 && !memcmp(room, "by number", 9));
    }
    CHECK(syscall(SYS_socketcall, 9, NULL) == -1 && errno == EFAULT);
}
#else
static void by_number(int fd) { (void)fd; }
#endif

static int times(const char *port) {
    int fd, set = epoll_create1(0);
    char ready;
    struct timespec began;
    connect_to(port, &fd);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    for (int n = 0; n < 100; n++)
        CHECK(write(fd, "x", 1) == 1 && read(fd, room, 1) == 1);
    for (const char *const *way = WAYS; *way; way++) {
        clock_gettime(CLOCK_MONOTONIC, &began);
        CHECK(wait_by(*way, set, &fd, 1, &ready, 60) == 0 && !ready);
        CHECK(ms_since(began) >= 59 && ms_since(began) < 10000);
        CHECK(write(fd, "y", 1) == 1);
        CHECK(wait_by(*way, set, &fd, 1, &ready, 20000) == 1 && ready);
        CHECK(receive(*way, fd) == 1 && room[0] == 'y' && ms_since(began) < 10000);
    }
    /* What was not waited is told, by select alone. */
    fd_set members;
    FD_ZERO(&members);
    FD_SET(fd, &members);
    struct timeval left = {20, 0};
    CHECK(write(fd, "z", 1) == 1 && select(fd + 1, &members, NULL, NULL, &left) == 1);
    CHECK(left.tv_sec >= 10 && left.tv_sec < 20 && left.tv_usec >= 0 && read(fd, room, 9) == 1);
    struct timeval limit = {0, 60000}, known = {1, 1};
    socklen_t bytes = sizeof known;
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    CHECK(!getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &known, &bytes) && bytes == sizeof known);
    CHECK(known.tv_sec == 0 && known.tv_usec >= 59000 && known.tv_usec <= 65000);
    clock_gettime(CLOCK_MONOTONIC, &began);
    struct iovec part = {room, 9};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK(recvmsg(fd, &message, 0) == -1 && errno == EAGAIN);
    CHECK(ms_since(began) >= 59 && ms_since(began) < 10000);
    for (int n = 0; n < 1000; n++) {
        CHECK(sendmsg(fd, &message, 0) == 9);
        for (ssize_t got = 0, now; got < 9; got += now)
            CHECK((now = read(fd, room + got, 9 - got)) > 0);
    }
    by_number(fd);
    printf("all in time\n");
    return 0;
}

int main(int count, char **words) {
    if (count == 4 && !strcmp(words[1], "server"))
        return server(words[2], words[3]);
    if (count == 5 && !strcmp(words[1], "client"))
        return client(words[2], atoi(words[3]), atoi(words[4]));
    if (count == 3 && !strcmp(words[1], "times"))
        return times(words[2]);
    return 2;
}
