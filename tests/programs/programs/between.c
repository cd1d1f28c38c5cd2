/* A library of the program's with a function of libc's name, which looks for the next one of that name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>

ssize_t recv(int fd, void *room, size_t length, int flags) {
    static ssize_t (*next)(int, void *, size_t, int);
    if (!next)
        next = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    return next(fd, room, length, flags);
}
