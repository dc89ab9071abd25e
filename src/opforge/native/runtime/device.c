/* Devices: their primary contexts and their attributes. */
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>

#define MAX_DEVICES 64

/* The streams that belong to no context: legacy default and per-thread default. */
#define LAST_SPECIAL_STREAM 2

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Device *devices[MAX_DEVICES];

/* The CUdevice_attribute of each OF_DEVICE_... */
static const int cuda_attributes[] = {
#define OF_ATTRIBUTE(name, cuda) cuda,
#include "device_attributes.inc"
#undef OF_ATTRIBUTE
};

void of_lock(void)
{
    pthread_mutex_lock(&lock);
}

void of_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* What the driver did not answer is asked again when it is needed. */
#define UNKNOWN INT64_MIN

/* Grids are made of this one: with 0 a call would launch nothing and answer OK. */
static int is_answer(int attribute, int value)
{
    return attribute != OF_DEVICE_MULTI_PROCESSOR_COUNT || value > 0;
}

OpforgeStatus of_attribute(Device *device, int attribute, int64_t *value)
{
    int answer = 0;
    int error;
    *value = __atomic_load_n(&device->attributes[attribute], __ATOMIC_RELAXED);
    if (*value != UNKNOWN) {
        return OPFORGE_OK;
    }
    error = of_driver.cuDeviceGetAttribute(&answer, cuda_attributes[attribute], device->handle);
    if (error != OF_CUDA_SUCCESS) {
        const OpforgeStatus status = of_cuda_failed(error, "cuDeviceGetAttribute");
        of_more(" (attribute %d)", cuda_attributes[attribute]);
        return status;
    }
    if (!is_answer(attribute, answer)) {
        return of_fail(OPFORGE_CUDA_ERROR, "device %d has %d multiprocessors, says the driver",
                       device->ordinal, answer);
    }
    *value = answer;
    __atomic_store_n(&device->attributes[attribute], *value, __ATOMIC_RELAXED);
    return OPFORGE_OK;
}

static OpforgeStatus ask(Device *device)
{
    int i;
    for (i = 0; i < OF_DEVICE_ATTRIBUTES; i++) {
        int value = 0;
        const int error =
            of_driver.cuDeviceGetAttribute(&value, cuda_attributes[i], device->handle);
        /* A driver or a board may not know all of them, and most operators ask for none. */
        const int may_fail = error == OF_CUDA_ERROR_INVALID_VALUE && i != OF_DEVICE_MAJOR &&
                             i != OF_DEVICE_MINOR;
        if (error != OF_CUDA_SUCCESS && !may_fail) {
            return of_cuda_failed(error, "cuDeviceGetAttribute");
        }
        device->attributes[i] = error == OF_CUDA_SUCCESS && is_answer(i, value) ? value : UNKNOWN;
    }
    device->arch =
        (int)(device->attributes[OF_DEVICE_MAJOR] * 10 + device->attributes[OF_DEVICE_MINOR]);
    device->attributes[OF_DEVICE_MAJOR] = of_counts_as(device->arch) / 10;
    device->attributes[OF_DEVICE_MINOR] = of_counts_as(device->arch) % 10;
    return OPFORGE_OK;
}

static OpforgeStatus open_device(int ordinal, Device *device)
{
    OpforgeStatus status;
    int count = 0;
    int error = of_driver.cuDeviceGetCount(&count);
    if (error != OF_CUDA_SUCCESS) {
        return of_cuda_failed(error, "cuDeviceGetCount");
    }
    if (ordinal < 0 || ordinal >= count || ordinal >= MAX_DEVICES) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "device %d does not exist; the driver has %d",
                       ordinal, count);
    }
    device->ordinal = ordinal;
    error = of_driver.cuDeviceGet(&device->handle, ordinal);
    if (error != OF_CUDA_SUCCESS) {
        return of_cuda_failed(error, "cuDeviceGet");
    }
    status = ask(device);
    if (status != OPFORGE_OK) {
        return status;
    }
    error = of_driver.cuDevicePrimaryCtxRetain(&device->context, device->handle);
    if (error != OF_CUDA_SUCCESS) {
        return of_cuda_failed(error, "cuDevicePrimaryCtxRetain");
    }
    return OPFORGE_OK;
}

