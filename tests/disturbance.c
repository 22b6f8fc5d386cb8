/* Disturbances of a machine, for LD_PRELOAD: -DSLOW_DISK delays each sync, -DSTEPPING_CLOCK=SEED sets the clock of the
 * wall to another time every second. The time that only grows is left alone. All processes see the same steps at the
 * same moment: a step depends on nothing but the seed and the time since the machine was started. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static uint64_t scatter(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#ifdef STEPPING_CLOCK
static long step(void) {
    static const long steps[] = {2, -2, 45, -45, 600, -600, 3600, -3600, 14400, -14400};
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return steps[scatter((uint64_t)now.tv_sec + 0x9e3779b97f4a7c15u * STEPPING_CLOCK) % (sizeof steps / sizeof *steps)];
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += step();
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
#endif

#ifdef SLOW_DISK
/* Most syncs take 5 to 50 ms, some take half a second. */
static void wait_for_disk(void) {
    static uint64_t syncs;
    uint64_t chance = scatter(__sync_add_and_fetch(&syncs, 1) + 0x9e3779b97f4a7c15u * (uint64_t)getpid());
    struct timespec delay = {0, chance % 20 ? (long)(5 + chance % 46) * 1000000 : 500000000};
    nanosleep(&delay, NULL);
}

int fsync(int file) {
    wait_for_disk();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    wait_for_disk();
    return (int)syscall(SYS_fdatasync, file);
}
#endif
