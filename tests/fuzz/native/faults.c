/* faults SEED ROUNDS: lets every call of the driver fail, one at a time and from one on.
 *
 * However far a call came, the status is an error with a text, nothing is left behind, and the same
 * call works afterwards. The driver's library itself, its functions and host memory fail, too:
 * dlopen, dlsym and calloc are wrapped by the linker.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void *__real_dlopen(const char *name, int flags);
void *__real_dlsym(void *handle, const char *name);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlsym(void *handle, const char *name);
void *__wrap_calloc(size_t count, size_t bytes);

static int has_no_library;
static int failing_dlsym;
static const char *missing;
static int failing_calloc;

static int fails_now(int *counter)
{
    return *counter > 0 && --*counter == 0;
}

void *__wrap_dlopen(const char *name, int flags)
{
    return has_no_library ? NULL : __real_dlopen(name, flags);
}

void *__wrap_dlsym(void *handle, const char *name)
{
    if (fails_now(&failing_dlsym) || (missing != NULL && strcmp(name, missing) == 0)) {
        return NULL;
    }
    return __real_dlsym(handle, name);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now(&failing_calloc) ? NULL : __real_calloc(count, bytes);
}

/* The exit status of a child that has nothing left to try. */
#define LAST 77

static unsigned long faults;

static void wrong(const char *what, int nth, const char *text)
{
    printf("found: %s, %d: %s\n", what, nth, text);
    fflush(stdout);
    _exit(1);
}

static int is_clean(void)
{
    return standin_live_modules() == 0 && standin_live_allocations() == 0 &&
           standin_live_contexts() == 0 && standin_depth() == 0;
}

static void unload_all(const char *what, int nth)
{
    int device;
    for (device = 0; device < DEVICES; device++) {
        if (demo_unload(device) != OPFORGE_OK) {
            wrong(what, nth, demo_last_error());
        }
    }
    if (!is_clean()) {
        wrong(what, nth, "something is left after unload");
    }
}

static OpforgeStatus make_again(Call *call)
{
    reset_memory(call);
    call->launched = 0;
    now_calls(call);
    return call->op->call(call);
}

/* A driver may not know an attribute, and says so with error 1. */
static int may_succeed(int nth, int result)
{
    return result == 1 && nth <= standin_call_count() &&
           strstr(standin_call(nth - 1), "DeviceGetAttribute") != NULL;
}

/* `PREFIXcu...`, or `PREFIXhip...`. */
static int begins_with_call(const char *text, const char *prefix)
{
    const char *name = is_amd() ? "hip" : "cu";
    return strncmp(text, prefix, strlen(prefix)) == 0 &&
           strncmp(text + strlen(prefix), name, strlen(name)) == 0;
}

/* What went wrong before the launches is not to be blamed on the next call. */
static void check_failure(Call *call, int nth, int result, OpforgeStatus status)
{
    const char *name = nth <= standin_call_count() ? standin_call(nth - 1) : "";
    char called[64];
    snprintf(called, sizeof called, "%s", name);
    if (strstr(called, "_v2") != NULL) {
        *strstr(called, "_v2") = 0;
    }
    if (status == OPFORGE_OK && !may_succeed(nth, result)) {
        found(call, "call %d, %s, failed with %d, but the status is OK", nth, name, result);
    }
    if (status != OPFORGE_OK && strstr(demo_last_error(), called) == NULL) {
        found(call, "call %d, %s, failed with %d, but the text says %s", nth, name, result,
              demo_last_error());
    }
    if (standin_live_allocations() != 0 || standin_depth() != 0) {
        found(call, "call %d, %s, failed with %d and left %d allocations and %d contexts", nth,
              name, result, standin_live_allocations(), standin_depth());
    }
}

static void fail_each_call(Call *call, int is_lasting)
{
    static const int results[] = {1, 2, 100, 201, 719, 999};
    OpforgeStatus status = make_again(call);
    int count;
    int i;
    if (status != OPFORGE_OK) {
        return;
    }
    check_result(call, status);
    unload_all(call->op->name, 0);
    standin_forget_calls();
    make_again(call);
    count = standin_call_count();
    for (i = 1; i <= count; i++) {
        const int result = results[(unsigned)(i + is_lasting) % 6];
        unload_all(call->op->name, i);
        standin_forget_calls();
        if (is_lasting) {
            standin_fail_from(i, result);
        } else {
            standin_fail(i, NULL, result);
        }
        status = make_again(call);
        standin_fail(0, NULL, 0);
        faults++;
        check_failure(call, i, result, status);
        status = make_again(call);
        if (status != OPFORGE_OK) {
            found(call, "after call %d had failed: %s", i, demo_last_error());
        }
        check_result(call, status);
    }
    unload_all(call->op->name, count);
}

