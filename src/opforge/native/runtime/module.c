/* Loads the image of a kernel that fits a device. */
#include "runtime.h"

#include <pthread.h>

/* Held by a whole load or unload, so that no device is closed while its kernels are loaded. Taken
 * before the runtime's lock, which a load gives back between kernels: calls may want it. */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static OpforgeStatus no_image(const Device *device, const Kernel *kernel)
{
    int i;
    of_fail(OPFORGE_NO_IMAGE, "%s has no image for sm_%d (device %d); it has", kernel->key,
            device->arch, device->ordinal);
    for (i = 0; i < kernel->image_count; i++) {
        const Image *image = &kernel->images[i];
        of_more("%s %s%d%s", i ? "," : "", image->is_ptx ? "PTX for sm_" : "sm_", image->arch,
                image->arch >= OF_FIRST_ARCH_SPECIFIC ? "a" : "");
    }
    of_more("%s; the library was built for %s: rebuild it with opforge build ... --arch sm_%d",
            kernel->image_count ? "" : " none", of_archs, device->arch);
    return OPFORGE_NO_IMAGE;
}

/* Keeps a module that could not be unloaded: it is used by the next load, or unloaded then. */
static int unload_module(Loaded *loaded)
{
    const int error = of_driver.cuModuleUnload(loaded->module);
    if (error == OF_CUDA_SUCCESS) {
        loaded->module = NULL;
    }
    return error;
}

OpforgeStatus of_image(Device *device, int kernel, const Image **found)
{
    const Kernel *wanted = &of_kernels[kernel];
    const Image *image = of_choose_image(wanted, device->arch);
    int64_t offered = OF_SHARED_WITHOUT_ASKING;
    if (image == NULL) {
        return no_image(device, wanted);
    }
    if (image->shared > OF_SHARED_WITHOUT_ASKING) {
        const OpforgeStatus status =
            of_attribute(device, OF_DEVICE_SHARED_MEMORY_PER_BLOCK_OPTIN, &offered);
        if (status != OPFORGE_OK) {
            return status;
        }
    }
    if ((int64_t)image->shared > offered && image->shared > OF_SHARED_WITHOUT_ASKING) {
        return of_fail(
            OPFORGE_NO_IMAGE, "%s needs %u bytes of shared memory, but device %d (sm_%d) has %lld",
            wanted->key, image->shared, device->ordinal, device->arch, (long long)offered);
    }
    *found = image;
    return OPFORGE_OK;
}

/* Under the lock, and with the device's context current. */
static OpforgeStatus load_kernel(Device *device, int kernel, Loaded *loaded)
{
    const Image *image = NULL;
    OpforgeStatus status = of_image(device, kernel, &image);
    void *function = NULL;
    int error;
    if (status != OPFORGE_OK) {
        return status;
    }
    if (loaded->module == NULL) {
        void *module = NULL;
        error = of_driver.cuModuleLoadData(&module, image->data);
        if (error != OF_CUDA_SUCCESS) {
            return of_cuda_failed(error, "cuModuleLoadData");
        }
        loaded->module = module;
    }
    error = of_driver.cuModuleGetFunction(&function, loaded->module, image->function);
    status = error == OF_CUDA_SUCCESS ? of_prepare_function(image, function)
                                      : of_cuda_failed(error, "cuModuleGetFunction");
    if (status != OPFORGE_OK) {
        unload_module(loaded);
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

static OpforgeStatus load(int ordinal)
{
    Scope scope;
    const Loaded *loaded;
    int missing = 0;
    int i;
    OpforgeStatus status = of_enter(ordinal, NULL, &scope);
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

OpforgeStatus of_load(const char *function, int ordinal)
{
    OpforgeStatus status;
    pthread_mutex_lock(&loading);
    status = load(ordinal);
    pthread_mutex_unlock(&loading);
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
            const int error = unload_module(loaded);
            if (error == OF_CUDA_SUCCESS) {
                __atomic_store_n(&loaded->function, (void *)NULL, __ATOMIC_RELEASE);
            } else if (status == OPFORGE_OK) {
                status = of_cuda_failed(error, "cuModuleUnload");
            }
        }
    }
    return status;
}

/* Under the lock, so that no other thread closes the device meanwhile. */
static OpforgeStatus unload(int ordinal)
{
    Scope scope;
    OpforgeStatus status;
    if (of_open_device(ordinal) == NULL) {
        return OPFORGE_OK;
    }
    status = of_enter(ordinal, NULL, &scope);
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
    OpforgeStatus status;
    pthread_mutex_lock(&loading);
    of_lock();
    status = unload(ordinal);
    of_unlock();
    pthread_mutex_unlock(&loading);
    return status == OPFORGE_OK ? status : of_failed_in(function, status);
}
