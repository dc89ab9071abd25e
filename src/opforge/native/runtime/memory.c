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
    if (of_driver.cuMemAllocAsync == NULL || of_driver.cuMemFreeAsync == NULL) {
        return of_fail(OPFORGE_NO_DRIVER,
                       "the driver has no cuMemAllocAsync, and no allocator was set");
    }
    error = of_driver.cuMemAllocAsync(address, (size_t)bytes, scope->stream);
    if (error != OF_CUDA_SUCCESS) {
        of_cuda_failed(error, "cuMemAllocAsync");
        of_more(" (%lld bytes of workspace)", (long long)bytes);
        if (error != OF_CUDA_ERROR_OUT_OF_MEMORY) {
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
    while (workspace->count > 0) {
        const int i = --workspace->count;
        if (workspace->release != NULL) {
            workspace->release(workspace->context, (void *)(uintptr_t)workspace->addresses[i],
                               (size_t)workspace->bytes[i], scope->device->ordinal, scope->stream);
        } else {
            const int error = of_driver.cuMemFreeAsync(workspace->addresses[i], scope->stream);
            if (error != OF_CUDA_SUCCESS && status == OPFORGE_OK) {
                status = of_cuda_failed(error, "cuMemFreeAsync");
            }
        }
    }
    return status;
}

OpforgeStatus of_fill(void *stream, uint64_t address, int64_t count, int width, uint64_t pattern)
{
    const unsigned int low = (unsigned int)(pattern & 0xffffffffu);
    const unsigned int high = (unsigned int)(pattern >> 32);
    const size_t elements = (size_t)count;
    const char *name = "cuMemsetD2D32Async";
    int error;
    if (count == 0) {
        return OPFORGE_OK;
    }
    if (width == 1) {
        name = "cuMemsetD8Async";
        error = of_driver.cuMemsetD8Async(address, (unsigned char)low, elements, stream);
    } else if (width == 2) {
        name = "cuMemsetD16Async";
        error = of_driver.cuMemsetD16Async(address, (unsigned short)low, elements, stream);
    } else if (width == 4 || low == high) {
        name = "cuMemsetD32Async";
        error =
            of_driver.cuMemsetD32Async(address, low, width == 4 ? elements : elements * 2, stream);
    } else {
        /* There is no memset of 8 bytes: fill one half of each element, then the other. */
        error = of_driver.cuMemsetD2D32Async(address, 8, low, 1, elements, stream);
        if (error == OF_CUDA_SUCCESS) {
            error = of_driver.cuMemsetD2D32Async(address + 4, 8, high, 1, elements, stream);
        }
    }
    return error == OF_CUDA_SUCCESS ? OPFORGE_OK : of_cuda_failed(error, name);
}
