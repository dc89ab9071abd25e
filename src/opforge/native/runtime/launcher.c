/* Prepares and launches a kernel as its image says. */
#include "runtime.h"

#include <string.h>

/* The values of cuda.h. */
#define MAX_DYNAMIC_SHARED_SIZE_BYTES 8
#define NON_PORTABLE_CLUSTER_SIZE_ALLOWED 14
#define CACHE_PREFER_SHARED 1

static OpforgeStatus set_function(const Driver *driver, void *function, int attribute, int value)
{
    const int error = driver->set_function(function, attribute, value);
    return error == OF_DRIVER_SUCCESS ? OPFORGE_OK
                                      : of_driver_failed(driver, error, &driver->set_function);
}

/* HIP asks for nothing of the kind. */
OpforgeStatus of_prepare_function(const Driver *driver, const Image *image, void *function)
{
    OpforgeStatus status = OPFORGE_OK;
    if (driver->set_function == NULL) {
        return OPFORGE_OK;
    }
    if (image->shared > driver->shared_without_asking) {
        /* As Triton's own launcher does; it decides how the L1 cache is split. */
        const int error = driver->set_cache(function, CACHE_PREFER_SHARED);
        if (error != OF_DRIVER_SUCCESS) {
            return of_driver_failed(driver, error, &driver->set_cache);
        }
        status = set_function(driver, function, MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)image->shared);
    }
    /* Clusters of 16 run on some devices only; the author of the kernel knows on which. */
    if (status == OPFORGE_OK && image->num_ctas == 16) {
        status = set_function(driver, function, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    }
    return status;
}

/* HIP's launches take no scheduling policy, and its GPUs have no programmatic launches. */
static unsigned int list_attributes(const Driver *driver, const Image *image,
                                    LaunchAttribute *attributes)
{
    unsigned int count = 0;
    if (image->programmatic && driver->vendor == OF_NVIDIA) {
        attributes[count].id = OF_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count++].value.number = 1;
    }
    if (image->cooperative) {
        attributes[count].id = OF_LAUNCH_COOPERATIVE;
        attributes[count++].value.number = 1;
    }
    if (image->num_ctas > 1) {
        attributes[count].id = OF_LAUNCH_CLUSTER_DIMENSION;
        attributes[count].value.dimensions[0] = (uint32_t)image->num_ctas;
        attributes[count].value.dimensions[1] = 1;
        attributes[count++].value.dimensions[2] = 1;
    }
    if (image->num_ctas > 1 && driver->vendor == OF_NVIDIA) {
        attributes[count].id = OF_LAUNCH_CLUSTER_SCHEDULING_POLICY;
        attributes[count++].value.number = OF_CLUSTER_SCHEDULING_POLICY_SPREAD;
    }
    return count;
}

static int launch_with_attributes(const Driver *driver, const Image *image, void *function,
                                  const int64_t *grid, void *stream, void **parameters)
{
    LaunchAttribute attributes[4];
    LaunchConfig config;
    memset(attributes, 0, sizeof attributes);
    memset(&config, 0, sizeof config);
    config.grid[0] = (unsigned int)(grid[0] * image->num_ctas);
    config.grid[1] = (unsigned int)grid[1];
    config.grid[2] = (unsigned int)grid[2];
    config.block[0] = (unsigned int)(image->num_warps * image->warp_size);
    config.block[1] = 1;
    config.block[2] = 1;
    config.shared = image->shared;
    config.stream = stream;
    config.attributes = attributes;
    config.attribute_count = list_attributes(driver, image, attributes);
    return driver->launch_with(&config, function, parameters, NULL);
}

OpforgeStatus of_launch(const Driver *driver, const Image *image, void *function,
                        const int64_t *grid, void *stream, void **parameters)
{
    const unsigned int threads = (unsigned int)(image->num_warps * image->warp_size);
    int error;
    if (image->num_ctas == 1 && !image->cooperative && !image->programmatic) {
        error = driver->launch(function, (unsigned int)grid[0], (unsigned int)grid[1],
                               (unsigned int)grid[2], threads, 1, 1, image->shared, stream,
                               parameters, NULL);
        return error == OF_DRIVER_SUCCESS ? OPFORGE_OK
                                          : of_driver_failed(driver, error, &driver->launch);
    }
    if (image->num_ctas == 1 && driver->launch_cooperative != NULL) {
        error = driver->launch_cooperative(function, (unsigned int)grid[0], (unsigned int)grid[1],
                                           (unsigned int)grid[2], threads, 1, 1, image->shared,
                                           stream, parameters);
        return error == OF_DRIVER_SUCCESS
                   ? OPFORGE_OK
                   : of_driver_failed(driver, error, &driver->launch_cooperative);
    }
    if (driver->launch_with == NULL) {
        return of_fail(OPFORGE_NO_DRIVER, "the driver has no %s; install a newer one",
                       of_call_name(driver, &driver->launch_with));
    }
    error = launch_with_attributes(driver, image, function, grid, stream, parameters);
    return error == OF_DRIVER_SUCCESS ? OPFORGE_OK
                                      : of_driver_failed(driver, error, &driver->launch_with);
}
