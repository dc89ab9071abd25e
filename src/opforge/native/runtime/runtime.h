/* What the generated operators are made of, and what the runtime does with it.
 *
 *     of_call(operation, tensors, choices, values, stream)
 *       views       looks at every tensor once: address, extent, strides
 *       select      finds the case by types and ranks, then the path by its guards
 *       run         plans the path's steps and takes them: workspace, fills, launches
 *
 * An operator's file holds tables of these records and small functions over its `Values`, the
 * sizes and scalars of one call. Messages are put together only after something was refused.
 *
 * The runtime has layers; a file calls only files of the layers below its own:
 *
 *     library              the functions of the API that belong to no operator
 *     call                 what the functions of every operator do
 *     select   steps       finds a path   runs it
 *     refusal  broadcast   explains why no path was found   expands tensors
 *     plan                 chooses the kernels of a path, sums up its workspace
 *     tensor   module   memory
 *     graph                launches the kernels of a path as one CUDA graph
 *     launcher tensor_map  launches a kernel   encodes what it addresses a tensor by
 *     device               devices: their attributes, the lock, what is current
 *     driver_cuda driver_hip  libcuda   libamdhip64
 *     driver   arch        opens either   which image suits a device
 *     message              the text behind a status
 */
#ifndef OPFORGE_RUNTIME_INCLUDED
#define OPFORGE_RUNTIME_INCLUDED

#include "library.h"

#include "arithmetic.h"
#include "driver.h"

#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kernel arguments are passed in 64-bit slots, from their lowest byte"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a device can be asked: OF_DEVICE_WARP_SIZE and so on. */
enum {
#define OF_ATTRIBUTE(name, cuda, hip) OF_DEVICE_##name,
#include "device_attributes.inc"
#undef OF_ATTRIBUTE
    OF_DEVICE_ATTRIBUTES
};

#define OF_MAX_MAP_RANK 5

/* What a kernel expects of a tensor map, in CUDA's numbers. */
typedef struct {
    int element;
    int element_size;
    int swizzle;
    int is_padded_fp4;
    uint32_t block[OF_MAX_MAP_RANK];
} MapInfo;

/* A kernel compiled for one architecture, and what a launch of it needs. `maps` has one per tensor
 * descriptor; NULL if the kernel takes their addresses, sizes, strides and flags instead. */
typedef struct {
    int arch;
    int vendor;
    int is_ptx;
    const void *data;
    const char *function;
    int num_warps;
    int warp_size;
    int num_ctas;
    int cooperative;
    int programmatic;
    unsigned int shared;
    int64_t global_scratch;
    int64_t global_scratch_align;
    int64_t profile_scratch;
    int descriptor_flags;
    const MapInfo *maps;
} Image;

typedef struct {
    const char *key;
    int image_count;
    const Image *images;
} Kernel;

/* A kernel on a device; `function` is stored last, and is NULL until then. */
typedef struct {
    void *function;
    void *module;
    const Image *image;
} Loaded;

/* What launches a path's kernels at once; graph.c has it. */
typedef struct Graph Graph;
#define OF_GRAPH_BUCKETS 64

/* `arch` is 90 for sm_90, and 0x942 for gfx942; `context` is CUDA's. */
struct Device {
    const Driver *driver;
    int ordinal;
    int handle;
    int arch;
    void *context;
    int64_t attributes[OF_DEVICE_ATTRIBUTES];
    Loaded *kernels;
    Graph *graphs[OF_GRAPH_BUCKETS];
};

/* Which device a call is for; the ordinal is -1 where no tensor says. */
typedef struct {
    int vendor;
    int ordinal;
} Place;

typedef struct {
    int arch;
    int vendor;
    int has_ptx;
} Arch;

/* The kernels of the library and what they were built for; images.c has them. */
extern const Kernel of_kernels[];
extern const int of_kernel_count;
extern const Arch of_arch_list[];
extern const int of_arch_count;
extern const char of_archs[];

/* A tensor of a call, looked at once. */
typedef struct {
    const OpforgeTensor *tensor; /* NULL if an optional one is left out */
    uint64_t address;            /* of the first element */
    uint64_t bytes;              /* from there to the end of the last; 0 without elements */
    int64_t elements;
    const int64_t *shape;
    uint32_t key;
    int is_compact;
    int64_t strides[OPFORGE_MAX_RANK];
    int64_t expanded[OPFORGE_MAX_RANK]; /* what `shape` points to once it is broadcast */
} View;

/* Presence, rank and type of a tensor in one number, by which cases are told apart. */
#define OF_ABSENT 0u
#define OF_KEY(code, bits, ndim) \
    (0x80000000u | (uint32_t)(ndim) << 16 | (uint32_t)(bits) << 8 | (uint32_t)(code))
