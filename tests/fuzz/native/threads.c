/* threads SEED ROUNDS: calls, descriptions, loads and unloads from many threads at once.
 *
 * No call may run on a device while it is unloaded, so the threads take turns: all call and load;
 * all unload; some call on one device while the others load and unload the other one.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS 6
/* Of the third turn, those that call. */
#define CALLERS 3

static pthread_barrier_t barrier;
static uint64_t seed;
static uint64_t turns;

#define ROUNDS_PER_TURN 20

static void *take(void *context, size_t bytes, size_t alignment, int device, void *stream)
{
    void *memory = NULL;
    (void)context;
    (void)device;
    (void)stream;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void give(void *context, void *pointer, size_t bytes, int device, void *stream)
{
    (void)context;
    (void)bytes;
    (void)device;
    (void)stream;
    free(pointer);
}

static void check(OpforgeStatus status, const char *what)
{
    if (status != OPFORGE_OK) {
        printf("found: %s from threads: %s\n", what, demo_last_error());
        fflush(stdout);
        _exit(1);
    }
}

static void call_on_one_device(uint64_t round)
{
    Call call;
    OpforgeStatus ignored;
    prepare(&call, seed, round, -1, 0);
    now_calls(&call);
    if (call.given[0].spec.device == 0 && judge_call(&call, &ignored) == ACCEPTED) {
        const OpforgeStatus status = call.op->call(&call);
        if (status != OPFORGE_OK) {
            found(&call, "called beside an unload: %s", demo_last_error());
        }
        check_result(&call, status);
    }
    release(&call);
}

static void *work(void *number)
{
    const int self = (int)(intptr_t)number;
    uint64_t turn;
    int i;
    for (turn = 0; turn < turns; turn++) {
        const uint64_t first = (turn * THREADS + (uint64_t)self) * ROUNDS_PER_TURN;
        for (i = 0; i < ROUNDS_PER_TURN; i++) {
            if (i == self) {
                check(demo_load(self % DEVICES), "load");
            }
            if (self == 0 && i % 5 == 0) {
                const int is_own = i / 5 % 2;
                check(demo_set_allocator(is_own ? take : NULL, is_own ? give : NULL, NULL),
                      "set_allocator");
            }
            check_round(seed, first + (uint64_t)i, 0);
        }
        pthread_barrier_wait(&barrier);
        check(demo_unload(self % DEVICES), "unload");
        pthread_barrier_wait(&barrier);
        for (i = 0; i < ROUNDS_PER_TURN; i++) {
            if (self < CALLERS) {
                call_on_one_device(first + (uint64_t)i);
            } else {
                check(i % 2 ? demo_unload(1) : self == CALLERS ? demo_load(1) : OPFORGE_OK, "load");
            }
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    intptr_t i;
    if (argc != 3) {
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    turns = strtoull(argv[2], NULL, 10);
    set_up_devices();
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, work, (void *)i);
    }
    for (i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (i = 0; i < DEVICES; i++) {
        check(demo_unload((int)i), "unload");
    }
    if (standin_live_modules() != 0 || standin_live_allocations() != 0 ||
        standin_live_contexts() != 0) {
        printf("found: something is left after unload\n");
        return 1;
    }
    printf("%llu turns\n", (unsigned long long)turns);
    return 0;
}
