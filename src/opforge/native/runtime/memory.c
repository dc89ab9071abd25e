/* Workspace, from the caller's allocator or the driver's, and fills. */
#include "runtime.h"

static OpforgeAllocate set_allocate;
static OpforgeRelease set_release;
static void *set_context;
/* For the calls of one thread, unless an allocator was set. */
static __thread OpforgeAllocate own_allocate;
static __thread OpforgeRelease own_release;

void of_use_allocator(OpforgeAllocate allocate, OpforgeRelease release)
{
    own_allocate = allocate;
    own_release = release;
}

OpforgeStatus of_set_allocator(const char *function, OpforgeAllocate allocate,
                               OpforgeRelease release, void *context)
{
    if ((allocate == NULL) != (release == NULL)) {
        of_fail(OPFORGE_INVALID_ARGUMENT, "%s",
                allocate == NULL ? "allocate is NULL, but release is not"
                                 : "release is NULL, but allocate is not");
        return of_failed_in(function, OPFORGE_INVALID_ARGUMENT);
    }
    of_lock();
    set_allocate = allocate;
    set_release = release;
    set_context = context;
    of_unlock();
    return OPFORGE_OK;
}

static void find_allocator(Workspace *workspace)
{
    if (!workspace->has_allocator) {
        of_lock();
        workspace->allocate = set_allocate;
        workspace->release = set_release;
        workspace->context = set_context;
        of_unlock();
        if (workspace->allocate == NULL) {
            workspace->allocate = own_allocate;
            workspace->release = own_release;
        }
        workspace->has_allocator = 1;
    }
}

static OpforgeStatus allocate(const Workspace *workspace, int64_t bytes, int64_t alignment,
                              uint64_t *address)
{
    const Scope *scope = workspace->scope;
    const Driver *driver = scope->device->driver;
    int error;
    if (workspace->allocate != NULL) {
        void *pointer = workspace->allocate(workspace->context, (size_t)bytes, (size_t)alignment,
                                            scope->device->ordinal, scope->stream);
        if (pointer == NULL) {
            return of_fail(OPFORGE_OUT_OF_MEMORY,
                           "the allocator returned NULL for %lld bytes of workspace; "
                           "%s_workspace tells the bytes before a call",
                           (long long)bytes, workspace->function);
        }
        *address = (uint64_t)(uintptr_t)pointer;
        return OPFORGE_OK;
    }
    if (driver->allocate == NULL || driver->release == NULL) {
        return of_fail(OPFORGE_NO_DRIVER, "the driver has no %s, and no allocator was set",
                       of_call_name(driver, &driver->allocate));
    }
    error = driver->allocate(address, (size_t)bytes, scope->stream);
    if (error != OF_DRIVER_SUCCESS) {
        of_driver_failed(driver, error, &driver->allocate);
        of_more(" (%lld bytes of workspace)", (long long)bytes);
        if (error != OF_DRIVER_OUT_OF_MEMORY) {
            return OPFORGE_CUDA_ERROR;
        }
        of_more("; %s_workspace tells the bytes before a call", workspace->function);
        return OPFORGE_OUT_OF_MEMORY;
    }
    return OPFORGE_OK;
}

OpforgeStatus of_allocate(Workspace *workspace, int64_t bytes, int64_t alignment, uint64_t *address)
{
    OpforgeStatus status;
    *address = 0;
    if (bytes == 0) {
        return OPFORGE_OK;
    }
    find_allocator(workspace);
    status = allocate(workspace, bytes, alignment, address);
    if (status != OPFORGE_OK) {
        return status;
    }
    workspace->addresses[workspace->count] = *address;
    workspace->bytes[workspace->count] = bytes;
    workspace->count++;
    /* The variants were chosen for this alignment. */
    if (*address % (uint64_t)alignment != 0) {
        return of_fail(OPFORGE_OUT_OF_MEMORY,
                       "the allocator returned 0x%llx for %lld bytes aligned to %lld",
                       (unsigned long long)*address, (long long)bytes, (long long)alignment);
    }
    return OPFORGE_OK;
}

/* The first failure is the one that is reported. */
OpforgeStatus of_release_all(Workspace *workspace, OpforgeStatus status)
{
    const Scope *scope = workspace->scope;
    const Driver *driver = scope->device->driver;
    while (workspace->count > 0) {
        const int i = --workspace->count;
        if (workspace->release != NULL) {
            workspace->release(workspace->context, (void *)(uintptr_t)workspace->addresses[i],
                               (size_t)workspace->bytes[i], scope->device->ordinal, scope->stream);
        } else {
            const int error = driver->release(workspace->addresses[i], scope->stream);
            if (error != OF_DRIVER_SUCCESS && status == OPFORGE_OK) {
                status = of_driver_failed(driver, error, &driver->release);
            } else if (error != OF_DRIVER_SUCCESS) {
                of_forgive(driver);
            }
        }
    }
    return status;
}

OpforgeStatus of_fill(const Scope *scope, uint64_t address, int64_t count, int width,
                      uint64_t pattern)
{
    const Driver *driver = scope->device->driver;
    const unsigned int low = (unsigned int)(pattern & 0xffffffffu);
    const size_t elements = (size_t)count;
    const void *entry;
    int error;
    if (count == 0) {
        return OPFORGE_OK;
    }
    if (width == 1) {
        entry = &driver->fill_8;
        error = driver->fill_8(address, (unsigned char)low, elements, scope->stream);
    } else if (width == 2) {
        entry = &driver->fill_16;
        error = driver->fill_16(address, (unsigned short)low, elements, scope->stream);
    } else if (width == 4 || low == pattern >> 32) {
        entry = &driver->fill_32;
        error = driver->fill_32(address, low, width == 4 ? elements : elements * 2, scope->stream);
    } else {
        return driver->fill_64(address, pattern, elements, scope->stream);
    }
    return error == OF_DRIVER_SUCCESS ? OPFORGE_OK : of_driver_failed(driver, error, entry);
}
