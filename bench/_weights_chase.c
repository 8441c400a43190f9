/* SPDX-License-Identifier: GPL-3.0-or-later
 * The cost of reading what is mapped, with every page present: FILE.
 * Prints nanoseconds of a load that depends on the one before, and seconds of a sum over all of it, best of three. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { LOADS = 2000000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    struct stat status;
    int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &status))
        return perror("open"), 1;
    const volatile uint8_t *data = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return perror("mmap"), 1;
    uint64_t sum = 0, state = 88172645463325252u, lines = status.st_size / 64;
    for (off_t at = 0; at < status.st_size; at += 4096)
        sum += data[at];
    double chase = 1e9, scan = 1e9;
    for (int run = 0; run < 3; run++) {
        double began = now();
        for (int load = 0; load < LOADS; load++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            /* The next address needs the byte of this one. */
            state += data[(state >> 11) % lines * 64];
        }
        double seconds = now() - began;
        chase = seconds < chase ? seconds : chase;
        began = now();
        const uint64_t *words = (const uint64_t *)data;
        for (off_t word = 0; word < status.st_size / 8; word++)
            sum += words[word];
        seconds = now() - began;
        scan = seconds < scan ? seconds : scan;
    }
    printf("{\"load_ns\": %.2f, \"sum_s\": %.4f, \"ignore\": %d}\n", chase * 1e9 / LOADS, scan, (int)((sum + state) & 1));
    return 0;
}