/* Of an output: the strides are the caller's. */
#define OF_ANY_STRIDES 0x40000000u
#define OF_KEY_RANK(key) ((int)((key) >> 16 & 0xff))
#define OF_KEY_TYPE(key) ((key) & 0xffff)

enum { OF_WRITTEN = 1, OF_OPTIONAL = 2, OF_OUTPUT = 4, OF_BROADCAST = 8 };
/* Tensors of one group, numbered from 1, have one shape; OF_BROADCAST ones are expanded to it. */
#define OF_GROUP(group) ((group) << 8)
#define OF_GROUP_OF(flags) ((flags) >> 8)

typedef struct {
    const char *name;
    int flags;
} TensorInfo;

typedef struct {
    const char *name;
    int count;
    const char *const *labels;
} ChoiceInfo;

/* A variable of an operator: its name in messages, and its offset in `Values`. */
typedef struct {
    const char *name;
    size_t offset;
    int is_float;
} Field;

enum {
    OF_COMPACT,   /* the strides are those that the sizes imply */
    OF_SIZE_IS,   /* tensor.shape[dim] == low */
    OF_SIZE_LIKE, /* tensor.shape[dim] == other.shape[other_dim], both called `name` */
    OF_STRIDE_IS, /* the same for strides, which sizes of 1 leave open */
    OF_STRIDE_LIKE,
    OF_RANGE, /* low <= field <= high */
    OF_ONE_OF /* field is one of `high` values */
};

/* A condition on sizes that a case declares. */
typedef struct {
    int kind;
    int tensor;
    int dim;
    int other;
    int other_dim;
    const char *name;
    size_t offset;
    int64_t low;
    int64_t high;
    const int64_t *values;
} Check;

#define OF_CHECK_COMPACT(tensor) {OF_COMPACT, tensor, 0, 0, 0, NULL, 0, 0, 0, NULL}
#define OF_CHECK_SIZE(tensor, dim, value) {OF_SIZE_IS, tensor, dim, 0, 0, NULL, 0, value, 0, NULL}
#define OF_CHECK_SIZE_LIKE(tensor, dim, other, other_dim, name) \
    {OF_SIZE_LIKE, tensor, dim, other, other_dim, name, 0, 0, 0, NULL}
#define OF_CHECK_STRIDE(tensor, dim, value) \
    {OF_STRIDE_IS, tensor, dim, 0, 0, NULL, 0, value, 0, NULL}
#define OF_CHECK_STRIDE_LIKE(tensor, dim, other, other_dim, name) \
    {OF_STRIDE_LIKE, tensor, dim, other, other_dim, name, 0, 0, 0, NULL}
/* Of a tensor's size, or with -1 of a scalar. */
#define OF_CHECK_RANGE(tensor, name, offset, low, high) \
    {OF_RANGE, tensor, 0, 0, 0, name, offset, low, high, NULL}
#define OF_CHECK_ONE_OF(tensor, name, offset, count, values) \
    {OF_ONE_OF, tensor, 0, 0, 0, name, offset, 0, count, values}

/* One byte per kernel argument: how it is passed, and what a variant asks of it. */
enum {
    OF_POINTER,
    OF_I1,
    OF_I8,
    OF_I16,
    OF_I32,
    OF_I64,
    OF_U8,
    OF_U16,
    OF_U32,
    OF_U64,
    OF_FP16,
    OF_BF16,
    OF_FP32,
    OF_FP64,
    OF_ONE,        /* the value is 1, and compiled in */
    OF_DESCRIPTOR, /* plus its rank: an address; its tensor's sizes and strides follow */
    OF_TYPE = 0x1f,
    OF_UNSIGNED = 0x20, /* the value's 64 bits are an unsigned number's */
    OF_TF32 = 0x20,     /* of a descriptor: elements are rounded when they are loaded */
    OF_NAN = 0x40,      /* of a descriptor: what lies outside of the tensor */
    OF_BY_16 = 0x80     /* the address or the value is a multiple of 16 */
};

typedef struct {
    int kernel;
    const uint8_t *arguments;
} Variant;

typedef struct {
    const char *kernel; /* name and file:line, for messages */
    const char *location;
    int argument_count;
    const char *const *argument_names;
    int variant_count;
    const Variant *variants;
} Launch;

enum { OF_ALLOCATE, OF_FILL, OF_LAUNCH };

/* A step of a path. `numbers` computes what it needs from the values of the call and the
 * addresses of the buffers:
 *
 *     OF_ALLOCATE   bytes
 *     OF_FILL       offset in bytes, count of elements
 *     OF_LAUNCH     grid x, y, z, then one number per argument; floats as a double's bits
 */
