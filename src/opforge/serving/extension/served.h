/* The extension that serves launches of Triton kernels from images built before.
 *
 * Layers; a file calls only files of the layers below its own:
 *
 *     module          the Python module
 *     subscript       kernel[grid] of Triton's classes
 *     kernel          the type Kernel
 *     launch          kernel[grid](...): finds, chooses, launches or hands over
 *     grid            its grid
 *     reason          why it is handed over
 *     bind            its arguments
 *     instance        what was built for a kernel
 *     descriptor      tensor descriptors: of a call, and those built for
 *     image           the type Image; loads and launches through native/runtime
 *     configuration   device, stream, allocator, hooks
 *     watch           what stops serving
 *     same            whether two constants are one
 *     names           of attributes
 */
#ifndef OPFORGE_SERVED_INCLUDED
#define OPFORGE_SERVED_INCLUDED

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "runtime.h"

#define SERVED_DEVICES 64
#define SERVED_PARAMETERS 256
#define SERVED_OPTIONS 32
#define SERVED_DESCRIPTORS 32
#define SERVED_DESCRIPTOR_TYPES 4
/* What a kernel without tensor maps takes of a descriptor beyond address, sizes and strides. */
#define SERVED_MAX_FLAGS 2
#define SERVED_MAX_BLOCK 256
#define SERVED_MAX_GRID_X INT64_C(0x7fffffff)

/* What would help a launch that is handed over, as `hand_over` is told. */
#define REMEDY_RECORD "record"
#define REMEDY_BUILD "build" /* what the build has left out */
#define REMEDY_ARCH "arch"   /* a build for the device */
#define REMEDY_CALL "call"   /* another call: Triton will refuse this one */
#define REMEDY_NONE "none"

/* What a step of a call found. */
enum { FAILED = -1, NOT_COVERED, COVERED };

/* The kinds of values that a kernel takes. */
enum { KIND_POINTER, KIND_DESCRIPTOR, KIND_INT, KIND_FLOAT, KIND_BOOL, KIND_NONE, KINDS };

/* How a variant is given a value; with BY_16, it must be a multiple of 16. */
enum {
    TYPE_POINTER,
    TYPE_I8,
    TYPE_I16,
    TYPE_I32,
    TYPE_I64,
    TYPE_U8,
    TYPE_U16,
    TYPE_U32,
    TYPE_U64,
    TYPE_FP32,
    TYPE_FP64,
    TYPE_U1,
    TYPE_ONE, /* not passed, as what follows */
    TYPE_NONE,
    TYPE_DESCRIPTOR,
    TYPES,
    /* The parameter says its type; else Triton goes by the value. */
    TYPED = 0x40,
    BY_16 = 0x80
};
#define TYPE_OF(type) ((type) & ~(BY_16 | TYPED))

/* A value of a call. `dtype` is compared with others and never used. Of a descriptor it is that of
 * its tensor, and the value is the descriptor's place among those of the call. */
typedef struct {
    uint8_t kind;
    uint8_t width; /* of an integer, as Triton sees it: TYPE_I32, TYPE_I64 or TYPE_U64 */
    const void *dtype;
    union {
        int64_t integer;
        uint64_t bits;
        double real;
    } value;
} Argument;

/* A class of descriptors, and which attributes its objects have beyond those that all have. */
typedef struct {
    PyObject *type;
    int has_layout;
    int has_tf32;
} DescriptorType;

/* A descriptor of a call. `numbers` has the address, then sizes and strides. */
typedef struct {
    const DescriptorType *type;
    int rank;
    int argument; /* as native/runtime has it: the rank, and flags */
    int64_t block[OF_MAX_MAP_RANK];
    int64_t numbers[1 + 2 * OF_MAX_MAP_RANK];
} Descriptor;

/* A descriptor that an instance was built for; the rank of anything else is 0. */
typedef struct {
    int rank;
    int64_t block[OF_MAX_MAP_RANK];
    PyObject *layout; /* its text, or NULL */
    PyObject *seen;   /* the last layout that had this text, or NULL */
} Block;

/* What stops serving while it is so: a list that is not empty, or a name in a dict or of an object
 * with another value than those accepted. */
typedef struct {
    PyObject *list;
    PyObject *holder;
    PyObject *name;
    PyObject *accepted;
    PyObject *reason;
} Watch;

typedef struct {
    int count;
    Watch *items;
} Watches;

typedef struct {
    PyObject *stream_of;
    PyObject *device_of;
    PyObject *allocate;
    int vendor;
    Watches watches;
} Configuration;

typedef struct ImageObject ImageObject;

typedef struct {
    ImageObject *image;
    PyObject *returned; /* by a launch */
    uint8_t *types;
    int is_general; /* one of several, and assumes nothing */
} Choice;

/* The arrays follow the kernel's parameters: constexpr ones, and those of run time. */
typedef struct {
    PyObject **constants;
    PyObject **dtypes; /* NULL where the kind is neither a pointer nor a descriptor */
    uint8_t *kinds;
    Block *blocks;
    int option_count;
    PyObject **option_names;
    PyObject **option_values;
    int choice_count;
    Choice *choices;
} Instance;

typedef struct {
    PyObject *default_value; /* NULL without */
    uint8_t is_constexpr;
    uint8_t specializes;
    uint8_t specializes_alignment;
    uint8_t is_typed;
} Parameter;

