/* Loads the image of a kernel that fits a device. */
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>

/* Held by a whole load or unload, so that no device is closed while its kernels are loaded. Taken
 * before the runtime's lock, which a load gives back between kernels: calls may want it. */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static OpforgeStatus no_image(const Device *device, const Kernel *kernel)
{
    int i;
    of_fail(OPFORGE_NO_IMAGE, "%s has no image for ", kernel->key);
    of_describe_arch(device->driver->vendor, device->arch);
    of_more(" (device %d); it has", device->ordinal);
    for (i = 0; i < kernel->image_count; i++) {
        of_more("%s ", i ? "," : "");
        of_describe_image(&kernel->images[i]);
    }
    of_more("%s; the library was built for %s: rebuild it with opforge build ... --arch ",
            kernel->image_count ? "" : " none", of_archs);
    of_describe_arch(device->driver->vendor, device->arch);
    return OPFORGE_NO_IMAGE;
}

/* Keeps a module that could not be unloaded: it is used by the next load, or unloaded then. */
static int unload_module(const Driver *driver, Loaded *loaded)
{
    const int error = driver->unload_module(loaded->module);
    if (error == OF_DRIVER_SUCCESS) {
        loaded->module = NULL;
    } else {
        of_forgive(driver);
    }
    return error;
}

OpforgeStatus of_image(Device *device, int kernel, const Image **found)
{
    const Kernel *wanted = &of_kernels[kernel];
    const Image *image = of_choose_image(wanted, device->driver->vendor, device->arch);
    if (image == NULL) {
        return no_image(device, wanted);
    }
    *found = image;
    return of_check_shared(device, image, wanted->key);
}

/* Under the lock, and with the device current. */
static OpforgeStatus load_kernel(Device *device, int kernel, Loaded *loaded)
{
    const Driver *driver = device->driver;
    const Image *image = NULL;
    OpforgeStatus status = of_image(device, kernel, &image);
    void *function = NULL;
    int error;
    if (status != OPFORGE_OK) {
        return status;
    }
    if (loaded->module == NULL) {
        void *module = NULL;
        error = driver->load_module(&module, image->data);
        if (error != OF_DRIVER_SUCCESS) {
            return of_driver_failed(driver, error, &driver->load_module);
        }
        loaded->module = module;
    }
    error = driver->get_function(&function, loaded->module, image->function);
    status = error == OF_DRIVER_SUCCESS ? of_prepare_function(driver, image, function)
                                        : of_driver_failed(driver, error, &driver->get_function);
    if (status != OPFORGE_OK) {
        unload_module(driver, loaded);
        return status;
    }
    loaded->image = image;
    __atomic_store_n(&loaded->function, function, __ATOMIC_RELEASE);
    return OPFORGE_OK;
}

OpforgeStatus of_kernel(Device *device, int kernel, const Loaded **found)
{
    Loaded *loaded = &device->kernels[kernel];
    OpforgeStatus status = OPFORGE_OK;
    *found = loaded;
    if (__atomic_load_n(&loaded->function, __ATOMIC_ACQUIRE) != NULL) {
        return OPFORGE_OK;
    }
    of_lock();
    if (loaded->function == NULL) {
        status = load_kernel(device, kernel, loaded);
    }
    of_unlock();
    return status;
}

static OpforgeStatus load(Place place)
{
    Scope scope;
    const Loaded *loaded;
    int missing = 0;
    int i;
    OpforgeStatus status = of_enter(place, NULL, &scope);
    if (status != OPFORGE_OK) {
        return status;
    }
    for (i = 0; i < of_kernel_count && status == OPFORGE_OK; i++) {
        status = of_kernel(scope.device, i, &loaded);
        /* A kernel may be needed on other architectures only. */
        if (status == OPFORGE_NO_IMAGE && ++missing < of_kernel_count) {
            status = OPFORGE_OK;
        }
    }
    return of_leave(&scope, status);
}

/* Keeps why no vendor so far has the device: a number that is wrong says more than a driver that is
 * missing, and two missing drivers are both told. */
static OpforgeStatus none_yet(OpforgeStatus before, OpforgeStatus now, char first[512])
{
    if (before == OPFORGE_INVALID_ARGUMENT && now == OPFORGE_NO_DRIVER) {
        return of_fail(before, "%s", first);
    }
    if (before == OPFORGE_NO_DRIVER && now == OPFORGE_NO_DRIVER) {
        of_more("; %s", first);
    }
    snprintf(first, 512, "%.511s", of_last_error());
    return now;
}

/* On the device of that number of each vendor that the library was built for. One of them may be
 * missing: most machines have GPUs of one vendor. */
OpforgeStatus of_load(const char *function, int ordinal)
{
    OpforgeStatus status = OPFORGE_OK;
    OpforgeStatus missing = OPFORGE_OK;
    char first[512] = "";
    Place place = {OF_VENDORS, ordinal};
    int loaded = 0;
    pthread_mutex_lock(&loading);
    while (status == OPFORGE_OK && place.vendor-- > 0) {
        /* A library without kernels is opened on NVIDIA's. */
        if (!of_is_built_for(place.vendor) && (of_arch_count > 0 || place.vendor != OF_NVIDIA)) {
            continue;
        }
        status = load(place);
        loaded |= status == OPFORGE_OK;
        if (status == OPFORGE_NO_DRIVER || status == OPFORGE_INVALID_ARGUMENT) {
            missing = none_yet(missing, status, first);
            status = OPFORGE_OK;
        }
    }
    pthread_mutex_unlock(&loading);
    if (status == OPFORGE_OK && !loaded) {
        status = missing;
    }
    return status == OPFORGE_OK ? status : of_failed_in(function, status);
}

/* Under the lock. Keeps what could not be unloaded, so that the call can be repeated. */
static OpforgeStatus unload_kernels(Device *device)
{
    OpforgeStatus status = OPFORGE_OK;
    int i;
    for (i = 0; i < of_kernel_count; i++) {
        Loaded *loaded = &device->kernels[i];
        if (loaded->module != NULL) {
            const int error = unload_module(device->driver, loaded);
            if (error == OF_DRIVER_SUCCESS) {
                __atomic_store_n(&loaded->function, (void *)NULL, __ATOMIC_RELEASE);
            } else if (status == OPFORGE_OK) {
                status = of_driver_failed(device->driver, error, &device->driver->unload_module);
            }
        }
    }
    return status;
}

/* Under the lock, so that no other thread closes the device meanwhile. */
static OpforgeStatus unload(Place place)
{
    Scope scope;
    OpforgeStatus status;
    if (of_open_device(place) == NULL) {
        return OPFORGE_OK;
    }
    status = of_enter(place, NULL, &scope);
    if (status == OPFORGE_OK) {
        status = of_drop_graphs(scope.device);
        if (status == OPFORGE_OK) {
            status = unload_kernels(scope.device);
        }
        status = of_leave(&scope, status);
    }
    if (status == OPFORGE_OK) {
        status = of_close_device(scope.device);
    }
    return status;
}

OpforgeStatus of_unload(const char *function, int ordinal)
{
    OpforgeStatus status = OPFORGE_OK;
    Place place = {0, ordinal};
    pthread_mutex_lock(&loading);
    of_lock();
    for (; status == OPFORGE_OK && place.vendor < OF_VENDORS; place.vendor++) {
        status = unload(place);
    }
    of_unlock();
    pthread_mutex_unlock(&loading);
    return status == OPFORGE_OK ? status : of_failed_in(function, status);
}
