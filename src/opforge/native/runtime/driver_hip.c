/* libamdhip64, AMD's driver. Its calls are those of Triton's own launcher for AMD GPUs.
 *
 * It has contexts in name only: what is current in a thread is a device, and streams, modules and
 * memory belong to devices. Graphs are left out, so that kernels are launched one by one: HIP lays
 * out its nodes in another way, and whether a graph saves anything on an AMD GPU was not measured.
 */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

Driver of_hip;

/* hipDeviceProp_tR0600, of which only the name is read, with room for what may be added to it. */
typedef struct {
    char before[1160];
    char arch[256];
    char rest[2680];
} Properties;

/* What only the adapters below use. */
static struct {
    int (*properties)(Properties *properties, int device);
    int (*get_current)(int *device);
    int (*set_current)(int device);
    int (*stream_device)(void *stream, int *device);
    int (*fill_8_pitched)(void *address, size_t pitch, int value, size_t width, size_t height,
                          void *stream);
} hip;

/* The first is the machine's choice, but belongs to a package for developers. */
static const char *const hip_libraries[] = {"libamdhip64.so", "libamdhip64.so.7",
                                            "libamdhip64.so.6", NULL};

static const Symbol hip_symbols[] = {
    OF_NEEDED("hipInit", of_hip.init),
    OF_NEEDED("hipGetDeviceCount", of_hip.device_count),
    OF_NEEDED("hipDeviceGet", of_hip.get_device),
    OF_NEEDED("hipDeviceGetAttribute", of_hip.attribute),
    /* The layout of ROCm 6; hipGetDeviceProperties without the ending is that of ROCm 5. */
    OF_NEEDED("hipGetDevicePropertiesR0600", hip.properties),
    OF_NEEDED("hipGetDevice", hip.get_current),
    OF_NEEDED("hipSetDevice", hip.set_current),
    OF_NEEDED("hipStreamGetDevice", hip.stream_device),
    OF_NEEDED("hipModuleLoadData", of_hip.load_module),
    OF_NEEDED("hipModuleUnload", of_hip.unload_module),
    OF_NEEDED("hipModuleGetFunction", of_hip.get_function),
    OF_NEEDED("hipModuleLaunchKernel", of_hip.launch),
    OF_NEEDED("hipModuleLaunchCooperativeKernel", of_hip.launch_cooperative),
    /* Missing before ROCm 7. */
    OF_OPTIONAL("hipDrvLaunchKernelEx", of_hip.launch_with),
    OF_OPTIONAL("hipMallocAsync", of_hip.allocate),
    OF_OPTIONAL("hipFreeAsync", of_hip.release),
    OF_NEEDED("hipMemsetD8Async", of_hip.fill_8),
    OF_NEEDED("hipMemsetD16Async", of_hip.fill_16),
    OF_NEEDED("hipMemsetD32Async", of_hip.fill_32),
    OF_NEEDED("hipMemset2DAsync", hip.fill_8_pitched),
    OF_OPTIONAL("hipPointerGetAttribute", of_hip.pointer_attribute),
    OF_NEEDED("hipDrvGetErrorName", of_hip.error_name),
    OF_NEEDED("hipDrvGetErrorString", of_hip.error_text),
    OF_NEEDED("hipGetLastError", of_hip.take_last_error),
};

static OpforgeStatus hip_failed(int error, const void *entry)
{
    return of_driver_failed(&of_hip, error, entry);
}

/* "gfx942:sramecc+:xnack-" -> 0x942. The features behind it are left out: Triton compiles for
 * either setting of them. */
