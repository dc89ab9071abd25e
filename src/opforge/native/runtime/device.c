/* Devices: their drivers and attributes, and which one is current. */
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>

#define MAX_DEVICES 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Device *devices[OF_VENDORS][MAX_DEVICES];

/* The driver's number of each OF_DEVICE_...; -1 where it is not asked. */
static const int numbers[][OF_VENDORS] = {
#define OF_ATTRIBUTE(name, cuda, hip) {cuda, hip},
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

/* Under the lock. */
static OpforgeStatus open_driver(int vendor, const Driver **opened)
{
    Driver *driver = vendor == OF_AMD ? of_hip_driver() : of_cuda_driver();
    *opened = driver;
    return of_open_driver(driver);
}

/* Opens it, if need be. */
OpforgeStatus of_driver(int vendor, const Driver **driver)
{
    OpforgeStatus status;
    of_lock();
    status = open_driver(vendor, driver);
    of_unlock();
    return status;
}

/* Of a caller that does not say: the one that the library was built for; of two, AMD's where only
 * its driver is in the process. */
int of_likely_vendor(void)
{
    int is_amd = of_is_built_for(OF_AMD);
    if (is_amd && of_is_built_for(OF_NVIDIA)) {
        of_lock();
        is_amd = of_is_loaded(of_hip_driver()) && !of_is_loaded(of_cuda_driver());
        of_unlock();
    }
    return is_amd ? OF_AMD : OF_NVIDIA;
}

/* Whether that would be a guess. */
int of_may_be_either(void)
{
    int is_either = of_is_built_for(OF_AMD) && of_is_built_for(OF_NVIDIA);
    if (is_either) {
        of_lock();
        is_either = of_is_loaded(of_hip_driver()) && of_is_loaded(of_cuda_driver());
        of_unlock();
    }
    return is_either;
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
    const Driver *driver = device->driver;
    const int number = numbers[attribute][driver->vendor];
    int answer = 0;
    int error;
    *value = __atomic_load_n(&device->attributes[attribute], __ATOMIC_RELAXED);
    if (*value != UNKNOWN) {
        return OPFORGE_OK;
    }
    error = driver->attribute(&answer, number, device->handle);
    if (error != OF_DRIVER_SUCCESS) {
        const OpforgeStatus status = of_driver_failed(driver, error, &driver->attribute);
        of_more(" (attribute %d)", number);
        return status;
    }
    if (!is_answer(attribute, answer)) {
        return of_fail(OPFORGE_CUDA_ERROR, "the driver reports %d multiprocessors for device %d",
                       answer, device->ordinal);
    }
    *value = answer;
    __atomic_store_n(&device->attributes[attribute], *value, __ATOMIC_RELAXED);
    return OPFORGE_OK;
}

/* Whether the device has the dynamic shared memory that a launch of the image uses. */
OpforgeStatus of_check_shared(Device *device, const Image *image, const char *kernel)
{
    OpforgeStatus status;
    int64_t offered;
    if (image->shared <= device->driver->shared_without_asking) {
        return OPFORGE_OK;
    }
    status = of_attribute(device, OF_DEVICE_SHARED_MEMORY_PER_BLOCK_OPTIN, &offered);
    if (status != OPFORGE_OK || (int64_t)image->shared <= offered) {
        return status;
    }
    of_fail(OPFORGE_NO_IMAGE, "%s needs %u bytes of shared memory, but device %d (", kernel,
            image->shared, device->ordinal);
    of_describe_arch(device->driver->vendor, device->arch);
    of_more(") has %lld", (long long)offered);
    return OPFORGE_NO_IMAGE;
}

static OpforgeStatus ask(Device *device)
{
    const Driver *driver = device->driver;
    OpforgeStatus status;
    int i;
    for (i = 0; i < OF_DEVICE_ATTRIBUTES; i++) {
        int value = 0;
        int error;
        if (numbers[i][driver->vendor] < 0) {
            continue;
        }
        error = driver->attribute(&value, numbers[i][driver->vendor], device->handle);
        /* A driver or a board may not know all of them, and most operators ask for none. */
        if (error != OF_DRIVER_SUCCESS &&
            (error != OF_DRIVER_INVALID_VALUE || i == OF_DEVICE_MAJOR || i == OF_DEVICE_MINOR)) {
            return of_driver_failed(driver, error, &driver->attribute);
        }
        if (error != OF_DRIVER_SUCCESS) {
            of_forgive(driver);
        }
        device->attributes[i] = error == OF_DRIVER_SUCCESS && is_answer(i, value) ? value : UNKNOWN;
    }
    device->attributes[OF_DEVICE_VENDOR] = driver->vendor;
    status = driver->find_arch(device);
    device->attributes[OF_DEVICE_ARCH] = of_counts_as(driver->vendor, device->arch);
    return status;
}

static OpforgeStatus open_device(int ordinal, Device *device)
{
    const Driver *driver = device->driver;
    OpforgeStatus status;
    int count = 0;
    int error = driver->device_count(&count);
    if (error != OF_DRIVER_SUCCESS) {
        return of_driver_failed(driver, error, &driver->device_count);
    }
    if (ordinal < 0 || ordinal >= count || ordinal >= MAX_DEVICES) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "device %d does not exist; the driver has %d",
                       ordinal, count);
    }
    device->ordinal = ordinal;
    error = driver->get_device(&device->handle, ordinal);
    if (error != OF_DRIVER_SUCCESS) {
        return of_driver_failed(driver, error, &driver->get_device);
    }
    status = ask(device);
    if (status != OPFORGE_OK || driver->retain_context == NULL) {
        return status;
    }
    error = driver->retain_context(&device->context, device->handle);
    if (error != OF_DRIVER_SUCCESS) {
        return of_driver_failed(driver, error, &driver->retain_context);
    }
    return OPFORGE_OK;
}

