/* Opens a driver's library and puts its errors into words. */
#include "runtime.h"

#include <dlfcn.h>
#include <string.h>

/* Of several names, one that the process has already comes first: two libraries would not know each
 * other's streams and memory, and torch for ROCm brings its own. */
static void *open_library(const Driver *driver, const char **name)
{
    const int is_choice = driver->libraries[1] != NULL;
    const char *why = NULL;
    void *handle = NULL;
    int i;
    for (i = 0; is_choice && handle == NULL && driver->libraries[i] != NULL; i++) {
        *name = driver->libraries[i];
        handle = dlopen(*name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    }
    for (i = 0; handle == NULL && driver->libraries[i] != NULL; i++) {
        *name = driver->libraries[i];
        handle = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (handle == NULL && why == NULL) {
            why = dlerror();
            of_fail(OPFORGE_NO_DRIVER, "no %s driver: %s", driver->title, why ? why : *name);
        }
    }
    return handle;
}

/* Whether somebody in the process has opened it. */
int of_is_loaded(const Driver *driver)
{
    void *handle = NULL;
    int i;
    for (i = 0; handle == NULL && driver->libraries[i] != NULL; i++) {
        handle = dlopen(driver->libraries[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    }
    if (handle != NULL) {
        dlclose(handle);
    }
    return handle != NULL;
}

static OpforgeStatus find_symbols(const Driver *driver, void *handle, const char *library)
{
    int i;
    for (i = 0; i < driver->symbol_count; i++) {
        const Symbol *symbol = &driver->symbols[i];
        void *found = dlsym(handle, symbol->name);
        if (found == NULL && !symbol->is_optional) {
            return of_fail(OPFORGE_NO_DRIVER, "%s has no %s; install a newer %s", library,
                           symbol->name, driver->newer);
        }
        /* ISO C has no cast from a pointer to an object to one to a function. */
        memcpy(symbol->entry, &found, sizeof found);
    }
    return OPFORGE_OK;
}

/* Called under the runtime's lock. A failure is not kept: a later call tries again. */
OpforgeStatus of_open_driver(Driver *driver)
{
    OpforgeStatus status;
    int error;
    if (driver->is_ready) {
        return OPFORGE_OK;
    }
    if (driver->handle == NULL) {
        const char *name = NULL;
        void *opened = open_library(driver, &name);
        if (opened == NULL) {
            return OPFORGE_NO_DRIVER;
        }
        status = find_symbols(driver, opened, name);
        if (status != OPFORGE_OK) {
            dlclose(opened);
            return status;
        }
        driver->handle = opened;
    }
    error = driver->init(0);
    if (error != OF_DRIVER_SUCCESS) {
        return of_driver_failed(driver, error, &driver->init);
    }
    driver->is_ready = 1;
    return OPFORGE_OK;
}

const char *of_call_name(const Driver *driver, const void *entry)
{
    int i = 0;
    while (i < driver->symbol_count - 1 && driver->symbols[i].entry != entry) {
        i++;
    }
    return driver->symbols[i].name;
}

/* Without the version that some end with. */
static int length_of(const char *call)
{
    const char *version = strstr(call, "_v2");
    return version != NULL ? (int)(version - call) : (int)strlen(call);
}

OpforgeStatus of_driver_failed(const Driver *driver, int error, const void *entry)
{
    const char *name = NULL;
    const char *text = NULL;
    const char *call = of_call_name(driver, entry);
    OpforgeStatus status = OPFORGE_CUDA_ERROR;
    driver->error_name(error, &name);
    driver->error_text(error, &text);
    of_forgive(driver);
    if (error == OF_DRIVER_OUT_OF_MEMORY) {
        status = OPFORGE_OUT_OF_MEMORY;
    } else if (error == OF_DRIVER_NO_DEVICE) {
        status = OPFORGE_NO_DRIVER;
    }
    return of_fail(status, "%.*s: %s (%d): %s", length_of(call), call,
                   name ? name : "unknown error", error,
                   text ? text : "the driver has no text for it");
}

/* After a failure that is somebody's answer: nobody else shall find it. */
void of_forgive(const Driver *driver)
{
    if (driver->take_last_error != NULL) {
        driver->take_last_error();
    }
}
