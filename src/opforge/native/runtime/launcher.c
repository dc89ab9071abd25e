/* Prepares and launches a kernel as its image says. */
#include "runtime.h"

#include <string.h>

OpforgeStatus of_prepare_function(const Image *image, void *function)
{
    int error;
    if (image->shared > OF_SHARED_WITHOUT_ASKING) {
        /* As Triton's own launcher does; it decides how the L1 cache is split. */
        error = of_driver.cuFuncSetCacheConfig(function, OF_FUNC_CACHE_PREFER_SHARED);
        if (error != OF_CUDA_SUCCESS) {
            return of_cuda_failed(error, "cuFuncSetCacheConfig");
        }
        error = of_driver.cuFuncSetAttribute(function, OF_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                             (int)image->shared);
        if (error != OF_CUDA_SUCCESS) {
            return of_cuda_failed(error, "cuFuncSetAttribute");
        }
    }
    /* Clusters of 16 run on some devices only; the author of the kernel knows on which. */
    if (image->num_ctas == 16) {
        error =
            of_driver.cuFuncSetAttribute(function, OF_FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
        if (error != OF_CUDA_SUCCESS) {
            return of_cuda_failed(error, "cuFuncSetAttribute");
        }
    }
    return OPFORGE_OK;
}

static int launch_with_attributes(const Image *image, void *function, const int64_t *grid,
                                  void *stream, void **parameters)
{
    LaunchAttribute attributes[4];
    LaunchConfig config;
    unsigned int count = 0;
    memset(attributes, 0, sizeof attributes);
    memset(&config, 0, sizeof config);
    if (image->programmatic) {
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
        attributes[count].id = OF_LAUNCH_CLUSTER_SCHEDULING_POLICY;
        attributes[count++].value.number = OF_CLUSTER_SCHEDULING_POLICY_SPREAD;
    }
    config.grid[0] = (unsigned int)(grid[0] * image->num_ctas);
    config.grid[1] = (unsigned int)grid[1];
    config.grid[2] = (unsigned int)grid[2];
    config.block[0] = (unsigned int)image->num_warps * 32;
    config.block[1] = 1;
    config.block[2] = 1;
    config.shared = image->shared;
    config.stream = stream;
    config.attributes = attributes;
    config.attribute_count = count;
    return of_driver.cuLaunchKernelEx(&config, function, parameters, NULL);
}

OpforgeStatus of_launch(const Image *image, void *function, const int64_t *grid, void *stream,
                        void **parameters)
{
    int error;
    if (image->num_ctas == 1 && !image->cooperative && !image->programmatic) {
        error = of_driver.cuLaunchKernel(function, (unsigned int)grid[0], (unsigned int)grid[1],
                                         (unsigned int)grid[2], (unsigned int)image->num_warps * 32,
                                         1, 1, image->shared, stream, parameters, NULL);
        return error == OF_CUDA_SUCCESS ? OPFORGE_OK : of_cuda_failed(error, "cuLaunchKernel");
    }
    if (of_driver.cuLaunchKernelEx == NULL) {
        return of_fail(OPFORGE_NO_DRIVER,
                       "the driver has no cuLaunchKernelEx; install a newer one");
    }
    error = launch_with_attributes(image, function, grid, stream, parameters);
    return error == OF_CUDA_SUCCESS ? OPFORGE_OK : of_cuda_failed(error, "cuLaunchKernelEx");
}
