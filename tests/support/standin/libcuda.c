/* A stand-in for the CUDA driver that runs on host memory.
 *
 * It implements the calls that opforge's libraries use, is as strict as the driver about contexts,
 * records every call, fails the one it is told to, counts what is alive, and hands each launch to
 * a function of the test, which gets the image, the function's name, the grid and the arguments.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719
};

#define MAX_DEVICES 8
#define MAX_ATTRIBUTES 160
#define MAX_DEPTH 16
#define MAX_CALLS 65536

typedef struct {
    int retained;
    int attributes[MAX_ATTRIBUTES];
} Device;

typedef struct Context {
    int device;
    int is_primary;
} Context;

typedef struct Module {
    Context *context;
    void *image;
    int is_loaded;
} Module;

typedef struct Function {
    Module *module;
    char name[256];
    int max_shared;
    int non_portable;
    struct Function *next;
} Function;

typedef struct Stream {
    Context *context;
} Stream;

typedef struct Allocation {
    uint64_t address;
    size_t bytes;
    struct Allocation *next;
} Allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Device devices[MAX_DEVICES];
static Context primary[MAX_DEVICES];
static int device_count = 1;
static int is_initialized;
static int live_modules;
static int live_allocations;
static uint64_t allocated;
static Allocation *allocations;
static Function *functions;
static LaunchHook hook;
static Allocator allocator;
static uint64_t unreachable;
static const char *calls[MAX_CALLS];
static int call_count;
static int fail_at = -1;
static int fail_with;
static int fails_on;
static const char *fail_name;
static char fail_name_storage[64];

static __thread Context *stack[MAX_DEPTH];
static __thread int depth;

static void set_up(void)
{
    static int done = 0;
    int i;
    if (done) {
        return;
    }
    done = 1;
    for (i = 0; i < MAX_DEVICES; i++) {
        int *a = devices[i].attributes;
        primary[i].device = i;
        primary[i].is_primary = 1;
        a[1] = 1024;
        a[8] = 49152;
        a[10] = 32;
        a[12] = 65536;
        a[13] = 1000000;
        a[16] = 108;
        a[36] = 2000000;
        a[37] = 5120;
        a[38] = 41943040;
        a[39] = 2048;
        a[75] = 8;
        a[76] = 0;
        a[81] = 167936;
        a[82] = 65536;
        a[97] = 166912;
    }
}

/* Every call begins here; the answer is what it has to fail with, or 0. */
int standin_enter(const char *name)
{
    int failure = 0;
    pthread_mutex_lock(&lock);
    set_up();
    if (call_count < MAX_CALLS) {
        calls[call_count++] = name;
    }
    if (fail_at > 0 && (fail_name == NULL || strcmp(fail_name, name) == 0) && --fail_at == 0) {
        fail_at = fails_on ? 1 : -1;
        failure = fail_with;
    }
    pthread_mutex_unlock(&lock);
    if (failure == 0 && !is_initialized && strcmp(name, "cuInit") != 0) {
        failure = NOT_INITIALIZED;
    }
    return failure;
}

static Context *current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

/* For the tests. */

void standin_devices(int count)
{
    pthread_mutex_lock(&lock);
    set_up();
    device_count = count;
    pthread_mutex_unlock(&lock);
}

void standin_attribute(int device, int attribute, int value)
{
    pthread_mutex_lock(&lock);
    set_up();
    devices[device].attributes[attribute] = value;
    pthread_mutex_unlock(&lock);
}

/* Fails the n-th call from now, of that name or of any; 0 takes it back. */
void standin_fail(int nth, const char *name, int result)
{
    pthread_mutex_lock(&lock);
    fail_at = nth > 0 ? nth : -1;
    fail_with = result;
    fails_on = 0;
    fail_name = NULL;
    if (name != NULL) {
        snprintf(fail_name_storage, sizeof fail_name_storage, "%s", name);
        fail_name = fail_name_storage;
    }
    pthread_mutex_unlock(&lock);
}

