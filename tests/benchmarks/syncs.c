/* Counts the syncs of a process, for LD_PRELOAD: what a store waits for is part of what it is compared by. */
#define _GNU_SOURCE
#include <dlfcn.h>

static long count;

long bench_syncs(void) { return count; }

#define COUNTED(name) \
    int name(int fd) { \
        static int (*real)(int); \
        if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, #name); \
        __sync_add_and_fetch(&count, 1); \
        return real(fd); \
    }

COUNTED(fsync)
COUNTED(fdatasync)
