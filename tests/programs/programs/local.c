/* A library with BYTES of storage for each thread, which glibc takes from the thread's stack. */
static __thread char storage[BYTES] __attribute__((tls_model("initial-exec")));

__attribute__((constructor)) static void touch(void)
{
    for (unsigned at = 0; at < BYTES; at += 1024)
        ((volatile char *)storage)[at] = 1;
}