/* Fails the n-th call from now and all that follow, as a driver does once a kernel has crashed. */
void standin_fail_from(int nth, int result)
{
    standin_fail(nth, NULL, result);
    pthread_mutex_lock(&lock);
    fails_on = nth > 0;
    pthread_mutex_unlock(&lock);
}

int standin_call_count(void)
{
    return call_count;
}

const char *standin_call(int index)
{
    return calls[index];
}

void standin_forget_calls(void)
{
    call_count = 0;
}

int standin_live_modules(void)
{
    return live_modules;
}

int standin_live_allocations(void)
{
    return live_allocations;
}

/* The bytes of all allocations until now. */
uint64_t standin_allocated(void)
{
    uint64_t bytes;
    pthread_mutex_lock(&lock);
    bytes = allocated;
    pthread_mutex_unlock(&lock);
    return bytes;
}

int standin_live_contexts(void)
{
    int i;
    int count = 0;
    for (i = 0; i < MAX_DEVICES; i++) {
        count += devices[i].retained;
    }
    return count;
}

/* How many contexts this thread has pushed and not popped. */
int standin_depth(void)
{
    return depth;
}

void standin_on_launch(LaunchHook to_call)
{
    hook = to_call;
}

void standin_allocate_with(Allocator to_call)
{
    allocator = to_call;
}

/* An address that counts as memory of the host alone; all other memory is the devices'. */
void standin_unreachable(uint64_t address)
{
    unreachable = address;
}

void *standin_stream(int device, int is_primary)
{
    Stream *stream = (Stream *)calloc(1, sizeof *stream);
    set_up();
    stream->context = &primary[device];
    if (!is_primary) {
        stream->context = (Context *)calloc(1, sizeof *stream->context);
        stream->context->device = device;
    }
    return stream;
}

/* As cudaSetDevice does. */
void standin_set_current(int device)
{
    set_up();
    depth = device >= 0;
    if (device >= 0) {
        stack[0] = &primary[device];
    }
}

/* The driver's calls. */

int cuInit(unsigned int flags)
{
    const int failure = standin_enter("cuInit");
    (void)flags;
    if (failure) {
        return failure;
    }
    if (device_count == 0) {
        return NO_DEVICE;
    }
    is_initialized = 1;
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    const int failure = standin_enter("cuDeviceGetCount");
    *count = device_count;
    return failure;
}