/* Describing outputs asks the device, for some operators. */
static void fail_each_description(Call *call)
{
    int64_t numbers[2 * MAX_OUTPUTS][MAX_RANK];
    OpforgeTensor filled[MAX_OUTPUTS];
    OpforgeTensor *outputs[MAX_OUTPUTS];
    int count;
    int i;
    int o;
    if (call->op->describe == NULL) {
        return;
    }
    memset(filled, 0, sizeof filled);
    for (o = 0; o < MAX_OUTPUTS; o++) {
        filled[o].shape = numbers[2 * o];
        filled[o].strides = numbers[2 * o + 1];
        outputs[o] = &filled[o];
    }
    unload_all(call->op->name, 0);
    standin_forget_calls();
    if (call->op->describe(call, outputs) != OPFORGE_OK) {
        return;
    }
    count = standin_call_count();
    for (i = 1; i <= count; i++) {
        unload_all(call->op->name, i);
        standin_forget_calls();
        standin_fail(i, NULL, 719);
        if (call->op->describe(call, outputs) == OPFORGE_OK) {
            found(call, "call %d of a description failed, but the status is OK", i);
        }
        standin_fail(0, NULL, 0);
        if (call->op->describe(call, outputs) != OPFORGE_OK) {
            found(call, "a description after call %d had failed: %s", i, demo_last_error());
        }
    }
    unload_all(call->op->name, count);
}

static int calls_of(OpforgeStatus (*function)(int), int device)
{
    standin_forget_calls();
    if (function(device) != OPFORGE_OK) {
        wrong("load or unload", 0, demo_last_error());
    }
    return standin_call_count();
}

static void fail_each_load(int device, int is_lasting)
{
    const int loading = calls_of(demo_load, device);
    const int unloading = calls_of(demo_unload, device);
    int i;
    for (i = 1; i <= loading; i++) {
        OpforgeStatus status;
        if (is_lasting) {
            standin_fail_from(i, 719);
        } else {
            standin_fail(i, NULL, 719);
        }
        status = demo_load(device);
        standin_fail(0, NULL, 0);
        if (status == OPFORGE_OK || !begins_with_call(demo_last_error(), "demo_load: ")) {
            wrong("load", i, demo_last_error());
        }
        if (demo_load(device) != OPFORGE_OK) {
            wrong("load again", i, demo_last_error());
        }
        unload_all("load", i);
    }
    for (i = 1; i <= unloading; i++) {
        OpforgeStatus status;
        if (demo_load(device) != OPFORGE_OK) {
            wrong("load before an unload", i, demo_last_error());
        }
        if (is_lasting) {
            standin_fail_from(i, 719);
        } else {
            standin_fail(i, NULL, 719);
        }
        status = demo_unload(device);
        standin_fail(0, NULL, 0);
        if (status == OPFORGE_OK || !begins_with_call(demo_last_error(), "demo_unload: ")) {
            wrong("unload", i, demo_last_error());
        }
        /* Whatever is still there can be used, or given back. */
        if (i % 2 == 0 && demo_load(device) != OPFORGE_OK) {
            wrong("load after an unload that failed", i, demo_last_error());
        }
        unload_all("unload", i);
    }
}

typedef struct {
    int fail_at;
    int is_misplaced;
    int live;
} Pool;

static void *take(void *context, size_t bytes, size_t alignment, int device, void *stream)
{
    Pool *pool = (Pool *)context;
    void *memory = NULL;
    (void)device;
    (void)stream;
    if (fails_now(&pool->fail_at)) {
        if (!pool->is_misplaced) {
            return NULL;
        }
        pool->live++;
        return (char *)malloc(bytes + 16) + 1;
    }
    if (posix_memalign(&memory, alignment, bytes) != 0) {
        return NULL;
    }
    pool->live++;
    return memory;
}

static void give(void *context, void *pointer, size_t bytes, int device, void *stream)
{
    Pool *pool = (Pool *)context;
    (void)bytes;
    (void)device;
    (void)stream;
    pool->live--;
    /* A misplaced one begins one byte behind its memory. */
    free((char *)pointer - ((uintptr_t)pointer & 1));
}

static void fail_each_allocation(Call *call)
{
    Pool pool = {0, 0, 0};
    int i;
    demo_set_allocator(take, give, &pool);
    for (i = 1; i <= 6; i++) {
        OpforgeStatus status;
        const int was = pool.fail_at = (i + 1) / 2;
        pool.is_misplaced = i % 2;
        status = make_again(call);
        if (pool.fail_at == 0 ? status != OPFORGE_OUT_OF_MEMORY || call->launched > was
                              : status != OPFORGE_OK) {
            found(call, "allocation %d failed: status %d", was, (int)status);
        }
        if (pool.live != 0 || standin_live_allocations() != 0) {
            found(call, "allocation %d failed, and %d are left", was, pool.live);
        }
        pool.fail_at = 0;
        check_result(call, make_again(call));
    }
    demo_set_allocator(NULL, NULL, NULL);
    unload_all(call->op->name, 0);
}