/* Before its driver is asked for: that one would be missing, too, and not the reason. */
static OpforgeStatus not_built_for(Place place)
{
    const int is_amd = place.vendor == OF_AMD;
    return of_fail(OPFORGE_NO_IMAGE,
                   "device %d is an %s GPU, and the library was built for %s: rebuild it with "
                   "opforge build ... --arch %s; %s GPUs have DLPack's device type %d",
                   place.ordinal, is_amd ? "AMD" : "NVIDIA", of_archs,
                   is_amd ? "gfx942, for example" : "sm_90, for example", is_amd ? "NVIDIA" : "AMD",
                   is_amd ? 2 : 10);
}

static OpforgeStatus add_device(Place place, Device **added)
{
    const Driver *driver;
    OpforgeStatus status;
    Device *device;
    if (of_arch_count > 0 && !of_is_built_for(place.vendor)) {
        return not_built_for(place);
    }
    status = open_driver(place.vendor, &driver);
    if (status != OPFORGE_OK) {
        return status;
    }
    device = (Device *)calloc(1, sizeof *device);
    if (device != NULL) {
        device->driver = driver;
        /* One more, because calloc of nothing may return NULL. */
        device->kernels = (Loaded *)calloc((size_t)of_kernel_count + 1, sizeof *device->kernels);
    }
    if (device == NULL || device->kernels == NULL) {
        free(device);
        return of_fail(OPFORGE_OUT_OF_MEMORY, "out of host memory for the state of device %d",
                       place.ordinal);
    }
    status = open_device(place.ordinal, device);
    if (status != OPFORGE_OK) {
        free(device->kernels);
        free(device);
        return status;
    }
    __atomic_store_n(&devices[place.vendor][place.ordinal], device, __ATOMIC_RELEASE);
    *added = device;
    return OPFORGE_OK;
}

OpforgeStatus of_device(Place place, Device **device)
{
    OpforgeStatus status = OPFORGE_OK;
    *device = of_open_device(place);
    if (*device != NULL) {
        return OPFORGE_OK;
    }
    of_lock();
    /* Another thread may have been faster. */
    *device = of_open_device(place);
    if (*device == NULL) {
        status = add_device(place, device);
    }
    of_unlock();
    return status;
}

/* NULL for a device that is not open. */
Device *of_open_device(Place place)
{
    if (place.ordinal < 0 || place.ordinal >= MAX_DEVICES) {
        return NULL;
    }
    return __atomic_load_n(&devices[place.vendor][place.ordinal], __ATOMIC_ACQUIRE);
}

/* Under the lock, after its modules are unloaded. A later call opens the device again. */
OpforgeStatus of_close_device(Device *device)
{
    const Driver *driver = device->driver;
    if (driver->release_context != NULL) {
        const int error = driver->release_context(device->handle);
        if (error != OF_DRIVER_SUCCESS) {
            return of_driver_failed(driver, error, &driver->release_context);
        }
    }
    __atomic_store_n(&devices[driver->vendor][device->ordinal], (Device *)NULL, __ATOMIC_RELEASE);
    free(device->kernels);
    free(device);
    return OPFORGE_OK;
}

OpforgeStatus of_enter(Place place, void *stream, Scope *scope)
{
    const OpforgeStatus status = of_device(place, &scope->device);
    if (status != OPFORGE_OK) {
        return status;
    }
    scope->stream = stream;
    scope->is_changed = 0;
    return scope->device->driver->enter(scope);
}

OpforgeStatus of_leave(Scope *scope, OpforgeStatus status)
{
    return scope->is_changed ? scope->device->driver->leave(scope, status) : status;
}
