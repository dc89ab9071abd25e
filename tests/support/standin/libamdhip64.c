/* A stand-in for AMD's driver that runs on host memory.
 *
 * It implements the calls that opforge's libraries use. What is current in a thread is a device,
 * and a code object is refused that was compiled for another architecture, or launched with more
 * threads or shared memory than it was compiled for.
 */
#define _POSIX_C_SOURCE 200809L
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum { INVALID_CONFIGURATION = 9, NO_BINARY_FOR_GPU = 209 };

/* Of ELF: the machine, and the bits of its flags that say which. */
enum { EM_AMDGPU = 224, MACH = 0xff };

static __thread int current_device;
static __thread int last_error;

static int answer(int error)
{
    last_error = error ? error : last_error;
    return error;
}

static int enter(const char *name)
{
    return answer(standin_enter(name));
}

Context *standin_current(void)
{
    return &standin_device[current_device].primary;
}

/* For the tests: which device is current, 0 where nobody has chosen one. */
int standin_depth(void)
{
    return current_device;
}

void standin_set_current(int device)
{
    standin_set_up();
    current_device = device < 0 ? 0 : device;
}

/* "gfx942:sramecc+:xnack-" */
void standin_arch(int device, const char *name)
{
    snprintf(standin_device[device].arch, sizeof standin_device[device].arch, "%s", name);
}

/* The error that the next launch of another library in this thread would be blamed for. */
int standin_last_error(void)
{
    return last_error;
}

/* HIP's numbers of attributes, and those of CUDA that the tests set. */
static const int attributes[][2] = {
    {63, 16}, {57, 39}, {56, 1},  {74, 97}, {10002, 81}, {72, 82}, {19, 38},
    {87, 10}, {5, 13},  {60, 36}, {59, 37}, {23, 75},    {61, 76},
};

/* EF_AMDGPU_MACH_... of the LLVM that compiles for them. */
static const struct {
    const char *name;
    unsigned int mach;
} machines[] = {
    {"gfx908", 0x30},  {"gfx90a", 0x3f},  {"gfx942", 0x4c},  {"gfx950", 0x4f},  {"gfx1030", 0x36},
    {"gfx1100", 0x41}, {"gfx1101", 0x46}, {"gfx1200", 0x48}, {"gfx1201", 0x4e}, {"gfx1250", 0x49},
};

static unsigned int mach_of(const char *arch)
{
    const size_t length = strcspn(arch, ":");
    size_t i;
    for (i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        if (strlen(machines[i].name) == length && strncmp(machines[i].name, arch, length) == 0) {
            return machines[i].mach;
        }
    }
    return 0;
}

/* Of the metadata of a code object, which is msgpack in a note; `otherwise` if it has none. */
static unsigned int metadata(const void *image, const char *key, unsigned int otherwise)
{
    const unsigned char *at = (const unsigned char *)image;
    const size_t length = strlen(key);
    const unsigned char *end = at + standin_image_size(image) - length - 4;
    for (; at < end; at++) {
        if (memcmp(at, key, length) == 0) {
            at += length;
            return at[0] < 0x80    ? at[0]
                   : at[0] == 0xcc ? at[1]
                   : at[0] == 0xcd ? (unsigned int)at[1] << 8 | at[2]
                                   : (unsigned int)at[2] << 16 | (unsigned int)at[3] << 8 | at[4];
        }
    }
    return otherwise;
}

int hipInit(unsigned int flags)
{
    const int failure = enter("hipInit");
    (void)flags;
    return failure ? failure : answer(standin_initialize());
}

int hipGetDeviceCount(int *count)
{
    *count = standin_device_count;
    return enter("hipGetDeviceCount");
}

int hipDeviceGet(int *device, int ordinal)
{
    const int failure = enter("hipDeviceGet");
    *device = ordinal;
    return failure                                          ? failure
           : ordinal >= 0 && ordinal < standin_device_count ? SUCCESS
                                                            : answer(INVALID_DEVICE);
}

int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    const int failure = enter("hipDeviceGetAttribute");
    size_t i;
    for (i = 0; !failure && i < sizeof attributes / sizeof attributes[0]; i++) {
        if (attributes[i][0] == attribute) {
            *value = standin_device[device].attributes[attributes[i][1]];
            return SUCCESS;
        }
    }
    return failure ? failure : answer(INVALID_VALUE);
}

/* hipDeviceProp_tR0600, as hip_runtime_api.h lays it out. */
typedef struct {
    char name[256];
    char numbers[904];
    char gcnArchName[256];
    char rest[56];
} HipDeviceProperties;

