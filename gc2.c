// A listener forks for a connection and closes its copy; the child talks (ring), then forks a grandchild that talks.
// cc -o grandchild grandchild.c; plain: prints "ok" ; accelerated: hangs (client waits for the grandchild's answer).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <arpa/inet.h>
static void echo(int s, int times) { char b[100]; for (int i = 0; i < times; i++) { ssize_t n = read(s, b, sizeof b); if (n <= 0) exit(3); write(s, b, n); } }
static void ask(int s, int times) { char b[100]; for (int i = 0; i < times; i++) { snprintf(b, 100, "message %d", i); write(s, b, 100); char g[100]; size_t n = 0; while (n < 100) { ssize_t k = read(s, g + n, 100 - n); if (k <= 0) { puts("end"); exit(4); } n += k; } if (memcmp(b, g, 100)) { puts("wrong"); exit(5); } } }
int main(void) {
    int l = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    bind(l, (void *)&a, n); listen(l, 5); getsockname(l, (void *)&a, &n);
    if (!fork()) { // listener
        int s = accept(l, 0, 0);
        if (!fork()) { // child: has the stream alone soon
            close(l);
            echo(s, 300000000);
            if (!fork()) { echo(s, 20); _exit(0); }
            wait(0); _exit(0);
        }
        close(s); wait(0); _exit(0);
    }
    int s = socket(AF_INET, SOCK_STREAM, 0);
    connect(s, (void *)&a, n);
    ask(s, 300000000); puts("first half"); fflush(stdout); usleep(2000000);
    alarm(5);
    ask(s, 20); puts("ok");
    return 0;
}
