/* A thread that looks at its epoll set is jumped out of the call by a handler, again and again, while another sleeps in
   a set of its own. Each answers what comes on its stream.

   usage: jump server PORT
          jump client PORT MESSAGES */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static sigjmp_buf out;
static volatile sig_atomic_t in_call, jumps, over;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void jump(int number) {
    (void)number;
    if (in_call) {
        in_call = 0;
        jumps++;
        siglongjmp(out, 1);
    }
}

static int set_of(int stream) {
    int set = epoll_create1(0);
    struct epoll_event asked = {.events = EPOLLIN};
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, stream, &asked) != 0)
        fail("epoll");
    return set;
}

/* False once the stream has ended. */
static int answer(int stream) {
    char bytes[64];
    ssize_t got = recv(stream, bytes, sizeof bytes, MSG_DONTWAIT);
    return got < 0 || (got > 0 && send(stream, bytes, got, MSG_NOSIGNAL) == got);
}

static void *looks(void *stream) {
    int set = set_of(*(int *)stream);
    struct epoll_event told[4];
    while (!over) {
        if (sigsetjmp(out, 1) != 0)
            continue;
        for (int i = 0; i < 200 && !over; i++) {
            in_call = 1;
            int count = epoll_wait(set, told, 4, 0);
            in_call = 0;
            if (count > 0 && !answer(*(int *)stream))
                over = 1;
        }
    }
    return NULL;
}

static void *sleeps(void *stream) {
    int set = set_of(*(int *)stream);
    struct epoll_event told[4];
    while (epoll_wait(set, told, 4, -1) < 1 || answer(*(int *)stream))
        ;
    return NULL;
}

static int serve(int listener) {
    int streams[2];
    for (int i = 0; i < 2; i++) {
        /* Who only looks whether somebody listens says nothing. */
        char first;
        while ((streams[i] = accept(listener, NULL, NULL)) >= 0 && recv(streams[i], &first, 1, MSG_PEEK) != 1)
            close(streams[i]);
    }
    signal(SIGUSR1, jump);
    pthread_t looker, sleeper;
    pthread_create(&looker, NULL, looks, &streams[0]);
    pthread_create(&sleeper, NULL, sleeps, &streams[1]);
    while (!over) {
        for (int i = 0; i < 50 && !over; i++) {
            pthread_kill(looker, SIGUSR1);
            for (volatile int turn = rand() % 5000; turn > 0; turn--)
                ;
        }
        usleep(50);
    }
    pthread_join(looker, NULL);
    pthread_join(sleeper, NULL);
    return jumps == 0;
}

int main(int count, char **words) {
    if (count < 3)
        return 2;
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_port = htons(atoi(words[2])),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1, streams[2];
    if (strcmp(words[1], "server") == 0) {
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(listener, (struct sockaddr *)&name, sizeof name) != 0 || listen(listener, 8) != 0)
            fail("listen");
        return serve(listener);
    }
    for (int i = 0; i < 2; i++) {
        streams[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(streams[i], (struct sockaddr *)&name, sizeof name) != 0)
            fail("connect");
        setsockopt(streams[i], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct timeval limit = {.tv_sec = 20};
        setsockopt(streams[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    long messages = atol(words[3]);
    for (long i = 0; i < messages; i++) {
        for (int to = 0; to < 2; to++)
            if (send(streams[to], "a", 1, 0) != 1)
                fail("send");
        for (int from = 0; from < 2; from++) {
            char got;
            if (recv(streams[from], &got, 1, 0) != 1)
                return printf("thread %d has not answered message %ld\n", from, i), 1;
        }
    }
    printf("%ld messages answered\n", messages);
    return 0;
}