typedef struct {
    int kind;
    int buffer;
    int width;
    uint64_t pattern;
    const Launch *launch;
    void (*numbers)(const void *values, const uint64_t *at, int64_t *n, int *overflow);
} Step;

typedef struct {
    int64_t sizes[OPFORGE_MAX_RANK];
    int64_t strides[OPFORGE_MAX_RANK];
} Layout;

/* One way through an operator's body. `guards` returns the first condition that does not hold,
 * or -1. `outputs` has a key per output, OF_ABSENT where this path does not have it; `layouts` has
 * the strides that the body gives them, which those with OF_ANY_STRIDES need not have. */
typedef struct {
    const char *refused; /* why it was not built, or NULL */
    int (*guards)(const void *values, int *overflow);
    const char *const *conditions;
    const uint32_t *outputs;
    void (*layouts)(const void *values, Layout *layouts, int *overflow);
    int workspace_count;
    int step_count;
    const Step *steps;
} Path;

/* `keys` has one per input, then the index of each choice. */
typedef struct {
    const char *text;
    const uint32_t *keys;
    void (*bind)(const View *views, void *values);
    int check_count;
    const Check *checks;
    int field_count;
    const Field *fields;
    int path_count;
    const Path *paths;
} Case;

/* `tensors` has the inputs, then the outputs. `unsigned_fields` are 64-bit unsigned scalars that
 * sizes are computed from; `attributes` are those of the device that it asks for. The cases are in
 * the order of the implementations; those of i begin at first_cases[i], and there is one more. */
typedef struct {
    const char *name;
    int implementation_count;
    const OpforgeImplementation *implementations;
    const int *first_cases;
    int input_count;
    int output_count;
    const TensorInfo *tensors;
    int choice_count;
    const ChoiceInfo *choices;
    int unsigned_count;
    const Field *unsigned_fields;
    int attribute_count;
    const size_t *attribute_offsets;
    const int *attributes;
    int case_count;
    const Case *cases;
} Operation;

/* What a call has allocated, and from which allocator: a thread may set another one meanwhile. */
typedef struct {
    const char *function; /* the operator's, for messages */
    const Scope *scope;
    int has_allocator;
    OpforgeAllocate allocate;
    OpforgeRelease release;
    void *context;
    int count;
    uint64_t addresses[OF_MAX_ALLOCATIONS];
    int64_t bytes[OF_MAX_ALLOCATIONS];
} Workspace;

/* A launch with a variant chosen; no image where the grid is empty. */
typedef struct {
    const Image *image;
    void *function;
    const uint8_t *arguments;
} Chosen;

extern Driver of_cuda;
extern Driver of_hip;

#define OF_FORMAT(at) __attribute__((format(printf, at, (at) + 1)))

/* message.c */
OpforgeStatus of_fail(OpforgeStatus status, const char *format, ...) OF_FORMAT(2);
void of_more(const char *format, ...) OF_FORMAT(1);
void of_describe_sizes(const int64_t *sizes, int count);
size_t of_room(void);
OpforgeStatus of_failed_in(const char *function, OpforgeStatus status);
const char *of_last_error(void);

/* driver_cuda.c, driver_hip.c */
Driver *of_cuda_driver(void);
Driver *of_hip_driver(void);

/* driver.c; the caller of of_open_driver holds the runtime's lock */
OpforgeStatus of_open_driver(Driver *driver);
OpforgeStatus of_driver_failed(const Driver *driver, int error, const void *entry);
const char *of_call_name(const Driver *driver, const void *entry);
void of_forgive(const Driver *driver);
int of_is_loaded(const Driver *driver);

/* arch.c */
int of_counts_as(int vendor, int arch);
int of_is_built_for(int vendor);
const Image *of_choose_image(const Kernel *kernel, int vendor, int arch);
void of_describe_arch(int vendor, int arch);
void of_describe_image(const Image *image);

/* device.c */
void of_lock(void);
void of_unlock(void);
OpforgeStatus of_driver(int vendor, const Driver **driver);
int of_likely_vendor(void);
int of_may_be_either(void);
OpforgeStatus of_device(Place place, Device **device);
OpforgeStatus of_attribute(Device *device, int attribute, int64_t *value);
OpforgeStatus of_check_shared(Device *device, const Image *image, const char *kernel);
OpforgeStatus of_enter(Place place, void *stream, Scope *scope);
OpforgeStatus of_leave(Scope *scope, OpforgeStatus status);
Device *of_open_device(Place place);
OpforgeStatus of_close_device(Device *device);

