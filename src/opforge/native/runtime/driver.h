/* The functions of the CUDA driver that are used, found in libcuda at run time.
 *
 * Declared here, so that building the library needs neither CUDA headers nor libcuda, and it loads
 * on machines without a driver.
 */
#ifndef OPFORGE_DRIVER_H
#define OPFORGE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* The values of cuda.h. */
#define OF_CUDA_SUCCESS 0
#define OF_CUDA_ERROR_INVALID_VALUE 1
#define OF_CUDA_ERROR_OUT_OF_MEMORY 2
#define OF_CUDA_ERROR_NO_DEVICE 100
#define OF_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES 8
#define OF_FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED 14
#define OF_FUNC_CACHE_PREFER_SHARED 1
#define OF_LAUNCH_COOPERATIVE 2
#define OF_LAUNCH_CLUSTER_DIMENSION 4
#define OF_LAUNCH_CLUSTER_SCHEDULING_POLICY 5
#define OF_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION 6
#define OF_CLUSTER_SCHEDULING_POLICY_SPREAD 1
#define OF_CAPTURE_MODE_RELAXED 2
#define OF_MAP_INTERLEAVE_NONE 0
#define OF_MAP_L2_PROMOTION_128B 2
#define OF_MAP_FILL_NAN 1
#define OF_MAP_TF32 11

/* CUlaunchAttribute and CUlaunchConfig; the value is a union of 64 bytes, aligned as a pointer. */
typedef struct {
    uint32_t id;
    uint32_t padding;
    union {
        uint32_t number;
        uint32_t dimensions[3];
        uint64_t whole[8];
    } value;
} LaunchAttribute;

typedef struct {
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared;
    void *stream;
    LaunchAttribute *attributes;
    unsigned int attribute_count;
} LaunchConfig;

/* CUtensorMap */
typedef struct {
    uint64_t words[16];
} __attribute__((aligned(64))) TensorMap;

/* CUDA_KERNEL_NODE_PARAMS_v2 */
typedef struct {
    void *function;
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared;
    void **parameters;
    void **extra;
    void *kernel;
    void *context;
} KernelNode;

typedef struct {
    int (*cuInit)(unsigned int flags);
    int (*cuDeviceGetCount)(int *count);
    int (*cuDeviceGet)(int *device, int ordinal);
    int (*cuDeviceGetAttribute)(int *value, int attribute, int device);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuDevicePrimaryCtxRelease)(int device);
    int (*cuCtxGetCurrent)(void **context);
    int (*cuCtxPushCurrent)(void *context);
    int (*cuCtxPopCurrent)(void **context);
    int (*cuCtxGetDevice)(int *device);
    int (*cuStreamGetCtx)(void *stream, void **context);
    int (*cuModuleLoadData)(void **module, const void *image);
    int (*cuModuleUnload)(void *module);
    int (*cuModuleGetFunction)(void **function, void *module, const char *name);
    int (*cuFuncSetAttribute)(void *function, int attribute, int value);
    int (*cuFuncSetCacheConfig)(void *function, int config);
    int (*cuLaunchKernel)(void *function, unsigned int grid_x, unsigned int grid_y,
                          unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                          unsigned int block_z, unsigned int shared, void *stream,
                          void **parameters, void **extra);
    /* Missing before CUDA 11.8; only clusters and cooperative launches need it. */
    int (*cuLaunchKernelEx)(const LaunchConfig *config, void *function, void **parameters,
                            void **extra);
    /* Missing before CUDA 12.0; only tensor descriptors need it. */
    int (*cuTensorMapEncodeTiled)(TensorMap *map, int element, uint32_t rank, void *address,
                                  const uint64_t *extents, const uint64_t *between,
                                  const uint32_t *box, const uint32_t *steps, int interleave,
                                  int swizzle, int promotion, int fill);
    /* Missing before CUDA 12.0; without them kernels are launched one by one. */
    int (*cuGraphCreate)(void **graph, unsigned int flags);
    int (*cuGraphDestroy)(void *graph);
    int (*cuGraphAddKernelNode)(void **node, void *graph, void *const *after, size_t count,
                                const KernelNode *launch);
    int (*cuGraphInstantiate)(void **executable, void *graph, unsigned long long flags);
    int (*cuGraphExecKernelNodeSetParams)(void *executable, void *node, const KernelNode *launch);
    int (*cuGraphLaunch)(void *executable, void *stream);
    int (*cuGraphExecDestroy)(void *executable);
    int (*cuStreamIsCapturing)(void *stream, int *captured);
    int (*cuThreadExchangeStreamCaptureMode)(int *mode);
    /* Missing before CUDA 11.2; not needed once an allocator is set. */
    int (*cuMemAllocAsync)(uint64_t *address, size_t bytes, void *stream);
    int (*cuMemFreeAsync)(uint64_t address, void *stream);
    int (*cuMemsetD8Async)(uint64_t address, unsigned char value, size_t count, void *stream);
    int (*cuMemsetD16Async)(uint64_t address, unsigned short value, size_t count, void *stream);
    int (*cuMemsetD32Async)(uint64_t address, unsigned int value, size_t count, void *stream);
    int (*cuMemsetD2D32Async)(uint64_t address, size_t pitch, unsigned int value, size_t width,
                              size_t height, void *stream);
    int (*cuGetErrorName)(int error, const char **name);
    int (*cuGetErrorString)(int error, const char **text);
} Driver;

#endif
