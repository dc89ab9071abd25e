/* Calls an op through every failure of the driver and from many threads; for sanitizers. */
#define _POSIX_C_SOURCE 200809L
#include <demo.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

void standin_devices(int count);
void standin_fail(int nth, const char *name, int result);
int standin_live_modules(void);
int standin_live_allocations(void);
int standin_live_contexts(void);

#define ROWS 3
#define THREADS 8
#define ROUNDS 100

typedef struct {
    float x[ROWS][8], bias[8], state[ROWS], out[ROWS][8];
    double stats[ROWS];
    int64_t rows[2], hidden[1];
    OpforgeTensor tensors[5];
} Call;

static OpforgeTensor tensor(void *data, int bits, int ndim, int64_t *shape, int device)
{
    OpforgeTensor made;
    memset(&made, 0, sizeof made);
    made.data = data;
    made.device.device_type = DEVICE_TYPE;
    made.device.device_id = device;
    made.ndim = ndim;
    made.dtype.code = 2;
    made.dtype.bits = (uint8_t)bits;
    made.dtype.lanes = 1;
    made.shape = shape;
    return made;
}

static void set_up(Call *call, int device)
{
    memset(call, 0, sizeof *call);
    call->rows[0] = ROWS;
    call->rows[1] = 8;
    call->hidden[0] = 8;
    call->tensors[0] = tensor(call->x, 32, 2, call->rows, device);
    call->tensors[1] = tensor(call->bias, 32, 1, call->hidden, device);
    call->tensors[2] = tensor(call->state, 32, 1, call->rows, device);
    call->tensors[3] = tensor(call->out, 32, 2, call->rows, device);
    call->tensors[4] = tensor(call->stats, 64, 1, call->rows, device);
}

static OpforgeStatus make(Call *call)
{
    OpforgeTensor *t = call->tensors;
    return demo_everything(&t[0], &t[1], &t[2], 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1,
                           DEMO_EVERYTHING_MODE_RELU, &t[3], &t[4], NULL);
}

static OpforgeStatus make_with(int index, Call *call)
{
    OpforgeTensor *t = call->tensors;
    return demo_everything_with(index, &t[0], &t[1], &t[2], 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1,
                                DEMO_EVERYTHING_MODE_RELU, &t[3], &t[4], NULL);
}

static int is_clean(void)
{
    return standin_live_modules() == 0 && standin_live_allocations() == 0 &&
           standin_live_contexts() == 0;
}

static int fail_each(void)
{
    Call call;
    int n;
    set_up(&call, 0);
    for (n = 1; n < 1000; n++) {
        OpforgeStatus status;
        standin_fail(n, NULL, 719);
        status = make(&call);
        standin_fail(0, NULL, 0);
        if (status != OPFORGE_OK && (demo_last_error()[0] == 0 || standin_live_allocations())) {
            return 1;
        }
        if (make(&call) != OPFORGE_OK || demo_unload(0) != OPFORGE_OK || !is_clean()) {
            printf("after %d: %s\n", n, demo_last_error());
            return 1;
        }
        if (status == OPFORGE_OK) {
            printf("%d calls failed\n", n - 1);
            return n < 20;
        }
    }
    return 1;
}

static int refuse(void)
{
    Call call;
    int64_t rows[2] = {2000, 8};
    int i;
    set_up(&call, 0);
    call.tensors[0].shape = rows;
    call.tensors[2].shape = rows;
    if (make(&call) != OPFORGE_UNCOVERED) {
        return 1;
    }
    for (i = 0; i < 5; i++) {
        set_up(&call, 0);
        call.tensors[i].ndim = 99;
        if (make(&call) != OPFORGE_INVALID_ARGUMENT) {
            return 1;
        }
        set_up(&call, 0);
        call.tensors[i].dtype.bits = 7;
        if (make(&call) != OPFORGE_INVALID_ARGUMENT) {
            return 1;
        }
    }
    return 0;
}

static int force(void)
{
    const OpforgeImplementation *list = NULL;
    Call call;
    int64_t rows[2] = {2000, 8};
    set_up(&call, 0);
    if (demo_everything_implementations(&list) != 1 || strcmp(list[0].name, "everything") != 0) {
        return 1;
    }
    if (make_with(0, &call) != OPFORGE_OK || make_with(1, &call) != OPFORGE_INVALID_ARGUMENT) {
        return 1;
    }
    call.tensors[0].shape = rows;
    call.tensors[2].shape = rows;
    return make_with(0, &call) != OPFORGE_UNCOVERED ||
           strstr(demo_last_error(), "implementation 0 (everything): nothing was") == NULL;
}

static void *work(void *number)
{
    Call call;
    int i;
    const int device = (int)((intptr_t)number % 2);
    for (i = 0; i < 50; i++) {
        set_up(&call, device);
        if (make(&call) != OPFORGE_OK) {
            return number;
        }
        call.tensors[3].ndim = 1;
        if (make(&call) != OPFORGE_INVALID_ARGUMENT || !strstr(demo_last_error(), "out")) {
            return number;
        }
    }
    return NULL;
}

static int call_from_threads(void)
{
    pthread_t threads[THREADS];
    int failed = 0;
    intptr_t i;
    standin_devices(2);
    for (i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, work, (void *)(i + 2));
    }
    for (i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        failed |= result != NULL;
    }
    return failed | (demo_unload(0) != OPFORGE_OK) | (demo_unload(1) != OPFORGE_OK) | !is_clean();
}

static pthread_barrier_t barrier;

static void *unload(void *number)
{
    void *failed = NULL;
    int i;
    for (i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&barrier);
        if (demo_unload(0) != OPFORGE_OK) {
            failed = number;
        }
        pthread_barrier_wait(&barrier);
    }
    return failed;
}

/* All at once; the first closes the device. */
static int unload_from_threads(void)
{
    pthread_t threads[THREADS];
    Call call;
    int failed = 0;
    intptr_t i;
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, unload, (void *)(i + 1));
    }
    for (i = 0; i < ROUNDS; i++) {
        set_up(&call, 0);
        failed |= make(&call) != OPFORGE_OK;
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        failed |= !is_clean();
    }
    for (i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        failed |= result != NULL;
    }
    pthread_barrier_destroy(&barrier);
    return failed;
}

static void *load_and_unload(void *number)
{
    int i;
    for (i = 0; i < ROUNDS; i++) {
        const int is_load = ((intptr_t)number + i) % 2 == 0;
        if ((is_load ? demo_load(0) : demo_unload(0)) != OPFORGE_OK) {
            return number;
        }
    }
    return NULL;
}

/* No device is closed while its kernels are loaded. */
static int load_and_unload_from_threads(void)
{
    pthread_t threads[THREADS];
    int failed = 0;
    intptr_t i;
    for (i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, load_and_unload, (void *)(i + 1));
    }
    for (i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        failed |= result != NULL;
    }
    return failed | (demo_unload(0) != OPFORGE_OK) | !is_clean();
}

int main(void)
{
    if (fail_each()) {
        return 1;
    }
    if (refuse() || force()) {
        printf("%s\n", demo_last_error());
        return 2;
    }
    if (demo_unload(0) != OPFORGE_OK || call_from_threads()) {
        printf("%s\n", demo_last_error());
        return 3;
    }
    if (unload_from_threads()) {
        printf("unload: %s\n", demo_last_error());
        return 4;
    }
    if (load_and_unload_from_threads()) {
        printf("load and unload: %s\n", demo_last_error());
        return 5;
    }
    return 0;
}
