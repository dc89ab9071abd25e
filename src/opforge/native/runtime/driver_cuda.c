/* libcuda, NVIDIA's driver. */
#include "runtime.h"

Driver of_cuda;

/* What only the adapters below use. */
static struct {
    int (*get_current)(void **context);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*context_device)(int *device);
    int (*stream_context)(void *stream, void **context);
    int (*fill_32_pitched)(uint64_t address, size_t pitch, unsigned int value, size_t width,
                           size_t height, void *stream);
} cuda;

static const char *const libraries[] = {"libcuda.so.1", NULL};

#define NEEDED(symbol, entry) {symbol, &(entry), 0}
#define OPTIONAL(symbol, entry) {symbol, &(entry), 1}

static const Symbol symbols[] = {
    NEEDED("cuInit", of_cuda.init),
    NEEDED("cuDeviceGetCount", of_cuda.device_count),
    NEEDED("cuDeviceGet", of_cuda.get_device),
    NEEDED("cuDeviceGetAttribute", of_cuda.attribute),
    NEEDED("cuDevicePrimaryCtxRetain", of_cuda.retain_context),
    NEEDED("cuDevicePrimaryCtxRelease_v2", of_cuda.release_context),
    NEEDED("cuCtxGetCurrent", cuda.get_current),
    NEEDED("cuCtxPushCurrent_v2", cuda.push),
    NEEDED("cuCtxPopCurrent_v2", cuda.pop),
    NEEDED("cuCtxGetDevice", cuda.context_device),
    NEEDED("cuStreamGetCtx", cuda.stream_context),
    NEEDED("cuModuleLoadData", of_cuda.load_module),
    NEEDED("cuModuleUnload", of_cuda.unload_module),
    NEEDED("cuModuleGetFunction", of_cuda.get_function),
    NEEDED("cuFuncSetAttribute", of_cuda.set_function),
    NEEDED("cuFuncSetCacheConfig", of_cuda.set_cache),
    NEEDED("cuLaunchKernel", of_cuda.launch),
    /* Missing before CUDA 11.8. */
    OPTIONAL("cuLaunchKernelEx", of_cuda.launch_with),
    /* Missing before CUDA 12.0. */
    OPTIONAL("cuTensorMapEncodeTiled", of_cuda.encode_map),
    OPTIONAL("cuGraphCreate", of_cuda.create_graph),
    OPTIONAL("cuGraphDestroy", of_cuda.destroy_graph),
    OPTIONAL("cuGraphAddKernelNode_v2", of_cuda.add_node),
    OPTIONAL("cuGraphInstantiateWithFlags", of_cuda.instantiate_graph),
    OPTIONAL("cuGraphExecKernelNodeSetParams_v2", of_cuda.set_node),
    OPTIONAL("cuGraphLaunch", of_cuda.launch_graph),
    OPTIONAL("cuGraphExecDestroy", of_cuda.destroy_executable),
    OPTIONAL("cuStreamIsCapturing", of_cuda.is_capturing),
    OPTIONAL("cuThreadExchangeStreamCaptureMode", of_cuda.exchange_capture_mode),
    /* Missing before CUDA 11.2. */
    OPTIONAL("cuMemAllocAsync", of_cuda.allocate),
    OPTIONAL("cuMemFreeAsync", of_cuda.release),
    NEEDED("cuMemsetD8Async", of_cuda.fill_8),
    NEEDED("cuMemsetD16Async", of_cuda.fill_16),
    NEEDED("cuMemsetD32Async", of_cuda.fill_32),
    NEEDED("cuMemsetD2D32Async", cuda.fill_32_pitched),
    OPTIONAL("cuPointerGetAttribute", of_cuda.pointer_attribute),
    NEEDED("cuGetErrorName", of_cuda.error_name),
    NEEDED("cuGetErrorString", of_cuda.error_text),
};

static OpforgeStatus failed(int error, const void *entry)
{
    return of_driver_failed(&of_cuda, error, entry);
}

