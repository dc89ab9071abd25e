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
static const char *const libraries[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6",
                                        NULL};

#define NEEDED(symbol, entry) {symbol, &(entry), 0}
#define OPTIONAL(symbol, entry) {symbol, &(entry), 1}

static const Symbol symbols[] = {
    NEEDED("hipInit", of_hip.init),
    NEEDED("hipGetDeviceCount", of_hip.device_count),
    NEEDED("hipDeviceGet", of_hip.get_device),
    NEEDED("hipDeviceGetAttribute", of_hip.attribute),
    /* The layout of ROCm 6; hipGetDeviceProperties without the ending is that of ROCm 5. */
    NEEDED("hipGetDevicePropertiesR0600", hip.properties),
    NEEDED("hipGetDevice", hip.get_current),
    NEEDED("hipSetDevice", hip.set_current),
    NEEDED("hipStreamGetDevice", hip.stream_device),
    NEEDED("hipModuleLoadData", of_hip.load_module),
    NEEDED("hipModuleUnload", of_hip.unload_module),
    NEEDED("hipModuleGetFunction", of_hip.get_function),
    NEEDED("hipModuleLaunchKernel", of_hip.launch),
    NEEDED("hipModuleLaunchCooperativeKernel", of_hip.launch_cooperative),
    /* Missing before ROCm 7. */
    OPTIONAL("hipDrvLaunchKernelEx", of_hip.launch_with),
    OPTIONAL("hipMallocAsync", of_hip.allocate),
    OPTIONAL("hipFreeAsync", of_hip.release),
    NEEDED("hipMemsetD8Async", of_hip.fill_8),
    NEEDED("hipMemsetD16Async", of_hip.fill_16),
    NEEDED("hipMemsetD32Async", of_hip.fill_32),
    NEEDED("hipMemset2DAsync", hip.fill_8_pitched),
    OPTIONAL("hipPointerGetAttribute", of_hip.pointer_attribute),
    NEEDED("hipDrvGetErrorName", of_hip.error_name),
    NEEDED("hipDrvGetErrorString", of_hip.error_text),
    NEEDED("hipGetLastError", of_hip.take_last_error),
};

static OpforgeStatus failed(int error, const void *entry)
{
    return of_driver_failed(&of_hip, error, entry);
}

/* "gfx942:sramecc+:xnack-" -> 0x942. The features behind it are left out: Triton compiles for
 * either setting of them. */
static OpforgeStatus find_arch(Device *device)
{
    Properties properties;
    char *end = NULL;
    long arch = 0;
    int error;
    memset(&properties, 0, sizeof properties);
    error = hip.properties(&properties, device->handle);
    if (error != OF_DRIVER_SUCCESS) {
        return failed(error, &hip.properties);
    }
    properties.arch[sizeof properties.arch - 1] = 0;
    if (strncmp(properties.arch, "gfx", 3) == 0) {
        arch = strtol(properties.arch + 3, &end, 16);
    }
    if (arch <= 0 || arch > 0xfffff || (*end != 0 && *end != ':')) {
        return of_fail(OPFORGE_CUDA_ERROR, "device %d is a '%s', says the driver, expected gfx...",
                       device->ordinal, properties.arch);
    }
    device->arch = (int)arch;
    return OPFORGE_OK;
}

static OpforgeStatus stream_device(void *stream, int *ordinal)
{
    const int error = hip.stream_device(stream, ordinal);
    return error == OF_DRIVER_SUCCESS ? OPFORGE_OK : failed(error, &hip.stream_device);
}

static OpforgeStatus enter(Scope *scope)
{
    const int wanted = scope->device->ordinal;
    int error;
    if ((uintptr_t)scope->stream > OF_LAST_SPECIAL_STREAM) {
        int other = -1;
        const OpforgeStatus status = stream_device(scope->stream, &other);
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
        return failed(error, &hip.get_current);
    }
    if (scope->before != wanted) {
        error = hip.set_current(wanted);
        if (error != OF_DRIVER_SUCCESS) {
            return failed(error, &hip.set_current);
        }
        scope->is_changed = 1;
    }
    return OPFORGE_OK;
}

static OpforgeStatus leave(const Scope *scope, OpforgeStatus status)
{
    const int error = hip.set_current(scope->before);
    if (error != OF_DRIVER_SUCCESS && status == OPFORGE_OK) {
        return failed(error, &hip.set_current);
    }
    if (error != OF_DRIVER_SUCCESS) {
        of_forgive(&of_hip);
    }
    return status;
}

/* There is no memset of 8 bytes, and one of 4 with a pitch only since ROCm 7: fill each run of
 * equal bytes in all elements at once. Numbers have two or three runs. */
static OpforgeStatus fill_64(uint64_t address, uint64_t pattern, size_t count, void *stream)
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
            return failed(error, &hip.fill_8_pitched);
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
    of_hip.libraries = libraries;
    of_hip.newer = "ROCm";
    of_hip.symbols = symbols;
    of_hip.symbol_count = (int)(sizeof symbols / sizeof symbols[0]);
    of_hip.shared_without_asking = 64 * 1024;
    of_hip.find_arch = find_arch;
    of_hip.enter = enter;
    of_hip.leave = leave;
    of_hip.stream_device = stream_device;
    of_hip.fill_64 = fill_64;
    return &of_hip;
}