/* Runs in a process of its own, because the driver is opened once; returns its exit status. */
static int apart(int (*function)(int, uint64_t), int number, uint64_t seed)
{
    const pid_t child = fork();
    int ended = 0;
    if (child == 0) {
        const int result = function(number, seed);
        fflush(stdout);
        _exit(result);
    }
    if (child < 0 || waitpid(child, &ended, 0) != child || !WIFEXITED(ended)) {
        wrong("a child", number, "it did not end as it should");
    }
    return WEXITSTATUS(ended);
}

static int lack_nth_function(int nth, uint64_t seed)
{
    OpforgeStatus status;
    const char *text;
    (void)seed;
    failing_dlsym = nth;
    status = demo_load(1);
    if (failing_dlsym > 0) {
        return LAST;
    }
    text = is_amd() ? "libamdhip64.so has no hip" : "libcuda.so.1 has no cu";
    if (status != OPFORGE_OK &&
        (status != OPFORGE_NO_DRIVER || strstr(demo_last_error(), text) == NULL)) {
        wrong("dlsym", nth, demo_last_error());
    }
    if (demo_load(1) != OPFORGE_OK && status != OPFORGE_OK) {
        wrong("dlsym", nth, demo_last_error());
    }
    return 0;
}

static int lack_optional_function(int which, uint64_t seed)
{
    static const char *const names[2][3] = {
        {"cuLaunchKernelEx", "cuMemAllocAsync", "cuMemFreeAsync"},
        {"hipDrvLaunchKernelEx", "hipMallocAsync", "hipFreeAsync"},
    };
    uint64_t round;
    missing = names[is_amd()][which];
    for (round = 0; round < 24; round++) {
        Call call;
        OpforgeStatus status;
        prepare(&call, seed, round, (int)(round % (uint64_t)op_count), 0);
        judge_call(&call, &status);
        status = make_again(&call);
        if (status == OPFORGE_NO_DRIVER &&
            strstr(demo_last_error(),
                   is_amd() ? "the driver has no hip" : "the driver has no cu") == NULL) {
            found(&call, "without %s: %s", missing, demo_last_error());
        }
        if (standin_live_allocations() != 0 || standin_depth() != 0) {
            found(&call, "without %s: something is left", missing);
        }
        release(&call);
    }
    return 0;
}

/* Before anything has worked: no library, one of its functions missing, an init that fails. */
static void fail_each_opening(uint64_t seed)
{
    int ended = 0;
    int i;
    for (i = 1; ended == 0; i++) {
        ended = apart(lack_nth_function, i, seed);
    }
    if (ended != LAST || i < 20) {
        wrong("dlsym", i, "the child failed");
    }
    for (i = 0; i < 3; i++) {
        if (apart(lack_optional_function, i, seed) != 0) {
            wrong("an optional function", i, "the child failed");
        }
    }
    has_no_library = 1;
    if (demo_load(0) != OPFORGE_NO_DRIVER) {
        wrong("dlopen", 1, demo_last_error());
    }
    has_no_library = 0;
    standin_fail(1, is_amd() ? "hipInit" : "cuInit", 100);
    if (demo_load(0) != OPFORGE_NO_DRIVER) {
        wrong("init", 1, demo_last_error());
    }
    standin_fail(0, NULL, 0);
    for (i = 1; i <= 2; i++) {
        failing_calloc = i;
        if (demo_load(0) != OPFORGE_OUT_OF_MEMORY) {
            wrong("calloc", i, demo_last_error());
        }
        failing_calloc = 0;
    }
    unload_all("open", 0);
}

int main(int argc, char **argv)
{
    uint64_t seed;
    uint64_t rounds;
    uint64_t round;
    int i;
    if (argc != 3) {
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    rounds = strtoull(argv[2], NULL, 10);
    say_where_at_death();
    set_up_devices();
    fail_each_opening(seed);
    for (i = 0; i < 2; i++) {
        fail_each_load(0, i);
        fail_each_load(1, i);
    }
    for (round = 0; round < rounds; round++) {
        Call call;
        OpforgeStatus ignored;
        prepare(&call, seed, round, (int)(round % (uint64_t)op_count), 0);
        if (judge_call(&call, &ignored) == ACCEPTED) {
            fail_each_call(&call, (int)(round / (uint64_t)op_count % 2));
            fail_each_description(&call);
            judge_call(&call, &ignored);
            fail_each_allocation(&call);
        }
        release(&call);
    }
    printf("%lu faults\n", faults);
    return 0;
}
