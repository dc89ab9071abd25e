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

static const char *const cuda_libraries[] = {"libcuda.so.1", NULL};

static const Symbol cuda_symbols[] = {
    OF_NEEDED("cuInit", of_cuda.init),
    OF_NEEDED("cuDeviceGetCount", of_cuda.device_count),
    OF_NEEDED("cuDeviceGet", of_cuda.get_device),
    OF_NEEDED("cuDeviceGetAttribute", of_cuda.attribute),
    OF_NEEDED("cuDevicePrimaryCtxRetain", of_cuda.retain_context),
    OF_NEEDED("cuDevicePrimaryCtxRelease_v2", of_cuda.release_context),
    OF_NEEDED("cuCtxGetCurrent", cuda.get_current),
    OF_NEEDED("cuCtxPushCurrent_v2", cuda.push),
    OF_NEEDED("cuCtxPopCurrent_v2", cuda.pop),
    OF_NEEDED("cuCtxGetDevice", cuda.context_device),
    OF_NEEDED("cuStreamGetCtx", cuda.stream_context),
    OF_NEEDED("cuModuleLoadData", of_cuda.load_module),
    OF_NEEDED("cuModuleUnload", of_cuda.unload_module),
    OF_NEEDED("cuModuleGetFunction", of_cuda.get_function),
    OF_NEEDED("cuFuncSetAttribute", of_cuda.set_function),
    OF_NEEDED("cuFuncSetCacheConfig", of_cuda.set_cache),
    OF_NEEDED("cuLaunchKernel", of_cuda.launch),
    /* Missing before CUDA 11.8. */
    OF_OPTIONAL("cuLaunchKernelEx", of_cuda.launch_with),
    /* Missing before CUDA 12.0. */
    OF_OPTIONAL("cuTensorMapEncodeTiled", of_cuda.encode_map),
    OF_OPTIONAL("cuGraphCreate", of_cuda.create_graph),
    OF_OPTIONAL("cuGraphDestroy", of_cuda.destroy_graph),
    OF_OPTIONAL("cuGraphAddKernelNode_v2", of_cuda.add_node),
    OF_OPTIONAL("cuGraphInstantiateWithFlags", of_cuda.instantiate_graph),
    OF_OPTIONAL("cuGraphExecKernelNodeSetParams_v2", of_cuda.set_node),
    OF_OPTIONAL("cuGraphLaunch", of_cuda.launch_graph),
    OF_OPTIONAL("cuGraphExecDestroy", of_cuda.destroy_executable),
    OF_OPTIONAL("cuStreamIsCapturing", of_cuda.is_capturing),
    OF_OPTIONAL("cuThreadExchangeStreamCaptureMode", of_cuda.exchange_capture_mode),
    /* Missing before CUDA 11.2. */
    OF_OPTIONAL("cuMemAllocAsync", of_cuda.allocate),
    OF_OPTIONAL("cuMemFreeAsync", of_cuda.release),
    OF_NEEDED("cuMemsetD8Async", of_cuda.fill_8),
    OF_NEEDED("cuMemsetD16Async", of_cuda.fill_16),
    OF_NEEDED("cuMemsetD32Async", of_cuda.fill_32),
    OF_NEEDED("cuMemsetD2D32Async", cuda.fill_32_pitched),
    OF_OPTIONAL("cuPointerGetAttribute", of_cuda.pointer_attribute),
    OF_NEEDED("cuGetErrorName", of_cuda.error_name),
    OF_NEEDED("cuGetErrorString", of_cuda.error_text),
};

static OpforgeStatus cuda_failed(int error, const void *entry)
{
    return of_driver_failed(&of_cuda, error, entry);
}

static OpforgeStatus cuda_find_arch(Device *device)
{
    int64_t *major = &device->attributes[OF_DEVICE_MAJOR];
    int64_t *minor = &device->attributes[OF_DEVICE_MINOR];
    device->arch = (int)(*major * 10 + *minor);
    *major = of_counts_as(OF_NVIDIA, device->arch) / 10;
    *minor = of_counts_as(OF_NVIDIA, device->arch) % 10;
    return OPFORGE_OK;
}

