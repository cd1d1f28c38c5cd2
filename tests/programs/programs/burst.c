/* A client that sends more than a buffer's usual first size at once, by sends that may not wait, while nobody reads.

   usage: burst server PORT
          burst client PORT BYTES */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EXCHANGES = 60 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void exchange(int stream, int first) {
    char bytes[8] = "question";
    if (first && send(stream, bytes, 8, 0) != 8)
        fail("send");
    if (recv(stream, bytes, 8, MSG_WAITALL) != 8)
        fail("recv");
    if (!first && send(stream, bytes, 8, 0) != 8)
        fail("send");
}

static int serve(struct sockaddr_in name) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1, stream;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&name, sizeof name) != 0 || listen(listener, 8) != 0)
        fail("listen");
    /* Who only looks whether somebody listens says nothing. */
    char first[8];
    for (;;) {
        stream = accept(listener, NULL, NULL);
        if (recv(stream, first, 8, MSG_WAITALL) == 8)
            break;
        close(stream);
    }
    send(stream, first, 8, 0);
    for (int i = 1; i < EXCHANGES; i++)
        exchange(stream, 0);
    /* Its client says by another connection that it has sent all it could. */
    int word = accept(listener, NULL, NULL);
    char bytes[65536];
    long all = 0;
    ssize_t got;
    while ((got = read(word, bytes, sizeof bytes)) > 0)
        ;
    while ((got = recv(stream, bytes, sizeof bytes, 0)) > 0) {
        for (ssize_t i = 0; i < got; i++)
            if (bytes[i] != (char)((all + i) % 251))
                return puts("a byte differs"), 1;
        all += got;
    }
    printf("%ld bytes came\n", all);
    return 0;
}

int main(int count, char **words) {
    if (count < 3)
        return 2;
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_port = htons(atoi(words[2])),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (strcmp(words[1], "server") == 0)
        return serve(name);
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(stream, (struct sockaddr *)&name, sizeof name) != 0)
        fail("connect");
    for (int i = 0; i < EXCHANGES; i++) {
        exchange(stream, 1);
        usleep(500);
    }
    long wanted = atol(words[3]), sent = 0;
    char bytes[65536];
    while (sent < wanted) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (char)((sent + i) % 251);
        size_t length = wanted - sent < (long)sizeof bytes ? wanted - sent : sizeof bytes;
        ssize_t got = send(stream, bytes, length, MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN)
            fail("send");
        if (got < (ssize_t)length)
            return printf("no room behind %ld bytes\n", sent + (got > 0 ? got : 0)), 1;
        sent += got;
    }
    int word = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(word, (struct sockaddr *)&name, sizeof name) != 0)
        fail("connect");
    puts("all had room");
    return 0;
}
