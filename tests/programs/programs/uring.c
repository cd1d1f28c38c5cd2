/* An echo server that uses its connection by plain calls, and then by a ring of liburing's that it makes late. With
   `files` it has a ring from the start, by which every message goes into a file and out of it, and none by the
   connection.

   usage: uring PORT MESSAGES-BEFORE
          uring PORT files */
#include <arpa/inet.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* What one request of the ring's came to. */
static int done(struct io_uring *ring) {
    struct io_uring_cqe *answer;
    io_uring_submit(ring);
    if (io_uring_wait_cqe(ring, &answer) != 0)
        fail("io_uring_wait_cqe");
    int result = answer->res;
    io_uring_cqe_seen(ring, answer);
    return result;
}

/* Answers what comes with what a file has kept of it. */
static int keep(int stream, char *bytes, int got) {
    char name[] = "/tmp/uring.XXXXXX", kept[4096];
    int file = mkstemp(name);
    unlink(name);
    struct io_uring ring;
    if (file < 0 || io_uring_queue_init(8, &ring, 0) != 0)
        fail("io_uring_queue_init");
    for (; got > 0; got = recv(stream, bytes, 4096, 0)) {
        io_uring_prep_write(io_uring_get_sqe(&ring), file, bytes, got, 0);
        if (done(&ring) != got)
            fail("write");
        io_uring_prep_fsync(io_uring_get_sqe(&ring), file, 0);
        if (done(&ring) != 0)
            fail("fsync");
        memset(kept, 0, sizeof kept);
        io_uring_prep_read(io_uring_get_sqe(&ring), file, kept, got, 0);
        if (done(&ring) != got)
            fail("read");
        send(stream, kept, got, 0);
    }
    io_uring_queue_exit(&ring);
    puts(got == 0 ? "the stream ended" : "the stream failed");
    return got != 0;
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_port = htons(atoi(words[1])),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&name, sizeof name) != 0 || listen(listener, 8) != 0)
        fail("listen");
    char bytes[4096];
    int stream = -1, got = 0;
    /* Who only looks whether somebody listens says nothing. */
    while (got <= 0) {
        stream = accept(listener, NULL, NULL);
        got = recv(stream, bytes, sizeof bytes, 0);
    }
    if (strcmp(words[2], "files") == 0)
        return keep(stream, bytes, got);
    for (int i = 1; i < atoi(words[2]) && got > 0; i++) {
        send(stream, bytes, got, 0);
        got = recv(stream, bytes, sizeof bytes, 0);
    }
    send(stream, bytes, got, 0);

    struct io_uring ring;
    if (io_uring_queue_init(8, &ring, 0) != 0)
        fail("io_uring_queue_init");
    for (;;) {
        io_uring_prep_recv(io_uring_get_sqe(&ring), stream, bytes, sizeof bytes, 0);
        got = done(&ring);
        if (got <= 0)
            break;
        io_uring_prep_send(io_uring_get_sqe(&ring), stream, bytes, got, 0);
        if (done(&ring) != got)
            fail("send");
    }
    puts(got == 0 ? "the stream ended" : "the stream failed");
    return got != 0;
}