static OpforgeStatus find_arch(Device *device)
{
    int64_t *major = &device->attributes[OF_DEVICE_MAJOR];
    int64_t *minor = &device->attributes[OF_DEVICE_MINOR];
    device->arch = (int)(*major * 10 + *minor);
    *major = of_counts_as(OF_NVIDIA, device->arch) / 10;
    *minor = of_counts_as(OF_NVIDIA, device->arch) % 10;
    return OPFORGE_OK;
}

/* A CUdevice is the ordinal of the device. */
static OpforgeStatus stream_device(void *stream, int *ordinal)
{
    void *context = NULL;
    void *popped = NULL;
    int error = cuda.stream_context(stream, &context);
    if (error != OF_DRIVER_SUCCESS) {
        return failed(error, &cuda.stream_context);
    }
    error = cuda.push(context);
    if (error != OF_DRIVER_SUCCESS) {
        return failed(error, &cuda.push);
    }
    error = cuda.context_device(ordinal);
    cuda.pop(&popped);
    return error == OF_DRIVER_SUCCESS ? OPFORGE_OK : failed(error, &cuda.context_device);
}

static OpforgeStatus wrong_stream(const Scope *scope)
{
    int other = -1;
    if (stream_device(scope->stream, &other) != OPFORGE_OK) {
        other = -1;
    }
    if (other == scope->device->handle) {
        return of_fail(OPFORGE_INVALID_ARGUMENT,
                       "stream: belongs to a context of device %d that is not its primary one",
                       scope->device->ordinal);
    }
    return of_fail(OPFORGE_INVALID_ARGUMENT,
                   "stream: belongs to device %d, but the tensors are on device %d", other,
                   scope->device->ordinal);
}

static OpforgeStatus enter(Scope *scope)
{
    void *current = NULL;
    int error;
    if ((uintptr_t)scope->stream > OF_LAST_SPECIAL_STREAM) {
        void *context = NULL;
        error = cuda.stream_context(scope->stream, &context);
        if (error != OF_DRIVER_SUCCESS) {
            return failed(error, &cuda.stream_context);
        }
        if (context != scope->device->context) {
            return wrong_stream(scope);
        }
    }
    error = cuda.get_current(&current);
    if (error != OF_DRIVER_SUCCESS) {
        return failed(error, &cuda.get_current);
    }
    if (current != scope->device->context) {
        error = cuda.push(scope->device->context);
        if (error != OF_DRIVER_SUCCESS) {
            return failed(error, &cuda.push);
        }
        scope->is_changed = 1;
    }
    return OPFORGE_OK;
}

static OpforgeStatus leave(const Scope *scope, OpforgeStatus status)
{
    void *popped = NULL;
    const int error = cuda.pop(&popped);
    (void)scope;
    return error == OF_DRIVER_SUCCESS || status != OPFORGE_OK ? status : failed(error, &cuda.pop);
}

/* There is no memset of 8 bytes: fill one half of each element, then the other. */
static OpforgeStatus fill_64(uint64_t address, uint64_t pattern, size_t count, void *stream)
{
    const unsigned int low = (unsigned int)(pattern & 0xffffffffu);
    const unsigned int high = (unsigned int)(pattern >> 32);
    int error = cuda.fill_32_pitched(address, 8, low, 1, count, stream);
    if (error == OF_DRIVER_SUCCESS) {
        error = cuda.fill_32_pitched(address + 4, 8, high, 1, count, stream);
    }
    return error == OF_DRIVER_SUCCESS ? OPFORGE_OK : failed(error, &cuda.fill_32_pitched);
}

/* Under the lock; its calls read the table without. */
Driver *of_cuda_driver(void)
{
    if (of_cuda.symbols != NULL) {
        return &of_cuda;
    }
    of_cuda.vendor = OF_NVIDIA;
    of_cuda.title = "CUDA";
    of_cuda.libraries = libraries;
    of_cuda.newer = "NVIDIA driver";
    of_cuda.symbols = symbols;
    of_cuda.symbol_count = (int)(sizeof symbols / sizeof symbols[0]);
    of_cuda.shared_without_asking = 48 * 1024;
    of_cuda.find_arch = find_arch;
    of_cuda.enter = enter;
    of_cuda.leave = leave;
    of_cuda.stream_device = stream_device;
    of_cuda.fill_64 = fill_64;
    return &of_cuda;
}
