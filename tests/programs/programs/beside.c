/* A second library to preload, before Shunt's or after it: it stands in front of calls that move bytes, wait
 * and make or close descriptors, keeps an account as tracers do, and passes everything on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static long calls;

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) \
        next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED)

ssize_t send(int fd, const void *from, size_t n, int flags) { NEXT(send); return next(fd, from, n, flags); }
ssize_t recv(int fd, void *to, size_t n, int flags) { NEXT(recv); return next(fd, to, n, flags); }
ssize_t read(int fd, void *to, size_t n) { NEXT(read); return next(fd, to, n); }
ssize_t write(int fd, const void *from, size_t n) { NEXT(write); return next(fd, from, n); }
ssize_t readv(int fd, const struct iovec *to, int n) { NEXT(readv); return next(fd, to, n); }
ssize_t writev(int fd, const struct iovec *from, int n) { NEXT(writev); return next(fd, from, n); }
ssize_t recvmsg(int fd, struct msghdr *m, int flags) { NEXT(recvmsg); return next(fd, m, flags); }
ssize_t sendmsg(int fd, const struct msghdr *m, int flags) { NEXT(sendmsg); return next(fd, m, flags); }
int poll(struct pollfd *at, nfds_t n, int ms) { NEXT(poll); return next(at, n, ms); }
int epoll_wait(int set, struct epoll_event *at, int n, int ms) { NEXT(epoll_wait); return next(set, at, n, ms); }
int epoll_ctl(int set, int what, int fd, struct epoll_event *e) { NEXT(epoll_ctl); return next(set, what, fd, e); }
int socket(int domain, int kind, int protocol) { NEXT(socket); return next(domain, kind, protocol); }
int dup(int fd) { NEXT(dup); return next(fd); }
int dup2(int from, int to) { NEXT(dup2); return next(from, to); }
int close(int fd) { NEXT(close); return next(fd); }
pid_t fork(void) { NEXT(fork); return next(); }

int accept(int fd, struct sockaddr *name, socklen_t *room) { NEXT(accept); return next(fd, name, room); }
int connect(int fd, const struct sockaddr *name, socklen_t n) { NEXT(connect); return next(fd, name, n); }

/* An account that nobody reads is one that the compiler leaves out. */
__attribute__((destructor)) static void end(void) {
    if (getenv("BESIDE_SHOWS") && calls == 0)
        abort();
}
