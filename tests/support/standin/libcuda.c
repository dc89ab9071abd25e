/* A stand-in for the CUDA driver that runs on host memory.
 *
 * It implements the calls that opforge's libraries use, and is as strict as the driver about
 * contexts.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define MAX_DEPTH 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread Context *stack[MAX_DEPTH];
static __thread int depth;

Context *standin_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

/* How many contexts this thread has pushed and not popped. */
int standin_depth(void)
{
    return depth;
}

/* As cudaSetDevice does. */
void standin_set_current(int device)
{
    standin_set_up();
    depth = device >= 0;
    if (device >= 0) {
        stack[0] = &standin_device[device].primary;
    }
}

int cuInit(unsigned int flags)
{
    const int failure = standin_enter("cuInit");
    (void)flags;
    if (failure) {
        return failure;
    }
    return standin_initialize();
}

int cuDeviceGetCount(int *count)
{
    const int failure = standin_enter("cuDeviceGetCount");
    *count = standin_device_count;
    return failure;
}

int cuDeviceGet(int *device, int ordinal)
{
    const int failure = standin_enter("cuDeviceGet");
    *device = ordinal;
    return failure                                          ? failure
           : ordinal >= 0 && ordinal < standin_device_count ? SUCCESS
                                                            : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    const int failure = standin_enter("cuDeviceGetAttribute");
    if (failure) {
        return failure;
    }
    if (attribute < 0 || attribute >= MAX_ATTRIBUTES) {
        return INVALID_VALUE;
    }
    *value = standin_device[device].attributes[attribute];
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    const int failure = standin_enter("cuDeviceTotalMem_v2");
    (void)device;
    *bytes = (size_t)80 << 30;
    return failure;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    const int failure = standin_enter("cuDevicePrimaryCtxRetain");
    if (failure) {
        return failure;
    }
    pthread_mutex_lock(&lock);
    standin_device[device].retained++;
    pthread_mutex_unlock(&lock);
    *context = &standin_device[device].primary;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    const int failure = standin_enter("cuDevicePrimaryCtxRelease_v2");
    int result = SUCCESS;
    if (failure) {
        return failure;
    }
    pthread_mutex_lock(&lock);
    if (standin_device[device].retained > 0) {
        standin_device[device].retained--;
    } else {
        result = INVALID_CONTEXT;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int cuCtxGetCurrent(void **context)
{
    const int failure = standin_enter("cuCtxGetCurrent");
    *context = standin_current();
    return failure;
}

int cuCtxPushCurrent_v2(void *context)
{
    const int failure = standin_enter("cuCtxPushCurrent_v2");
    if (failure) {
        return failure;
    }
    if (context == NULL || depth == MAX_DEPTH) {
        return INVALID_CONTEXT;
    }
    stack[depth++] = (Context *)context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context)
{
    const int failure = standin_enter("cuCtxPopCurrent_v2");
    if (depth == 0) {
        return INVALID_CONTEXT;
    }
    /* Popped even where it fails: a pop has no failure that leaves the context there. */
    *context = stack[--depth];
    return failure;
}

int cuCtxGetDevice(int *device)
{
    const int failure = standin_enter("cuCtxGetDevice");
    if (failure) {
        return failure;
    }
    if (standin_current() == NULL) {
        return INVALID_CONTEXT;
    }
    *device = standin_current()->device;
    return SUCCESS;
}

int cuStreamGetCtx(void *stream, void **context)
{
    const int failure = standin_enter("cuStreamGetCtx");
    if (failure) {
        return failure;
    }
    if ((uintptr_t)stream <= 2) {
        *context = standin_current();
        return standin_current() == NULL ? INVALID_CONTEXT : SUCCESS;
    }
    *context = ((Stream *)stream)->context;
    return SUCCESS;
}

int cuModuleLoadData(void **module, const void *image)
{
    const int failure = standin_enter("cuModuleLoadData");
    Context *context = standin_current();
    if (failure) {
        return failure;
    }
    if (context == NULL || standin_device[context->device].retained == 0) {
        return INVALID_CONTEXT;
    }
    if (memcmp(image, "\177ELF", 4) != 0 && memcmp(image, "//", 2) != 0 &&
        memcmp(image, ".version", 8) != 0) {
        return INVALID_IMAGE;
    }
    *module = standin_load(context, image);
    return SUCCESS;
}

int cuModuleUnload(void *module)
{
    const int failure = standin_enter("cuModuleUnload");
    if (failure) {
        return failure;
    }
    if (standin_current() != ((Module *)module)->context) {
        return INVALID_CONTEXT;
    }
    standin_unload((Module *)module);
    return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    const int failure = standin_enter("cuModuleGetFunction");
    return failure ? failure : standin_find(function, (Module *)module, name, 49152);
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    const int failure = standin_enter("cuFuncSetAttribute");
    Function *changed = (Function *)function;
    if (failure) {
        return failure;
    }
    if (attribute == 8) {
        if (value > standin_device[changed->module->context->device].attributes[97]) {
            return INVALID_VALUE;
        }
        changed->max_shared = value;
    } else if (attribute == 14) {
        changed->non_portable = value;
    }
    return SUCCESS;
}

int cuFuncSetCacheConfig(void *function, int config)
{
    const int failure = standin_enter("cuFuncSetCacheConfig");
    (void)function;
    (void)config;
    return failure;
}

int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                   unsigned int shared, void *stream, void **parameters, void **extra)
{
    const int failure = standin_enter("cuLaunchKernel");
    const unsigned int grid[] = {grid_x, grid_y, grid_z};
    const unsigned int block[] = {block_x, block_y, block_z};
    LaunchRecord record = standin_record(grid, block, shared, stream, parameters);
    if (failure) {
        return failure;
    }
    return extra != NULL ? INVALID_VALUE : standin_launch(&record, function);
}

/* As cuda.h lays them out; written apart from the library's own declarations. */
typedef struct {
    int id;
    char pad[4];
    union {
        char pad[64];
        int cooperative;
        struct {
            unsigned int x;
            unsigned int y;
            unsigned int z;
        } cluster;
        int policy;
        int programmatic;
    } value;
} CUlaunchAttribute;

typedef struct {
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    void *hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

int cuLaunchKernelEx(const CUlaunchConfig *config, void *function, void **parameters, void **extra)
{
    const int failure = standin_enter("cuLaunchKernelEx");
    LaunchRecord record;
    unsigned int i;
    if (failure) {
        return failure;
    }
    (void)extra;
    memset(&record, 0, sizeof record);
    record.grid[0] = config->gridDimX;
    record.grid[1] = config->gridDimY;
    record.grid[2] = config->gridDimZ;
    record.block[0] = config->blockDimX;
    record.block[1] = config->blockDimY;
    record.block[2] = config->blockDimZ;
    record.shared = config->sharedMemBytes;
    record.stream = config->hStream;
    record.parameters = parameters;
    record.cluster = 1;
    record.has_attributes = 1;
    for (i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == 2) {
            record.cooperative = attribute->value.cooperative;
        } else if (attribute->id == 4) {
            record.cluster = attribute->value.cluster.x * attribute->value.cluster.y *
                             attribute->value.cluster.z;
        } else if (attribute->id == 5) {
            record.spread = attribute->value.policy;
        } else if (attribute->id == 6) {
            record.programmatic = attribute->value.programmatic;
        } else {
            return INVALID_VALUE;
        }
    }
    return standin_launch(&record, function);
}

int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream)
{
    const int failure = standin_enter("cuMemAllocAsync");
    (void)stream;
    return failure ? failure : standin_allocate(address, bytes);
}