static OpforgeStatus add_device(int ordinal, Device **added)
{
    OpforgeStatus status = of_open_driver();
    Device *device;
    if (status != OPFORGE_OK) {
        return status;
    }
    device = (Device *)calloc(1, sizeof *device);
    if (device != NULL) {
        /* One more, because calloc of nothing may return NULL. */
        device->kernels = (Loaded *)calloc((size_t)of_kernel_count + 1, sizeof *device->kernels);
    }
    if (device == NULL || device->kernels == NULL) {
        free(device);
        return of_fail(OPFORGE_OUT_OF_MEMORY, "out of host memory for the state of device %d",
                       ordinal);
    }
    status = open_device(ordinal, device);
    if (status != OPFORGE_OK) {
        free(device->kernels);
        free(device);
        return status;
    }
    __atomic_store_n(&devices[ordinal], device, __ATOMIC_RELEASE);
    *added = device;
    return OPFORGE_OK;
}

OpforgeStatus of_device(int ordinal, Device **device)
{
    OpforgeStatus status = OPFORGE_OK;
    *device = of_open_device(ordinal);
    if (*device != NULL) {
        return OPFORGE_OK;
    }
    of_lock();
    /* Another thread may have been faster. */
    *device = of_open_device(ordinal);
    if (*device == NULL) {
        status = add_device(ordinal, device);
    }
    of_unlock();
    return status;
}

/* NULL for a device that is not open. */
Device *of_open_device(int ordinal)
{
    if (ordinal < 0 || ordinal >= MAX_DEVICES) {
        return NULL;
    }
    return __atomic_load_n(&devices[ordinal], __ATOMIC_ACQUIRE);
}

/* Under the lock, after its modules are unloaded. A later call opens the device again. */
OpforgeStatus of_close_device(Device *device)
{
    const int error = of_driver.cuDevicePrimaryCtxRelease(device->handle);
    if (error != OF_CUDA_SUCCESS) {
        return of_cuda_failed(error, "cuDevicePrimaryCtxRelease");
    }
    __atomic_store_n(&devices[device->ordinal], (Device *)NULL, __ATOMIC_RELEASE);
    free(device->kernels);
    free(device);
    return OPFORGE_OK;
}

static OpforgeStatus wrong_stream(const Device *device, void *context)
{
    int other = -1;
    void *popped = NULL;
    if (of_driver.cuCtxPushCurrent(context) == OF_CUDA_SUCCESS) {
        if (of_driver.cuCtxGetDevice(&other) != OF_CUDA_SUCCESS) {
            other = -1;
        }
        of_driver.cuCtxPopCurrent(&popped);
    }
    if (other == device->handle) {
        return of_fail(OPFORGE_INVALID_ARGUMENT,
                       "stream: belongs to a context of device %d that is not its primary one",
                       device->ordinal);
    }
    return of_fail(OPFORGE_INVALID_ARGUMENT,
                   "stream: belongs to device %d, but the tensors are on device %d", other,
                   device->ordinal);
}

OpforgeStatus of_enter(int ordinal, void *stream, Scope *scope)
{
    void *current = NULL;
    OpforgeStatus status = of_device(ordinal, &scope->device);
    int error;
    if (status != OPFORGE_OK) {
        return status;
    }
    scope->stream = stream;
    scope->pushed = 0;
    if ((uintptr_t)stream > LAST_SPECIAL_STREAM) {
        void *context = NULL;
        error = of_driver.cuStreamGetCtx(stream, &context);
        if (error != OF_CUDA_SUCCESS) {
            return of_cuda_failed(error, "cuStreamGetCtx");
        }
        if (context != scope->device->context) {
            return wrong_stream(scope->device, context);
        }
    }
    error = of_driver.cuCtxGetCurrent(&current);
    if (error != OF_CUDA_SUCCESS) {
        return of_cuda_failed(error, "cuCtxGetCurrent");
    }
    if (current != scope->device->context) {
        error = of_driver.cuCtxPushCurrent(scope->device->context);
        if (error != OF_CUDA_SUCCESS) {
            return of_cuda_failed(error, "cuCtxPushCurrent");
        }
        scope->pushed = 1;
    }
    return OPFORGE_OK;
}

/* The first failure is the one that is reported. */
OpforgeStatus of_leave(Scope *scope, OpforgeStatus status)
{
    void *popped = NULL;
    int error;
    if (!scope->pushed) {
        return status;
    }
    error = of_driver.cuCtxPopCurrent(&popped);
    if (error != OF_CUDA_SUCCESS && status == OPFORGE_OK) {
        return of_cuda_failed(error, "cuCtxPopCurrent");
    }
    return status;
}
