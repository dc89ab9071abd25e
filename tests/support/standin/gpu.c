/* What the stand-ins for libcuda and libamdhip64 share: a machine with GPUs on host memory.
 *
 * It records every call, fails the one it is told to, counts what is alive, and hands each launch
 * to a function of the test, which gets the image, the function's name, the grid and the arguments.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define MAX_CALLS 65536

typedef struct Allocation {
    uint64_t address;
    size_t bytes;
    struct Allocation *next;
} Allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
Device standin_device[MAX_DEVICES];
int standin_device_count = 1;
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

/* A program that knows no stand-in says by STANDIN_ARCH what its devices are: sm_90, gfx1100. */
static void present(const char *name)
{
    const int is_amd = strncmp(name, "gfx", 3) == 0;
    const int number = (int)strtol(name + 3, NULL, is_amd ? 16 : 10);
    int i;
    for (i = 0; i < MAX_DEVICES; i++) {
        int *a = standin_device[i].attributes;
        snprintf(standin_device[i].arch, sizeof standin_device[i].arch, "%s", name);
        /* gfx1100 is 11.0. */
        a[75] = is_amd ? (number >> 12) * 10 + (number >> 8 & 15) : number / 10;
        a[76] = is_amd ? number >> 4 & 15 : number % 10;
        a[10] = is_amd && number < 0x1000 ? 64 : 32;
        a[97] = is_amd || number < 90 ? a[97] : 232448;
    }
}

void standin_set_up(void)
{
    const char *named = getenv("STANDIN_ARCH");
    static int done = 0;
    int i;
    if (done) {
        return;
    }
    done = 1;
    for (i = 0; i < MAX_DEVICES; i++) {
        int *a = standin_device[i].attributes;
        standin_device[i].primary.device = i;
        standin_device[i].primary.is_primary = 1;
        strcpy(standin_device[i].arch, "gfx942:sramecc+:xnack-");
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
    if (named != NULL) {
        present(named);
    }
}

/* Every call begins here; the answer is what it has to fail with, or 0. */
int standin_enter(const char *name)
{
    int failure = 0;
    pthread_mutex_lock(&lock);
    standin_set_up();
    if (call_count < MAX_CALLS) {
        calls[call_count++] = name;
    }
    if (fail_at > 0 && (fail_name == NULL || strcmp(fail_name, name) == 0) && --fail_at == 0) {
        fail_at = fails_on ? 1 : -1;
        failure = fail_with;
    }
    pthread_mutex_unlock(&lock);
    if (failure == 0 && !is_initialized && strstr(name, "Init") == NULL) {
        failure = NOT_INITIALIZED;
    }
    return failure;
}

/* For the tests. */

void standin_devices(int count)
{
    pthread_mutex_lock(&lock);
    standin_set_up();
    standin_device_count = count;
    pthread_mutex_unlock(&lock);
}

void standin_attribute(int device, int attribute, int value)
{
    pthread_mutex_lock(&lock);
    standin_set_up();
    standin_device[device].attributes[attribute] = value;
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

/* After the driver's own initialization: what it answers. */
int standin_initialize(void)
{
    if (standin_device_count == 0) {
        return NO_DEVICE;
    }
    is_initialized = 1;
    return SUCCESS;
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
        count += standin_device[i].retained;
    }
    return count;
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
    standin_set_up();
    stream->context = &standin_device[device].primary;
    if (!is_primary) {
        stream->context = (Context *)calloc(1, sizeof *stream->context);
        stream->context->device = device;
    }
    return stream;
}

/* For the faces. */

/* As the driver: what it was given may be gone afterwards. */
static void *copy_image(const void *image)
{
    const size_t size = standin_image_size(image);
    char *copied = (char *)calloc(size + 1, 1);
    memcpy(copied, image, size);
    return copied;
}

void *standin_load(Context *context, const void *image)
{
    Module *loaded = (Module *)calloc(1, sizeof *loaded);
    loaded->context = context;
    loaded->image = copy_image(image);
    pthread_mutex_lock(&lock);
    live_modules++;
    pthread_mutex_unlock(&lock);
    return loaded;
}

void standin_unload(Module *module)
{
    Function **link;
    pthread_mutex_lock(&lock);
    live_modules--;
    for (link = &functions; *link != NULL;) {
        Function *function = *link;
        if (function->module == module) {
            *link = function->next;
            free(function);
        } else {
            link = &function->next;
        }
    }
    pthread_mutex_unlock(&lock);
    free(module->image);
    free(module);
}

int standin_find(void **function, Module *module, const char *name, int max_shared)
{
    Function *found;
    if (strcmp(name, "no_such_function") == 0) {
        return NOT_FOUND;
    }
    found = (Function *)calloc(1, sizeof *found);
    found->module = module;
    snprintf(found->name, sizeof found->name, "%s", name);
    found->max_shared = max_shared;
    found->max_threads = 1024;
    pthread_mutex_lock(&lock);
    found->next = functions;
    functions = found;
    pthread_mutex_unlock(&lock);
    *function = found;
    return SUCCESS;
}

int standin_launch(LaunchRecord *record, void *function)
{
    Function *launched = (Function *)function;
    Context *context = launched->module->context;
    if (standin_current() != context) {
        return INVALID_HANDLE;
    }
    if ((uintptr_t)record->stream > 2 && ((Stream *)record->stream)->context != context) {
        return INVALID_HANDLE;
    }
    if (record->grid[0] == 0 || record->grid[1] == 0 || record->grid[2] == 0 ||
        record->grid[0] > 0x7fffffff || record->grid[1] > 65535 || record->grid[2] > 65535 ||
        record->block[0] == 0 || record->block[0] > launched->max_threads ||
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

/* As a plain launch gives them. */
LaunchRecord standin_record(const unsigned int *grid, const unsigned int *block,
                            unsigned int shared, void *stream, void **parameters)
{
    LaunchRecord record;
    memset(&record, 0, sizeof record);
    memcpy(record.grid, grid, sizeof record.grid);
    memcpy(record.block, block, sizeof record.block);
    record.shared = shared;
    record.cluster = 1;
    record.stream = stream;
    record.parameters = parameters;
    return record;
}

/* Of the attributes only the address that a device uses. */
int standin_pointer(void *value, int attribute, uint64_t address)
{
    if (attribute != 3 || address == unreachable) {
        return INVALID_VALUE;
    }
    memcpy(value, &address, sizeof address);
    return SUCCESS;
}

int standin_allocate(uint64_t *address, size_t bytes)
{
    Allocation *made;
    void *memory = NULL;
    if (standin_current() == NULL) {
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

int standin_release(uint64_t address)
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

/* `count` values of `width` bytes, `pitch` bytes from one to the next. */
int standin_fill(const char *name, uint64_t address, const void *value, size_t width, size_t pitch,
                 size_t count)
{
    const int failure = standin_enter(name);
    size_t i;
    for (i = 0; !failure && i < count; i++) {
        memcpy((char *)(uintptr_t)address + i * pitch, value, width);
    }
    return failure;
}
