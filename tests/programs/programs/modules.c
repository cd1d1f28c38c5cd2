/* A server and a client whose messages a module carries (module.c). The module lies where the program's
 * RUNPATH says: the loader finds it for the program alone.
 *
 *   modules server PORT WAY            until its client is gone
 *   modules client PORT WAY MESSAGES
 *
 * WAY is how it is opened: `now`, `lazy`, `late` (when messages have gone by already) with RTLD_DEEPBIND, or
 * `libc`, where there is no module, and the program asks libc itself for its functions.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "module.h"

#define EARLY 100
#define LENGTH 100
#define CHECK(true_if_well) \
    do { \
        if (!(true_if_well)) { \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #true_if_well, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

static __typeof__(carry) *carry_by;
static __typeof__(recv) *recv_by = recv;
static __typeof__(send) *send_by = send;

const char *whose(void) { return "the program's"; }

static void *opened(const char *name, int flags) {
    void *module = dlopen(name, flags);
    if (!module) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return module;
}

static void open_module(const char *way) {
    if (!strcmp(way, "libc")) {
        void *libc = opened("libc.so.6", RTLD_NOW);
        recv_by = (__typeof__(recv) *)dlsym(libc, "recv");
        send_by = (__typeof__(send) *)dlsym(libc, "send");
        return;
    }
    int flags = strcmp(way, "now") ? RTLD_LAZY | RTLD_DEEPBIND : RTLD_NOW | RTLD_DEEPBIND;
    void *module = opened(strcmp(way, "now") ? "module-lazy.so" : "module-now.so", flags);
    carry_by = (__typeof__(carry) *)dlsym(module, "carry");
    __typeof__(whose_is_it) *whose_by = (__typeof__(whose_is_it) *)dlsym(module, "whose_is_it");
    CHECK(carry_by && whose_by && !strcmp(whose_by(), "the module's"));
}

static int carried(int fd, char *room, int sends, int n) {
    if (carry_by)
        return carry_by(fd, room, LENGTH, sends, n);
    for (int done = 0, now; done < LENGTH; done += now) {
        now = sends ? send_by(fd, room + done, LENGTH - done, 0)
                    : recv_by(fd, room + done, LENGTH - done, 0);
        if (now <= 0)
            return now == 0 && done == 0 ? 0 : -1;
    }
    return LENGTH;
}

int main(int count, char **words) {
    char room[LENGTH], sent[LENGTH];
    CHECK(count >= 4);
    int serves = !strcmp(words[1], "server"), late = !strcmp(words[3], "late");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (!late)
        open_module(words[3]);
    if (serves) {
        int listener = fd;
        CHECK(!setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
        CHECK(!bind(listener, (void *)&at, sizeof at) && !listen(listener, 5));
        CHECK((fd = accept(listener, NULL, NULL)) >= 0);
    } else
        CHECK(!connect(fd, (void *)&at, sizeof at));
    int messages = serves ? 0 : atoi(words[4]), n = 0;
    for (; serves || n < messages; n++) {
        if (late && n == EARLY)
            open_module(words[3]);
        for (int byte = 0; byte < LENGTH; byte++)
            sent[byte] = (char)(n * 7 + byte);
        if (!serves)
            CHECK(carried(fd, sent, 1, n) == LENGTH);
        int got = carried(fd, room, 0, n);
        if (serves && got == 0)
            break;
        CHECK(got == LENGTH && !memcmp(room, sent, LENGTH));
        if (serves)
            CHECK(carried(fd, room, 1, n) == LENGTH);
    }
    printf("%d messages, all right\n", n);
    return 0;
}