/* launcher.c */
OpforgeStatus of_prepare_function(const Driver *driver, const Image *image, void *function);
OpforgeStatus of_launch(const Driver *driver, const Image *image, void *function,
                        const int64_t *grid, void *stream, void **parameters);

/* tensor_map.c; `numbers` has the address, then sizes and strides, of the image's descriptor `at`.
 * Adds what the kernel takes before the sizes and strides that follow in any case; `map` must live
 * until the launch. */
OpforgeStatus of_pass_descriptor(const Image *image, int at, int argument, const Launch *launch,
                                 const char *name, int64_t *numbers, TensorMap *map,
                                 void **parameters, int *count);

/* module.c */
OpforgeStatus of_image(Device *device, int kernel, const Image **image);
OpforgeStatus of_kernel(Device *device, int kernel, const Loaded **loaded);
OpforgeStatus of_load(const char *function, int ordinal);
OpforgeStatus of_unload(const char *function, int ordinal);

/* tensor.c */
Place of_place(OpforgeDevice device);
void of_describe(const View *view);
void of_describe_type(uint32_t type);
OpforgeStatus of_view(const TensorInfo *info, const OpforgeTensor *tensor, int needs_data,
                      View *view);
OpforgeStatus of_check_overlaps(const Operation *op, const View *views);

/* broadcast.c */
OpforgeStatus of_broadcast(const Operation *op, View *views);

/* refusal.c */
OpforgeStatus of_refuse(const Operation *op, View *views, const int *choices, void *values);

/* select.c */
OpforgeStatus of_select(const Operation *op, View *views, const int *choices, void *values,
                        const Path **path);

/* call.c; those with an index use that implementation */
OpforgeStatus of_call(const Operation *op, const OpforgeTensor *const *given, const int *choices,
                      void *values, void *stream);
OpforgeStatus of_call_with(const Operation *op, int index, const OpforgeTensor *const *given,
                           const int *choices, void *values, void *stream);
OpforgeStatus of_outputs(const Operation *op, const OpforgeTensor *const *inputs,
                         OpforgeTensor *const *outputs, const int *choices, void *values);
OpforgeStatus of_outputs_with(const Operation *op, int index, const OpforgeTensor *const *inputs,
                              OpforgeTensor *const *outputs, const int *choices, void *values);
OpforgeStatus of_workspace(const Operation *op, const OpforgeTensor *const *given,
                           const int *choices, void *values, int64_t *bytes);
OpforgeStatus of_workspace_with(const Operation *op, int index, const OpforgeTensor *const *given,
                                const int *choices, void *values, int64_t *bytes);
int of_implementations(const Operation *op, const OpforgeImplementation **list);

/* steps.c; `written` names an output that some step must write to, or is NULL */
OpforgeStatus of_run(const Operation *op, const Path *path, const View *views, const void *values,
                     Place place, void *stream, const char *written);

/* graph.c; NULL for a call whose kernels are launched one by one. What is taken must be abandoned,
 * or launched with the first error of of_add_launch: after one, no kernel of it is launched. */
Graph *of_take_graph(const Path *path, const Chosen *chosen, const Scope *scope);
int of_add_launch(Graph *graph, const KernelNode *launch);
int of_launch_graph(Graph *graph, int error);
void of_abandon_graph(Graph *graph);
OpforgeStatus of_drop_graphs(Device *device);

/* plan.c; of_prepare is for one step, and of_measure sums up what of_run would allocate */
void of_locate(const Operation *op, const Path *path, const View *views, uint64_t *at);
OpforgeStatus of_prepare(const Step *step, int position, const void *values, const uint64_t *at,
                         Device *device, int64_t *n, Chosen *chosen);
OpforgeStatus of_plan(const Path *path, const void *values, const uint64_t *at, Device *device,
                      Chosen *chosen, const char *written);
OpforgeStatus of_refuse_nothing(const Launch *launch, const char *written);
OpforgeStatus of_scratch(const Launch *launch, const Image *image, const int64_t *grid,
                         int64_t *global, int64_t *profile);
OpforgeStatus of_measure(const Operation *op, const Path *path, const View *views,
                         const void *values, Place place, const char *written, int64_t *bytes);

/* memory.c */
OpforgeStatus of_set_allocator(const char *function, OpforgeAllocate allocate,
                               OpforgeRelease release, void *context);
void of_use_allocator(OpforgeAllocate allocate, OpforgeRelease release);
OpforgeStatus of_allocate(Workspace *workspace, int64_t bytes, int64_t alignment,
                          uint64_t *address);
OpforgeStatus of_release_all(Workspace *workspace, OpforgeStatus status);
OpforgeStatus of_fill(const Scope *scope, uint64_t address, int64_t count, int width,
                      uint64_t pattern);

#ifdef __cplusplus
}
#endif

#endif
