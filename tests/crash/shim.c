/* Faults between a process and its disk, for LD_PRELOAD: counts the calls that change what is under a folder and, at
 * the nth, kills the process before or after it or fails it (a sync with EIO, a write with ENOSPC); or makes every sync slow. Armed by `shim_arm` through
 * ctypes, so that a forked child chooses its own fault. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { OFF, KILL_BEFORE, KILL_AFTER, FAIL_SYNC, SLOW_SYNC, COUNT, FULL_WRITE };

static int mode;
static long at, count, syncs, delay, syncs_after_failure;
static int failed;
static char folder[PATH_MAX];

void shim_arm(int new_mode, long new_at, long new_delay, const char *new_folder) {
    strncpy(folder, new_folder, sizeof folder - 1);
    at = new_at; delay = new_delay; count = syncs = syncs_after_failure = 0; failed = 0; mode = new_mode;
}
long shim_count(void) { return count; }
long shim_syncs(void) { return syncs; }
long shim_syncs_after_failure(void) { return syncs_after_failure; }

static int ours_path(const char *path) { return mode && path && strstr(path, folder) != NULL; }

static int ours(int fd) {
    char link[64], path[PATH_MAX];
    if (!mode) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return ours_path(path) && !strstr(path, "-shm");
}

static void before(int counted) {
    if (counted && __sync_add_and_fetch(&count, 1) == at && mode == KILL_BEFORE) kill(getpid(), SIGKILL);
}
static void after(int counted) {
    if (counted && count == at && mode == KILL_AFTER) kill(getpid(), SIGKILL);
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int sync_fault(int counted) {
    if (!counted) return 0;
    long number = __sync_add_and_fetch(&syncs, 1);
    if (failed) __sync_add_and_fetch(&syncs_after_failure, 1);
    if (mode == SLOW_SYNC) usleep(delay);
    if (mode == FAIL_SYNC && number == at) { failed = 1; errno = EIO; return 1; }
    return 0;
}

/* The first write from the nth call on finds the disk full, those after it do not. */
static int full_disk(int counted) {
    if (mode != FULL_WRITE || !counted || failed || count < at) return 0;
    failed = 1; errno = ENOSPC;
    return 1;
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    int counted = ours(fd), result;
    before(counted);
    if (sync_fault(counted)) return -1;
    result = real(fd);
    after(counted);
    return result;
}
int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    int counted = ours(fd), result;
    before(counted);
    if (sync_fault(counted)) return -1;
    result = real(fd);
    after(counted);
    return result;
}
ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    int counted = ours(fd);
    before(counted);
    if (full_disk(counted)) return -1;
    ssize_t result = real(fd, data, size);
    after(counted);
    return result;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    int counted = ours(fd);
    before(counted);
    if (full_disk(counted)) return -1;
    ssize_t result = real(fd, data, size, offset);
    after(counted);
    return result;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }
int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    int counted = ours(fd), result;
    before(counted);
    result = real(fd, size);
    after(counted);
    return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    int counted = ours_path(to), result;
    before(counted);
    result = real(from, to);
    after(counted);
    return result;
}
int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    int counted = ours_path(path), result;
    before(counted);
    result = real(path);
    after(counted);
    return result;
}