static OpforgeStatus hip_find_arch(Device *device)
{
    Properties properties;
    char *end = NULL;
    long arch = 0;
    int error;
    memset(&properties, 0, sizeof properties);
    error = hip.properties(&properties, device->handle);
    if (error != OF_DRIVER_SUCCESS) {
        return hip_failed(error, &hip.properties);
    }
    properties.arch[sizeof properties.arch - 1] = 0;
    if (strncmp(properties.arch, "gfx", 3) == 0) {
        arch = strtol(properties.arch + 3, &end, 16);
    }
    if (arch <= 0 || arch > 0xfffff || (*end != 0 && *end != ':')) {
        return of_fail(OPFORGE_CUDA_ERROR,
                       "the driver reports architecture '%s' for device %d, expected gfx...",
                       properties.arch, device->ordinal);
    }
    device->arch = (int)arch;
    return OPFORGE_OK;
}

static OpforgeStatus hip_stream_device(void *stream, int *ordinal)
{
    const int error = hip.stream_device(stream, ordinal);
    return error == OF_DRIVER_SUCCESS ? OPFORGE_OK : hip_failed(error, &hip.stream_device);
}

static OpforgeStatus hip_enter(Scope *scope)
{
    const int wanted = scope->device->ordinal;
    int error;
    if ((uintptr_t)scope->stream > OF_LAST_SPECIAL_STREAM) {
        int other = -1;
        const OpforgeStatus status = hip_stream_device(scope->stream, &other);
        if (status != OPFORGE_OK) {
            return status;
        }
        if (other != wanted) {
            return of_fail(OPFORGE_INVALID_ARGUMENT,
                           "stream: belongs to device %d, but the tensors are on device %d", other,
                           wanted);
        }
    }
    error = hip.get_current(&scope->before);
    if (error != OF_DRIVER_SUCCESS) {
        return hip_failed(error, &hip.get_current);
    }
    if (scope->before != wanted) {
        error = hip.set_current(wanted);
        if (error != OF_DRIVER_SUCCESS) {
            return hip_failed(error, &hip.set_current);
        }
        scope->is_changed = 1;
    }
    return OPFORGE_OK;
}

static OpforgeStatus hip_leave(const Scope *scope, OpforgeStatus status)
{
    const int error = hip.set_current(scope->before);
    if (error != OF_DRIVER_SUCCESS && status == OPFORGE_OK) {
        return hip_failed(error, &hip.set_current);
    }
    if (error != OF_DRIVER_SUCCESS) {
        of_forgive(&of_hip);
    }
    return status;
}

/* There is no memset of 8 bytes, and one of 4 with a pitch only since ROCm 7: fill each run of
 * equal bytes in all elements at once. Numbers have two or three runs. */
static OpforgeStatus hip_fill_64(uint64_t address, uint64_t pattern, size_t count, void *stream)
{
    unsigned int first = 0;
    while (first < 8) {
        const int byte = (int)(pattern >> 8 * first & 0xff);
        unsigned int end = first + 1;
        int error;
        while (end < 8 && (int)(pattern >> 8 * end & 0xff) == byte) {
            end++;
        }
        error = hip.fill_8_pitched((void *)(uintptr_t)(address + first), 8, byte, end - first,
                                   count, stream);
        if (error != OF_DRIVER_SUCCESS) {
            return hip_failed(error, &hip.fill_8_pitched);
        }
        first = end;
    }
    return OPFORGE_OK;
}

/* Under the lock; its calls read the table without. */
Driver *of_hip_driver(void)
{
    if (of_hip.symbols != NULL) {
        return &of_hip;
    }
    of_hip.vendor = OF_AMD;
    of_hip.title = "HIP";
    of_hip.libraries = hip_libraries;
    of_hip.newer = "ROCm";
    of_hip.symbols = hip_symbols;
    of_hip.symbol_count = (int)(sizeof hip_symbols / sizeof hip_symbols[0]);
    of_hip.shared_without_asking = 64 * 1024;
    of_hip.find_arch = hip_find_arch;
    of_hip.enter = hip_enter;
    of_hip.leave = hip_leave;
    of_hip.stream_device = hip_stream_device;
    of_hip.fill_64 = hip_fill_64;
    return &of_hip;
}
