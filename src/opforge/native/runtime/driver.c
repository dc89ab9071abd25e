/* Opens libcuda and puts its errors into words. */
#include "runtime.h"

#include <dlfcn.h>
#include <string.h>

Driver of_driver;

typedef struct {
    const char *symbol;
    size_t offset;
    int optional;
} Symbol;

#define NEEDED(field, symbol) {symbol, offsetof(Driver, field), 0}
#define OPTIONAL(field, symbol) {symbol, offsetof(Driver, field), 1}

static const Symbol symbols[] = {
    NEEDED(cuInit, "cuInit"),
    NEEDED(cuDeviceGetCount, "cuDeviceGetCount"),
    NEEDED(cuDeviceGet, "cuDeviceGet"),
    NEEDED(cuDeviceGetAttribute, "cuDeviceGetAttribute"),
    NEEDED(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain"),
    NEEDED(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2"),
    NEEDED(cuCtxGetCurrent, "cuCtxGetCurrent"),
    NEEDED(cuCtxPushCurrent, "cuCtxPushCurrent_v2"),
    NEEDED(cuCtxPopCurrent, "cuCtxPopCurrent_v2"),
    NEEDED(cuCtxGetDevice, "cuCtxGetDevice"),
    NEEDED(cuStreamGetCtx, "cuStreamGetCtx"),
    NEEDED(cuModuleLoadData, "cuModuleLoadData"),
    NEEDED(cuModuleUnload, "cuModuleUnload"),
    NEEDED(cuModuleGetFunction, "cuModuleGetFunction"),
    NEEDED(cuFuncSetAttribute, "cuFuncSetAttribute"),
    NEEDED(cuFuncSetCacheConfig, "cuFuncSetCacheConfig"),
    NEEDED(cuLaunchKernel, "cuLaunchKernel"),
    OPTIONAL(cuLaunchKernelEx, "cuLaunchKernelEx"),
    OPTIONAL(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled"),
    OPTIONAL(cuGraphCreate, "cuGraphCreate"),
    OPTIONAL(cuGraphDestroy, "cuGraphDestroy"),
    OPTIONAL(cuGraphAddKernelNode, "cuGraphAddKernelNode_v2"),
    OPTIONAL(cuGraphInstantiate, "cuGraphInstantiateWithFlags"),
    OPTIONAL(cuGraphExecKernelNodeSetParams, "cuGraphExecKernelNodeSetParams_v2"),
    OPTIONAL(cuGraphLaunch, "cuGraphLaunch"),
    OPTIONAL(cuGraphExecDestroy, "cuGraphExecDestroy"),
    OPTIONAL(cuStreamIsCapturing, "cuStreamIsCapturing"),
    OPTIONAL(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode"),
    OPTIONAL(cuMemAllocAsync, "cuMemAllocAsync"),
    OPTIONAL(cuMemFreeAsync, "cuMemFreeAsync"),
    NEEDED(cuMemsetD8Async, "cuMemsetD8Async"),
    NEEDED(cuMemsetD16Async, "cuMemsetD16Async"),
    NEEDED(cuMemsetD32Async, "cuMemsetD32Async"),
    NEEDED(cuMemsetD2D32Async, "cuMemsetD2D32Async"),
    NEEDED(cuGetErrorName, "cuGetErrorName"),
    NEEDED(cuGetErrorString, "cuGetErrorString"),
};

static OpforgeStatus find_symbols(void *handle)
{
    size_t i;
    for (i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(handle, symbols[i].symbol);
        if (found == NULL && !symbols[i].optional) {
            return of_fail(OPFORGE_NO_DRIVER,
                           "libcuda.so.1 has no %s; install a newer NVIDIA driver",
                           symbols[i].symbol);
        }
        /* ISO C has no cast from a pointer to an object to one to a function. */
        memcpy((char *)&of_driver + symbols[i].offset, &found, sizeof found);
    }
    return OPFORGE_OK;
}

/* Called under the runtime's lock. A failure is not kept: a later call tries again. */
OpforgeStatus of_open_driver(void)
{
    static void *handle = NULL;
    static int is_ready = 0;
    OpforgeStatus status;
    int error;
    if (is_ready) {
        return OPFORGE_OK;
    }
    if (handle == NULL) {
        void *opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (opened == NULL) {
            const char *why = dlerror();
            return of_fail(OPFORGE_NO_DRIVER, "no CUDA driver: %s", why ? why : "libcuda.so.1");
        }
        status = find_symbols(opened);
        if (status != OPFORGE_OK) {
            dlclose(opened);
            return status;
        }
        handle = opened;
    }
    error = of_driver.cuInit(0);
    if (error != OF_CUDA_SUCCESS) {
        return of_cuda_failed(error, "cuInit");
    }
    is_ready = 1;
    return OPFORGE_OK;
}

OpforgeStatus of_cuda_failed(int error, const char *call)
{
    const char *name = NULL;
    const char *text = NULL;
    OpforgeStatus status = OPFORGE_CUDA_ERROR;
    of_driver.cuGetErrorName(error, &name);
    of_driver.cuGetErrorString(error, &text);
    if (error == OF_CUDA_ERROR_OUT_OF_MEMORY) {
        status = OPFORGE_OUT_OF_MEMORY;
    } else if (error == OF_CUDA_ERROR_NO_DEVICE) {
        status = OPFORGE_NO_DRIVER;
    }
    return of_fail(status, "%s: %s (%d): %s", call, name ? name : "unknown error", error,
                   text ? text : "the driver has no text for it");
}