/* A CUdevice is the ordinal of the device. */
static OpforgeStatus cuda_stream_device(void *stream, int *ordinal)
{
    void *context = NULL;
    void *popped = NULL;
    int error = cuda.stream_context(stream, &context);
    if (error != OF_DRIVER_SUCCESS) {
        return cuda_failed(error, &cuda.stream_context);
    }
    error = cuda.push(context);
    if (error != OF_DRIVER_SUCCESS) {
        return cuda_failed(error, &cuda.push);
    }
    error = cuda.context_device(ordinal);
    cuda.pop(&popped);
    return error == OF_DRIVER_SUCCESS ? OPFORGE_OK : cuda_failed(error, &cuda.context_device);
}

static OpforgeStatus wrong_stream(const Scope *scope)
{
    int other = -1;
    if (cuda_stream_device(scope->stream, &other) != OPFORGE_OK) {
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

static OpforgeStatus cuda_enter(Scope *scope)
{
    void *current = NULL;
    int error;
    if ((uintptr_t)scope->stream > OF_LAST_SPECIAL_STREAM) {
        void *context = NULL;
        error = cuda.stream_context(scope->stream, &context);
        if (error != OF_DRIVER_SUCCESS) {
            return cuda_failed(error, &cuda.stream_context);
        }
        if (context != scope->device->context) {
            return wrong_stream(scope);
        }
    }
    error = cuda.get_current(&current);
    if (error != OF_DRIVER_SUCCESS) {
        return cuda_failed(error, &cuda.get_current);
    }
    if (current != scope->device->context) {
        error = cuda.push(scope->device->context);
        if (error != OF_DRIVER_SUCCESS) {
            return cuda_failed(error, &cuda.push);
        }
        scope->is_changed = 1;
    }
    return OPFORGE_OK;
}

static OpforgeStatus cuda_leave(const Scope *scope, OpforgeStatus status)
{
    void *popped = NULL;
    const int error = cuda.pop(&popped);
    (void)scope;
    return error == OF_DRIVER_SUCCESS || status != OPFORGE_OK ? status
                                                              : cuda_failed(error, &cuda.pop);
}

/* There is no memset of 8 bytes: fill one half of each element, then the other. */
static OpforgeStatus cuda_fill_64(uint64_t address, uint64_t pattern, size_t count, void *stream)
{
    const unsigned int low = (unsigned int)(pattern & 0xffffffffu);
    const unsigned int high = (unsigned int)(pattern >> 32);
    int error = cuda.fill_32_pitched(address, 8, low, 1, count, stream);
    if (error == OF_DRIVER_SUCCESS) {
        error = cuda.fill_32_pitched(address + 4, 8, high, 1, count, stream);
    }
    return error == OF_DRIVER_SUCCESS ? OPFORGE_OK : cuda_failed(error, &cuda.fill_32_pitched);
}

/* Under the lock; its calls read the table without. */
Driver *of_cuda_driver(void)
{
    if (of_cuda.symbols != NULL) {
        return &of_cuda;
    }
    of_cuda.vendor = OF_NVIDIA;
    of_cuda.title = "CUDA";
    of_cuda.libraries = cuda_libraries;
    of_cuda.newer = "NVIDIA driver";
    of_cuda.symbols = cuda_symbols;
    of_cuda.symbol_count = (int)(sizeof cuda_symbols / sizeof cuda_symbols[0]);
    of_cuda.shared_without_asking = 48 * 1024;
    of_cuda.find_arch = cuda_find_arch;
    of_cuda.enter = cuda_enter;
    of_cuda.leave = cuda_leave;
    of_cuda.stream_device = cuda_stream_device;
    of_cuda.fill_64 = cuda_fill_64;
    return &of_cuda;
}