int cuDeviceGet(int *device, int ordinal)
{
    const int failure = standin_enter("cuDeviceGet");
    *device = ordinal;
    return failure ? failure : ordinal >= 0 && ordinal < device_count ? SUCCESS : INVALID_DEVICE;
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
    *value = devices[device].attributes[attribute];
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
    devices[device].retained++;
    pthread_mutex_unlock(&lock);
    *context = &primary[device];
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
    if (devices[device].retained > 0) {
        devices[device].retained--;
    } else {
        result = INVALID_CONTEXT;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int cuCtxGetCurrent(void **context)
{
    const int failure = standin_enter("cuCtxGetCurrent");
    *context = current();
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
    if (current() == NULL) {
        return INVALID_CONTEXT;
    }
    *device = current()->device;
    return SUCCESS;
}

int cuStreamGetCtx(void *stream, void **context)
{
    const int failure = standin_enter("cuStreamGetCtx");
    if (failure) {
        return failure;
    }
    if ((uintptr_t)stream <= 2) {
        *context = current();
        return current() == NULL ? INVALID_CONTEXT : SUCCESS;
    }
    *context = ((Stream *)stream)->context;
    return SUCCESS;
}

/* As the driver: what it was given may be gone afterwards. */
static void *copy_image(const void *image)
{
    const size_t size = standin_image_size(image);
    char *copied = (char *)calloc(size + 1, 1);
    memcpy(copied, image, size);
    return copied;
}

int cuModuleLoadData(void **module, const void *image)
{
    const int failure = standin_enter("cuModuleLoadData");
    Module *loaded;
    if (failure) {
        return failure;
    }
    if (current() == NULL || devices[current()->device].retained == 0) {
        return INVALID_CONTEXT;
    }
    if (memcmp(image, "\177ELF", 4) != 0 && memcmp(image, "//", 2) != 0 &&
        memcmp(image, ".version", 8) != 0) {
        return INVALID_IMAGE;
    }
    loaded = (Module *)calloc(1, sizeof *loaded);
    loaded->context = current();
    loaded->image = copy_image(image);
    loaded->is_loaded = 1;
    pthread_mutex_lock(&lock);
    live_modules++;
    pthread_mutex_unlock(&lock);
    *module = loaded;
    return SUCCESS;
}

int cuModuleUnload(void *module)
{
    const int failure = standin_enter("cuModuleUnload");
    Function **link;
    if (failure) {
        return failure;
    }
    if (current() != ((Module *)module)->context) {
        return INVALID_CONTEXT;
    }
    pthread_mutex_lock(&lock);
    live_modules--;
    for (link = &functions; *link != NULL;) {
        Function *function = *link;
        if (function->module == (Module *)module) {
            *link = function->next;
            free(function);
        } else {
            link = &function->next;
        }
    }
    pthread_mutex_unlock(&lock);
    free(((Module *)module)->image);
    free(module);
    return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    const int failure = standin_enter("cuModuleGetFunction");
    Function *found;
    if (failure) {
        return failure;
    }
    if (strcmp(name, "no_such_function") == 0) {
        return NOT_FOUND;
    }
    found = (Function *)calloc(1, sizeof *found);
    found->module = (Module *)module;
    snprintf(found->name, sizeof found->name, "%s", name);
    found->max_shared = 49152;
    pthread_mutex_lock(&lock);
    found->next = functions;
    functions = found;
    pthread_mutex_unlock(&lock);
    *function = found;
    return SUCCESS;
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    const int failure = standin_enter("cuFuncSetAttribute");
    Function *changed = (Function *)function;
    if (failure) {
        return failure;
    }
    if (attribute == 8) {
        if (value > devices[changed->module->context->device].attributes[97]) {
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

int standin_launch(LaunchRecord *record, void *function)
{
    Function *launched = (Function *)function;
    Context *context = launched->module->context;
    if (current() != context) {
        return INVALID_HANDLE;
    }
    if ((uintptr_t)record->stream > 2 && ((Stream *)record->stream)->context != context) {
        return INVALID_HANDLE;
    }
    if (record->grid[0] == 0 || record->grid[1] == 0 || record->grid[2] == 0 ||
        record->grid[0] > 0x7fffffff || record->grid[1] > 65535 || record->grid[2] > 65535 ||
        record->block[0] == 0 || record->block[0] > 1024 ||
        record->shared > (unsigned int)launched->max_shared ||
        (record->cluster > 1 && record->grid[0] % record->cluster != 0) ||
        (record->cluster > 8 && !launched->non_portable)) {
        return INVALID_VALUE;
    }
    record->device = context->device;
    record->image = launched->module->image;
    record->function = launched->name;
    return hook != NULL ? hook(record) : SUCCESS;
}

int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                   unsigned int shared, void *stream, void **parameters, void **extra)
{
    const int failure = standin_enter("cuLaunchKernel");
    LaunchRecord record;
    if (failure) {
        return failure;
    }
    if (extra != NULL) {
        return INVALID_VALUE;
    }
    memset(&record, 0, sizeof record);
    record.grid[0] = grid_x;
    record.grid[1] = grid_y;
    record.grid[2] = grid_z;
    record.block[0] = block_x;
    record.block[1] = block_y;
    record.block[2] = block_z;
    record.shared = shared;
    record.cluster = 1;
    record.stream = stream;
    record.parameters = parameters;
    return standin_launch(&record, function);
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

/* Of the attributes only the address that a device uses. */
int cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    const int failure = standin_enter("cuPointerGetAttribute");
    if (failure) {
        return failure;
    }
    if (attribute != 3 || address == unreachable) {
        return INVALID_VALUE;
    }
    memcpy(value, &address, sizeof address);
    return SUCCESS;
}

static int allocate(uint64_t *address, size_t bytes)
{
    Allocation *made;
    void *memory = NULL;
    if (current() == NULL) {
        return INVALID_CONTEXT;
    }
    if (bytes == 0) {
        return INVALID_VALUE;
    }
    if (bytes > (size_t)1 << 40) {
        return OUT_OF_MEMORY;
    }
    if (allocator != NULL) {
        memory = allocator(bytes);
    } else if (posix_memalign(&memory, 512, bytes) != 0) {
        memory = NULL;
    }
    if (memory == NULL) {
        return OUT_OF_MEMORY;
    }
    /* Not zeros: a kernel that relies on them is found out. */
    memset(memory, 0xcd, bytes);
    made = (Allocation *)calloc(1, sizeof *made);
    made->address = (uint64_t)(uintptr_t)memory;
    made->bytes = bytes;
    pthread_mutex_lock(&lock);
    made->next = allocations;
    allocations = made;
    live_allocations++;
    allocated += bytes;
    pthread_mutex_unlock(&lock);
    *address = made->address;
    return SUCCESS;
}

static int release(uint64_t address)
{
    Allocation **link;
    int result = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (link = &allocations; *link != NULL; link = &(*link)->next) {
        if ((*link)->address == address) {
            Allocation *freed = *link;
            *link = freed->next;
            if (allocator == NULL) {
                free((void *)(uintptr_t)address);
            }
            free(freed);
            live_allocations--;
            result = SUCCESS;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream)
{
    const int failure = standin_enter("cuMemAllocAsync");
    (void)stream;
    return failure ? failure : allocate(address, bytes);
}

int cuMemFreeAsync(uint64_t address, void *stream)
{
    const int failure = standin_enter("cuMemFreeAsync");
    /* Freed even where it fails: nobody could try again. */
    const int result = release(address);
    (void)stream;
    return failure ? failure : result;
}

int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream)
{
    const int failure = standin_enter("cuMemsetD8Async");
    (void)stream;
    if (!failure) {
        memset((void *)(uintptr_t)address, value, count);
    }
    return failure;
}

int cuMemsetD16Async(uint64_t address, unsigned short value, size_t count, void *stream)
{
    const int failure = standin_enter("cuMemsetD16Async");
    size_t i;
    (void)stream;
    for (i = 0; !failure && i < count; i++) {
        memcpy((char *)(uintptr_t)address + 2 * i, &value, 2);
    }
    return failure;
}

int cuMemsetD32Async(uint64_t address, unsigned int value, size_t count, void *stream)
{
    const int failure = standin_enter("cuMemsetD32Async");
    size_t i;
    (void)stream;
    for (i = 0; !failure && i < count; i++) {
        memcpy((char *)(uintptr_t)address + 4 * i, &value, 4);
    }
    return failure;
}

int cuMemsetD2D32Async(uint64_t address, size_t pitch, unsigned int value, size_t width,
                       size_t height, void *stream)
{
    const int failure = standin_enter("cuMemsetD2D32Async");
    size_t x;
    size_t y;
    (void)stream;
    for (y = 0; !failure && y < height; y++) {
        for (x = 0; x < width; x++) {
            memcpy((char *)(uintptr_t)address + y * pitch + 4 * x, &value, 4);
        }
    }
    return failure;
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
    return failure ? failure : current() == NULL ? INVALID_CONTEXT : SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    const int failure = standin_enter("cuMemAlloc_v2");
    return failure ? failure : allocate(address, bytes);
}

int cuMemFree_v2(uint64_t address)
{
    const int failure = standin_enter("cuMemFree_v2");
    return failure ? failure : release(address);
}

static int copy(void *target, const void *source, size_t bytes)
{
    if (current() == NULL) {
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