int hipGetDevicePropertiesR0600(HipDeviceProperties *properties, int device)
{
    const int failure = enter("hipGetDevicePropertiesR0600");
    if (failure) {
        return failure;
    }
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "Stand-in %d", device);
    snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s",
             standin_device[device].arch);
    return SUCCESS;
}

int hipGetDevice(int *device)
{
    *device = current_device;
    return enter("hipGetDevice");
}

/* Set even where it fails, as a pop of a context: nobody could try again. */
int hipSetDevice(int device)
{
    const int failure = enter("hipSetDevice");
    if (device < 0 || device >= standin_device_count) {
        return answer(INVALID_DEVICE);
    }
    current_device = failure && device != 0 ? current_device : device;
    return failure;
}

int hipStreamGetDevice(void *stream, int *device)
{
    const int failure = enter("hipStreamGetDevice");
    *device = (uintptr_t)stream <= 2 ? current_device : ((Stream *)stream)->context->device;
    return failure;
}

int hipModuleLoadData(void **module, const void *image)
{
    const int failure = enter("hipModuleLoadData");
    const unsigned char *header = (const unsigned char *)image;
    if (failure) {
        return failure;
    }
    if (memcmp(header, "\177ELF", 4) != 0) {
        return answer(INVALID_IMAGE);
    }
    if (header[18] != EM_AMDGPU || header[48] != mach_of(standin_device[current_device].arch)) {
        return answer(NO_BINARY_FOR_GPU);
    }
    *module = standin_load(standin_current(), image);
    return SUCCESS;
}

int hipModuleUnload(void *module)
{
    const int failure = enter("hipModuleUnload");
    if (!failure) {
        standin_unload((Module *)module);
    }
    return failure;
}

/* What the kernel has of its own counts, too. */
int hipModuleGetFunction(void **function, void *module, const char *name)
{
    const int failure = enter("hipModuleGetFunction");
    const Module *from = (const Module *)module;
    const int offered = standin_device[from->context->device].attributes[97];
    int error;
    if (failure) {
        return failure;
    }
    error = standin_find(function, (Module *)module, name,
                         offered - (int)metadata(from->image, ".group_segment_fixed_size", 0));
    if (error == SUCCESS) {
        ((Function *)*function)->max_threads =
            metadata(from->image, ".max_flat_workgroup_size", 1024);
    }
    return answer(error);
}

static int launch(LaunchRecord *record, void *function)
{
    const Function *launched = (const Function *)function;
    if (record->block[0] * record->block[1] * record->block[2] > launched->max_threads) {
        return answer(INVALID_CONFIGURATION);
    }
    return answer(standin_launch(record, function));
}

int hipModuleLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y,
                          unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                          unsigned int block_z, unsigned int shared, void *stream,
                          void **parameters, void **extra)
{
    const int failure = enter("hipModuleLaunchKernel");
    const unsigned int grid[] = {grid_x, grid_y, grid_z};
    const unsigned int block[] = {block_x, block_y, block_z};
    LaunchRecord record = standin_record(grid, block, shared, stream, parameters);
    if (failure) {
        return failure;
    }
    return extra != NULL ? answer(INVALID_VALUE) : launch(&record, function);
}

int hipModuleLaunchCooperativeKernel(void *function, unsigned int grid_x, unsigned int grid_y,
                                     unsigned int grid_z, unsigned int block_x,
                                     unsigned int block_y, unsigned int block_z,
                                     unsigned int shared, void *stream, void **parameters)
{
    const int failure = enter("hipModuleLaunchCooperativeKernel");
    const unsigned int grid[] = {grid_x, grid_y, grid_z};
    const unsigned int block[] = {block_x, block_y, block_z};
    LaunchRecord record = standin_record(grid, block, shared, stream, parameters);
    record.cooperative = 1;
    record.has_attributes = 1;
    return failure ? failure : launch(&record, function);
}

/* As hip_runtime_api.h lays them out; written apart from the library's own declarations. */
typedef struct {
    int id;
    char pad[4];
    union {
        char pad[64];
        int cooperative;
        unsigned int cluster[3];
    } val;
} HipLaunchAttribute;

typedef struct {
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int sharedMemBytes;
    void *hStream;
    HipLaunchAttribute *attrs;
    unsigned int numAttrs;
} HipLaunchConfig;

int hipDrvLaunchKernelEx(const HipLaunchConfig *config, void *function, void **parameters,
                         void **extra)
{
    const int failure = enter("hipDrvLaunchKernelEx");
    LaunchRecord record = standin_record(config->grid, config->block, config->sharedMemBytes,
                                         config->hStream, parameters);
    unsigned int i;
    (void)extra;
    record.has_attributes = 1;
    for (i = 0; !failure && i < config->numAttrs; i++) {
        const HipLaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == 2) {
            record.cooperative = attribute->val.cooperative;
        } else if (attribute->id == 4) {
            record.cluster = attribute->val.cluster[0] * attribute->val.cluster[1] *
                             attribute->val.cluster[2];
        } else {
            return answer(INVALID_VALUE);
        }
    }
    /* Clusters of any size, as far as anybody has said. */
    ((Function *)function)->non_portable = 1;
    return failure ? failure : launch(&record, function);
}

int hipPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    const int failure = enter("hipPointerGetAttribute");
    return failure ? failure : answer(standin_pointer(value, attribute, address));
}

int hipMallocAsync(uint64_t *address, size_t bytes, void *stream)
{
    const int failure = enter("hipMallocAsync");
    (void)stream;
    return failure ? failure : answer(standin_allocate(address, bytes));
}

int hipFreeAsync(uint64_t address, void *stream)
{
    const int failure = enter("hipFreeAsync");
    /* Freed even where it fails: nobody could try again. */
    const int result = standin_release(address);
    (void)stream;
    return failure ? failure : answer(result);
}

/* What programs call, and the library does not. */
int hipMalloc(void **address, size_t bytes)
{
    /* The first call of a program may be any. */
    const int missing = standin_initialize();
    const int failure = missing ? answer(missing) : enter("hipMalloc");
    uint64_t found = 0;
    const int result = failure ? failure : answer(standin_allocate(&found, bytes));
    *address = (void *)(uintptr_t)found;
    return result;
}

int hipFree(void *address)
{
    const int failure = enter("hipFree");
    return failure ? failure : answer(standin_release((uint64_t)(uintptr_t)address));
}

int hipMemcpy(void *target, const void *source, size_t bytes, int kind)
{
    const int failure = enter("hipMemcpy");
    (void)kind;
    if (!failure) {
        memcpy(target, source, bytes);
    }
    return failure;
}

int hipMemcpyHtoD(uint64_t target, const void *source, size_t bytes)
{
    return hipMemcpy((void *)(uintptr_t)target, source, bytes, 1);
}

int hipMemcpyDtoH(void *target, uint64_t source, size_t bytes)
{
    return hipMemcpy(target, (const void *)(uintptr_t)source, bytes, 2);
}

int hipDeviceGetName(char *name, int length, int device)
{
    const int failure = enter("hipDeviceGetName");
    if (!failure) {
        snprintf(name, (size_t)length, "Stand-in %d", device);
    }
    return failure;
}

int hipDeviceSynchronize(void)
{
    return enter("hipDeviceSynchronize");
}

int hipMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream)
{
    (void)stream;
    return answer(standin_fill("hipMemsetD8Async", address, &value, 1, 1, count));
}

int hipMemsetD16Async(uint64_t address, unsigned short value, size_t count, void *stream)
{
    (void)stream;
    return answer(standin_fill("hipMemsetD16Async", address, &value, 2, 2, count));
}

int hipMemsetD32Async(uint64_t address, int value, size_t count, void *stream)
{
    (void)stream;
    return answer(standin_fill("hipMemsetD32Async", address, &value, 4, 4, count));
}

int hipMemset2DAsync(void *target, size_t pitch, int value, size_t width, size_t height,
                     void *stream)
{
    unsigned char bytes[8];
    (void)stream;
    memset(bytes, value, sizeof bytes);
    if (width > sizeof bytes || width > pitch) {
        return answer(INVALID_VALUE);
    }
    return answer(
        standin_fill("hipMemset2DAsync", (uint64_t)(uintptr_t)target, bytes, width, pitch, height));
}

int hipDrvGetErrorName(int error, const char **name)
{
    static __thread char text[32];
    switch (error) {
    case INVALID_VALUE: *name = "hipErrorInvalidValue"; break;
    case OUT_OF_MEMORY: *name = "hipErrorOutOfMemory"; break;
    case NOT_INITIALIZED: *name = "hipErrorNotInitialized"; break;
    case INVALID_CONFIGURATION: *name = "hipErrorInvalidConfiguration"; break;
    case NO_DEVICE: *name = "hipErrorNoDevice"; break;
    case NO_BINARY_FOR_GPU: *name = "hipErrorNoBinaryForGpu"; break;
    case INVALID_HANDLE: *name = "hipErrorInvalidHandle"; break;
    case LAUNCH_FAILED: *name = "hipErrorLaunchFailure"; break;
    default: snprintf(text, sizeof text, "hipError%d", error); *name = text;
    }
    return SUCCESS;
}

int hipDrvGetErrorString(int error, const char **text)
{
    *text = error == INVALID_VALUE ? "invalid argument" : "an error of the stand-in";
    return SUCCESS;
}

int hipGetLastError(void)
{
    const int error = last_error;
    last_error = 0;
    return error;
}
