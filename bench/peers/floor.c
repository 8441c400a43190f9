/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The floor of a round trip: two pinned processes, 48 KiB copied in by the client and out by the server, 4 KiB back and
 * out again, both spinning on a word of their own cache line. Prints the time of each call in ns, one a line.
 *
 * floor SERVER_CPU CLIENT_CPU CALLS
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define IN 49152
#define OUT 4096

struct shared {
	_Alignas(128) _Atomic uint32_t request;
	_Alignas(128) _Atomic uint32_t answer;
	_Alignas(4096) char in[IN];
	_Alignas(4096) char out[OUT];
};

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void serve(struct shared *shared)
{
	static char row[IN];
	uint32_t seen = 0;

	for (;;) {
		uint32_t request;

		while ((request = atomic_load_explicit(&shared->request, memory_order_acquire)) == seen)
			__builtin_ia32_pause();
		memcpy(row, shared->in, IN);
		for (int i = 0; i < OUT; i += 4)
			memcpy(shared->out + i, row, 4);
		seen = request;
		atomic_store_explicit(&shared->answer, seen, memory_order_release);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int calls = atoi(argv[3]), warm = 2000;
	struct shared *shared =
		mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 1;
	memset(shared, 0, sizeof(*shared));
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(atoi(argv[1]));
		serve(shared);
	}
	pin(atoi(argv[2]));
	static char observation[IN], action[OUT];
	int64_t *times = malloc(sizeof(*times) * calls);
	for (int i = 0; i < calls + warm; i++) {
		uint32_t number = i + 1;

		memcpy(observation, &number, 4);
		int64_t began = now();
		memcpy(shared->in, observation, IN);
		atomic_store_explicit(&shared->request, number, memory_order_release);
		while (atomic_load_explicit(&shared->answer, memory_order_acquire) != number)
			__builtin_ia32_pause();
		memcpy(action, shared->out, OUT);
		if (i >= warm)
			times[i - warm] = now() - began;
		if (memcmp(action, &number, 4))
			return 1;
	}
	kill(child, SIGKILL);
	for (int i = 0; i < calls; i++)
		printf("%lld\n", (long long)times[i]);
	return 0;
}