int cuMemFreeAsync(uint64_t address, void *stream)
{
    const int failure = standin_enter("cuMemFreeAsync");
    /* Freed even where it fails: nobody could try again. */
    const int result = standin_release(address);
    (void)stream;
    return failure ? failure : result;
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    const int failure = standin_enter("cuPointerGetAttribute");
    return failure ? failure : standin_pointer(value, attribute, address);
}

int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream)
{
    (void)stream;
    return standin_fill("cuMemsetD8Async", address, &value, 1, 1, count);
}

int cuMemsetD16Async(uint64_t address, unsigned short value, size_t count, void *stream)
{
    (void)stream;
    return standin_fill("cuMemsetD16Async", address, &value, 2, 2, count);
}

int cuMemsetD32Async(uint64_t address, unsigned int value, size_t count, void *stream)
{
    (void)stream;
    return standin_fill("cuMemsetD32Async", address, &value, 4, 4, count);
}

/* The library's are one element wide. */
int cuMemsetD2D32Async(uint64_t address, size_t pitch, unsigned int value, size_t width,
                       size_t height, void *stream)
{
    (void)stream;
    return width != 1 ? INVALID_VALUE
                      : standin_fill("cuMemsetD2D32Async", address, &value, 4, pitch, height);
}

int cuGetErrorName(int error, const char **name)
{
    static __thread char text[32];
    switch (error) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    default: snprintf(text, sizeof text, "CUDA_ERROR_%d", error); *name = text;
    }
    return SUCCESS;
}

int cuGetErrorString(int error, const char **text)
{
    *text = error == INVALID_VALUE ? "invalid argument" : "an error of the stand-in";
    return SUCCESS;
}

/* What programs call, and the library does not. */

int cuDeviceGetName(char *name, int length, int device)
{
    const int failure = standin_enter("cuDeviceGetName");
    if (!failure) {
        snprintf(name, (size_t)length, "Stand-in %d", device);
    }
    return failure;
}

int cuCtxSetCurrent(void *context)
{
    const int failure = standin_enter("cuCtxSetCurrent");
    if (!failure) {
        depth = context != NULL;
        stack[0] = (Context *)context;
    }
    return failure;
}

int cuCtxSynchronize(void)
{
    const int failure = standin_enter("cuCtxSynchronize");
    return failure ? failure : standin_current() == NULL ? INVALID_CONTEXT : SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    const int failure = standin_enter("cuMemAlloc_v2");
    return failure ? failure : standin_allocate(address, bytes);
}

int cuMemFree_v2(uint64_t address)
{
    const int failure = standin_enter("cuMemFree_v2");
    return failure ? failure : standin_release(address);
}

static int copy(void *target, const void *source, size_t bytes)
{
    if (standin_current() == NULL) {
        return INVALID_CONTEXT;
    }
    memcpy(target, source, bytes);
    return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t bytes)
{
    const int failure = standin_enter("cuMemcpyHtoD_v2");
    return failure ? failure : copy((void *)(uintptr_t)target, source, bytes);
}

int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t bytes)
{
    const int failure = standin_enter("cuMemcpyDtoH_v2");
    return failure ? failure : copy(target, (const void *)(uintptr_t)source, bytes);
}
