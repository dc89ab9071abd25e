/* The functions of the API that belong to no operator; the manifest is in manifest.c. */
#include "runtime.h"

#include "api.h"

/* Programs refer to it by its name, and so link with no library of another ABI. */
const int OF_FUNCTION(abi_1) = OPFORGE_ABI_VERSION;

int OF_FUNCTION(abi_version)(void)
{
    return OPFORGE_ABI_VERSION;
}

OpforgeStatus OF_FUNCTION(load)(int device)
{
    return of_load(OF_LIBRARY "_load", device);
}

OpforgeStatus OF_FUNCTION(unload)(int device)
{
    return of_unload(OF_LIBRARY "_unload", device);
}

OpforgeStatus OF_FUNCTION(set_allocator)(OpforgeAllocate allocate, OpforgeRelease release,
                                         void *context)
{
    return of_set_allocator(OF_LIBRARY "_set_allocator", allocate, release, context);
}

/* opforge.load sets it while it opens the torch adapter, which then defines no operators. */
OPFORGE_API int OF_FUNCTION(torch_deferred);
int OF_FUNCTION(torch_deferred) = 0;

/* The torch adapter sets it around its calls, which are on torch's stream as its memory is. */
OPFORGE_API void OF_FUNCTION(torch_allocator)(OpforgeAllocate allocate, OpforgeRelease release);
void OF_FUNCTION(torch_allocator)(OpforgeAllocate allocate, OpforgeRelease release)
{
    of_use_allocator(allocate, release);
}

const char *OF_FUNCTION(last_error)(void)
{
    return of_last_error();
}