typedef struct {
    PyObject_HEAD PyObject *name;
    char *text; /* the name, for messages */
    char *location;
    PyObject *hand_over;
    Watches watches;
    int count;
    PyObject **names;
    Parameter *parameters;
    int constant_count;
    int *constants; /* positions */
    int runtime_count;
    int *runtime;
    int option_count;
    PyObject *options[SERVED_OPTIONS];  /* names that instances know, or Triton has defaults for */
    PyObject *defaults[SERVED_OPTIONS]; /* what Triton takes without the option, or NULL */
    int descriptor_type_count;
    DescriptorType descriptor_types[SERVED_DESCRIPTOR_TYPES];
    int instance_count;
    int instance_room;
    Instance **instances; /* the most recently used first */
    unsigned long long served;
    unsigned long long general;
    unsigned long long handed_over;
} KernelObject;

/* One call of kernel[grid]. */
typedef struct {
    KernelObject *kernel;
    PyObject *grid;
    PyObject *const *given;
    Py_ssize_t given_count;
    PyObject *keywords; /* NULL without */
    PyObject *reason;   /* why it is handed over; owned, as what is told of it */
    PyObject *told;     /* NULL where it is the reason */
    const char *remedy;
    PyObject *bound[SERVED_PARAMETERS];
    Argument arguments[SERVED_PARAMETERS];
    int descriptor_count;
    Descriptor descriptors[SERVED_DESCRIPTORS];
    int option_count;
    PyObject *option_names[SERVED_OPTIONS];
    PyObject *option_values[SERVED_OPTIONS];
} Call;

/* What the driver gets. */
typedef struct {
    int device;
    void *stream;
    int64_t grid[3];
    void **parameters;
} Launching;

/* A pointer of a launch, with the name of its argument. */
typedef struct {
    uint64_t address;
    int argument;
} Pointer;

/* names.c */
extern PyObject *served_dtype;
extern PyObject *served_data_ptr;
extern PyObject *served_name; /* "__name__" */
int served_intern_names(void);

/* same.c: 1, 0, or -1 with an exception */
int served_same(PyObject *one, PyObject *other);

/* watch.c */
int served_read_watches(PyObject *given, Watches *watches);
int served_is_quiet(const Watches *watches, PyObject **reason);
int served_visit_watches(const Watches *watches, visitproc visit, void *arg);
void served_clear_watches(Watches *watches);

/* configuration.c */
extern Configuration served_configuration;
PyObject *served_configure(PyObject *module, PyObject *args, PyObject *keywords);
int served_current_device(int *device);
int served_current_stream(int device, void **stream);

/* image.c; what returns a status needs no GIL */
extern PyTypeObject *served_image_type;
int served_add_image_type(PyObject *module);
void served_forget_images(void);
OpforgeStatus served_unload_images(int device);
const Loaded *served_loaded(ImageObject *image, int device);
OpforgeStatus served_load(ImageObject *image, int device);
OpforgeStatus served_find_unreachable(int device, const Pointer *pointers, int count, int *found);
OpforgeStatus served_launch(const Loaded *loaded, const Launching *launching);
int served_takes_descriptors(const ImageObject *image, const int *ranks, int count);
void served_raise(const char *kernel, OpforgeStatus status);

/* descriptor.c */
int served_intern_descriptor_names(void);
int served_read_descriptor_types(KernelObject *kernel, PyObject *given);
const DescriptorType *served_descriptor_type(const KernelObject *kernel, const PyTypeObject *type);
int served_look_at_descriptor(PyObject *value, const DescriptorType *type, Argument *argument,
                              Descriptor *descriptor);
int served_read_block(const KernelObject *kernel, PyObject *name, PyObject *given, Block *block,
                      PyObject **dtype);
int served_same_block(Block *block, const Descriptor *descriptor, PyObject *value);
PyObject *served_describe_block(const Block *block, PyObject *dtype);
PyObject *served_describe_descriptor(const Descriptor *descriptor, PyObject *value);

/* instance.c */
Instance *served_read_instance(const KernelObject *kernel, PyObject *constants, PyObject *dtypes,
                               PyObject *options, PyObject *variants);
int served_visit_instance(const KernelObject *kernel, const Instance *instance, visitproc visit,
                          void *arg);
void served_free_instance(const KernelObject *kernel, Instance *instance);
int served_same_constants(const Instance *instance, const Call *call);
int served_same_kind(const Instance *instance, const Call *call, int at);
int served_same_kinds(const Instance *instance, const Call *call);
int served_same_options(const Instance *instance, const Call *call);
int served_pack(const Argument *argument, int type, uint64_t *slot);
const char *served_type_name(int type);

/* reason.c */
int served_no_instance(Call *call);
int served_no_variant(Call *call, const Instance *instance);

/* bind.c: COVERED, NOT_COVERED with a reason, or FAILED with an exception */
int served_not_covered(Call *call, PyObject *reason);
int served_never_covered(Call *call, const char *remedy, PyObject *reason);
int served_bind(Call *call);
int served_look_at(Call *call);

/* grid.c */
int served_evaluate_grid(const Call *call, int64_t *dimensions);

/* launch.c */
PyObject *served_callable(KernelObject *kernel, PyObject *grid);

/* kernel.c */
extern PyTypeObject *served_kernel_type;
int served_add_kernel_type(PyObject *module);

/* subscript.c */
PyObject *served_subscript(PyObject *module, PyObject *args);

#endif
