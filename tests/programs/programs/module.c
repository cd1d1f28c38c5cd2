/* A module that talks for its program, in every way to come by libc's functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "module.h"

/* The program has one of this name, too: with RTLD_DEEPBIND the module's is the module's. */
const char *whose(void) { return "the module's"; }

struct calls {
    int (*poll)(struct pollfd *, nfds_t, int);
    ssize_t (*recv)(int, void *, size_t, int);
    ssize_t (*send)(int, const void *, size_t, int);
};

/* Relocated as data. */
static const struct calls in_a_table = {poll, recv, send};
static struct calls at_start, looked_up;

__attribute__((constructor)) static void start(void) {
    at_start = (struct calls){poll, recv, send};
    looked_up.poll = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_DEFAULT, "poll");
    looked_up.recv = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_DEFAULT, "recv");
    looked_up.send = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_DEFAULT, "send");
}

static int by(const struct calls *calls, int fd, char *room, int length, int sends) {
    for (int done = 0, now; done < length; done += now) {
        struct pollfd entry = {fd, sends ? POLLOUT : POLLIN, 0};
        if (calls->poll(&entry, 1, 20000) != 1)
            return -1;
        now = sends ? calls->send(fd, room + done, length - done, 0)
                    : calls->recv(fd, room + done, length - done, MSG_DONTWAIT);
        if (now <= 0)
            return now == 0 && done == 0 ? 0 : -1;
    }
    return length;
}

int carry(int fd, char *room, int length, int sends, int n) {
    const struct calls *const ways[] = {&in_a_table, &at_start, &looked_up};
    if (n % 4)
        return by(ways[n % 4 - 1], fd, room, length, sends);
    for (int done = 0, now; done < length; done += now) {
        struct pollfd entry = {fd, sends ? POLLOUT : POLLIN, 0};
        if (poll(&entry, 1, 20000) != 1)
            return -1;
        now = sends ? write(fd, room + done, length - done) : read(fd, room + done, length - done);
        if (now <= 0)
            return now == 0 && done == 0 ? 0 : -1;
    }
    return length;
}

const char *whose_is_it(void) { return whose(); }
