/* The table of what a GPU driver does, and what the two that fill it have in common.
 *
 * libcuda and libamdhip64 are opened at run time, and what is used of them is declared here: so
 * building the library needs no headers of either, and it loads on machines without a driver.
 */
#ifndef OPFORGE_DRIVER_INCLUDED
#define OPFORGE_DRIVER_INCLUDED

#include <stddef.h>
#include <stdint.h>

/* Whose GPU it is: of a driver, a device, an image, an architecture. */
enum { OF_NVIDIA, OF_AMD, OF_VENDORS };

/* DLPack's type of a vendor's devices. */
static inline int of_device_type(int vendor)
{
    return vendor == OF_AMD ? 10 : 2;
}

/* CUresult and hipError_t number these alike. */
#define OF_DRIVER_SUCCESS 0
#define OF_DRIVER_INVALID_VALUE 1
#define OF_DRIVER_OUT_OF_MEMORY 2
#define OF_DRIVER_NO_DEVICE 100

/* The streams that belong to no context or device: null, legacy default, per-thread default. */
#define OF_LAST_SPECIAL_STREAM 2

/* The values of cuda.h; those of a launch are HIP's, too. */
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
#define OF_POINTER_DEVICE_POINTER 3

/* CUlaunchAttribute and CUlaunchConfig, and HIP's alike; the value is a union of 64 bytes, aligned
 * as a pointer. */
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

typedef struct Device Device;

/* A device, made current in the thread for a while; `before` is what was current. */
typedef struct {
    Device *device;
    void *stream;
    int is_changed;
    int before;
} Scope;

/* A function of a driver's library, and where it goes: into the table, or into what its adapters
 * use. Errors name it, without the _v2 of some. */
typedef struct {
    const char *name;
    void *entry;
    int is_optional;
} Symbol;

#define OF_NEEDED(symbol, entry) {symbol, &(entry), 0}
#define OF_OPTIONAL(symbol, entry) {symbol, &(entry), 1}

/* Those that return an int are the library's own functions, whose signatures agree; NULL where an
 * optional one is missing. Those that return a status are adapters, and put failures into words.
 */
typedef struct {
    int vendor;
    const char *title;            /* "CUDA" */
    const char *const *libraries; /* tried one after the other, up to NULL */
    const char *newer;            /* what has the functions that are missing */
    const Symbol *symbols;
    int symbol_count;
    unsigned int shared_without_asking; /* dynamic shared memory that a launch may always use */
    void *handle;
    int is_ready;

    OpforgeStatus (*find_arch)(Device *device);
    OpforgeStatus (*enter)(Scope *scope);
    /* The first failure is the one that is reported. */
    OpforgeStatus (*leave)(const Scope *scope, OpforgeStatus status);
    OpforgeStatus (*stream_device)(void *stream, int *ordinal);
    OpforgeStatus (*fill_64)(uint64_t address, uint64_t pattern, size_t count, void *stream);

    int (*init)(unsigned int flags);
    int (*device_count)(int *count);
    int (*get_device)(int *device, int ordinal);
    int (*attribute)(int *value, int attribute, int device);
    int (*pointer_attribute)(void *value, int attribute, uint64_t address);
    int (*load_module)(void **module, const void *image);
    int (*unload_module)(void *module);
    int (*get_function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                  unsigned int block_x, unsigned int block_y, unsigned int block_z,
                  unsigned int shared, void *stream, void **parameters, void **extra);
    /* Only clusters and, with CUDA, cooperative and programmatic launches need it. */
    int (*launch_with)(const LaunchConfig *config, void *function, void **parameters, void **extra);
    /* Not needed once an allocator is set. */
    int (*allocate)(uint64_t *address, size_t bytes, void *stream);
    int (*release)(uint64_t address, void *stream);
    int (*fill_8)(uint64_t address, unsigned char value, size_t count, void *stream);
    int (*fill_16)(uint64_t address, unsigned short value, size_t count, void *stream);
    int (*fill_32)(uint64_t address, unsigned int value, size_t count, void *stream);
    int (*error_name)(int error, const char **name);
    int (*error_text)(int error, const char **text);

    /* CUDA's alone: what keeps a device's context, and what a function is asked before its first
     * launch. */
    int (*retain_context)(void **context, int device);
    int (*release_context)(int device);
    int (*set_function)(void *function, int attribute, int value);
    int (*set_cache)(void *function, int config);
    /* Only tensor descriptors need it. */
    int (*encode_map)(TensorMap *map, int element, uint32_t rank, void *address,
                      const uint64_t *extents, const uint64_t *between, const uint32_t *box,
                      const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
    /* Without them kernels are launched one by one. */
    int (*create_graph)(void **graph, unsigned int flags);
    int (*destroy_graph)(void *graph);
    int (*add_node)(void **node, void *graph, void *const *after, size_t count,
                    const KernelNode *launch);
    int (*instantiate_graph)(void **executable, void *graph, unsigned long long flags);
    int (*set_node)(void *executable, void *node, const KernelNode *launch);
    int (*launch_graph)(void *executable, void *stream);
    int (*destroy_executable)(void *executable);
    int (*is_capturing)(void *stream, int *captured);
    int (*exchange_capture_mode)(int *mode);

    /* HIP's alone. A thread keeps its last error until it is asked for, and torch asks after its
     * own launches. */
    int (*launch_cooperative)(void *function, unsigned int grid_x, unsigned int grid_y,
                              unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                              unsigned int block_z, unsigned int shared, void *stream,
                              void **parameters);
    int (*take_last_error)(void);
} Driver;

#endif
