/* One call by XLA: the arguments of a handler as the library's C functions take them.
 *
 * XLA's C API for handlers is written down here as far as a call needs it, as it was in version 0.1
 * and still is: a build then needs no JAX, and the library goes with all later versions that take
 * handlers of that one. Its functions come with each call, so that nothing is linked.
 *
 * Inputs are the tensors that are present, results the outputs that are present and then the
 * tensors that the operator writes to, which XLA has put in the same memory. Attributes are the
 * scalars and choices, a0, a1, ..., by their places among the parameters; `present` has a bit per
 * tensor, outputs last.
 */
#ifndef OPFORGE_JAX_FFI_INCLUDED
#define OPFORGE_JAX_FFI_INCLUDED

#include "runtime.h"

#include "api.h"

#include <string.h>

enum { XLA_MAJOR = 0, XLA_MINOR = 1 };

/* XLA_FFI_Extension_Type, XLA_FFI_ExecutionStage, XLA_FFI_AttrType. */
enum { XLA_METADATA = 1, XLA_EXECUTE = 3, XLA_SCALAR = 3 };

/* XLA_FFI_Error_Code. */
enum {
    XLA_INVALID_ARGUMENT = 3,
    XLA_RESOURCE_EXHAUSTED = 8,
    XLA_UNIMPLEMENTED = 12,
    XLA_INTERNAL = 13,
    XLA_UNAVAILABLE = 14
};

typedef struct XlaError XlaError;
typedef struct XlaContext XlaContext;

typedef struct XlaExtension {
    size_t struct_size;
    int type;
    struct XlaExtension *next;
} XlaExtension;

typedef struct {
    size_t struct_size;
    XlaExtension *extensions;
    int major;
    int minor;
} XlaVersion;

typedef struct {
    size_t struct_size;
    XlaVersion version;
    uint32_t traits;
} XlaMetadata;

typedef struct {
    XlaExtension base;
    XlaMetadata *metadata;
} XlaMetadataExtension;

typedef struct {
    size_t struct_size;
    XlaExtension *extensions;
    const char *message;
    int code;
} XlaErrorCreate;

typedef struct {
    size_t struct_size;
    XlaExtension *extensions;
    XlaError *error;
} XlaErrorDestroy;

typedef struct {
    size_t struct_size;
    XlaExtension *extensions;
    XlaContext *context;
    void *stream;
} XlaStreamGet;

typedef struct {
    size_t struct_size;
    XlaExtension *extensions;
    XlaVersion version;
    const void *internal;
    XlaError *(*error_create)(XlaErrorCreate *arguments);
    void *error_message;
    void (*error_destroy)(XlaErrorDestroy *arguments);
    void *handler_register;
    XlaError *(*stream_get)(XlaStreamGet *arguments);
} XlaApi;

typedef struct {
    size_t struct_size;
    XlaExtension *extensions;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} XlaBuffer;

/* Of arguments and of results. */
typedef struct {
    size_t struct_size;
    XlaExtension *extensions;
    int64_t count;
    int *types;
    void **buffers;
} XlaBuffers;

typedef struct {
    const char *data;
    size_t length;
} XlaText;

typedef struct {
    int dtype;
    void *value;
} XlaScalar;

typedef struct {
    size_t struct_size;
    XlaExtension *extensions;
    int64_t count;
    int *types;
    XlaText **names;
    void **values;
} XlaAttributes;

typedef struct {
    size_t struct_size;
    XlaExtension *extensions;
    const XlaApi *api;
    XlaContext *context;
    int stage;
    XlaBuffers inputs;
    XlaBuffers results;
    XlaAttributes attributes;
} XlaFrame;

typedef XlaError *(*XlaHandler)(XlaFrame *frame);

/* What the module in Python registers: one handler per platform, because XLA does not tell a
 * handler where it runs. */
typedef struct {
    const char *name;
    XlaHandler cuda;
    XlaHandler rocm;
    XlaHandler cpu;
} JaxHandlers;

/* Those of an operator, over `call_NAME`. */
#define JAX_HANDLERS(name) \
    static XlaError *cuda_##name(XlaFrame *frame) \
    { \
        return call_##name(frame, OF_NVIDIA); \
    } \
    static XlaError *rocm_##name(XlaFrame *frame) \
    { \
        return call_##name(frame, OF_AMD); \
    } \
    static XlaError *cpu_##name(XlaFrame *frame) \
    { \
        return call_##name(frame, of_likely_vendor()); \
    }

typedef struct {
    const XlaFrame *frame;
    const char *name;
    void *stream;
    int vendor;
    int device;
    int64_t present;
    int64_t next_tensor;
    int64_t next_input;
    int64_t next_result;
    OpforgeStatus status;
} JaxCall;

/* Whether memory of the host is passed as that of device 0. */
OPFORGE_API int OF_FUNCTION(jax_host_memory);

/* For a call that is traced: DLPack's type of the device that it will run on; 0 where the process
 * has drivers of both vendors. */
OPFORGE_API int OF_FUNCTION(jax_device_type)(void);

/* XLA's number of an element type, XLA_FFI_DataType -> DLPack's. */
static inline OpforgeDType jax_dtype(int dtype)
{
    static const OpforgeDType known[] = {
        [1] = {6, 8, 1},   [2] = {0, 8, 1},   [3] = {0, 16, 1},  [4] = {0, 32, 1},
        [5] = {0, 64, 1},  [6] = {1, 8, 1},   [7] = {1, 16, 1},  [8] = {1, 32, 1},
        [9] = {1, 64, 1},  [10] = {2, 16, 1}, [11] = {2, 32, 1}, [12] = {2, 64, 1},
        [16] = {4, 16, 1}, [19] = {12, 8, 1}, [20] = {10, 8, 1}, [24] = {13, 8, 1},
        [25] = {11, 8, 1},
    };
    static const OpforgeDType unknown = {255, 0, 1};
    const int count = (int)(sizeof known / sizeof known[0]);
    return dtype >= 0 && dtype < count && known[dtype].bits ? known[dtype] : unknown;
}

/* XLA asks each handler for the version that it was written for, before it calls it. */
static inline int jax_is_question(const XlaFrame *frame)
{
    XlaMetadata *metadata;
    if (frame->extensions == NULL || frame->extensions->type != XLA_METADATA)
        return 0;
    metadata = ((XlaMetadataExtension *)frame->extensions)->metadata;
    metadata->version.major = XLA_MAJOR;
    metadata->version.minor = XLA_MINOR;
    metadata->traits = 0;
    return 1;
}

/* The device of a stream; a handler has no other way to know it in all versions. */
static inline OpforgeStatus jax_device(int vendor, void *stream, int *device)
{
    const Driver *driver;
    const OpforgeStatus status = of_driver(vendor, &driver);
    return status == OPFORGE_OK ? driver->stream_device(stream, device) : status;
}

/* A call that has failed reads nothing more, and fails in the end. */
static inline void jax_fails(JaxCall *call, OpforgeStatus status)
{
    if (status != OPFORGE_OK && call->status == OPFORGE_OK)
        call->status = of_failed_in(call->name, status);
}

static inline void *jax_attribute(JaxCall *call, const char *name)
{
    const XlaAttributes *const all = &call->frame->attributes;
    int64_t i;
    for (i = 0; i < all->count; i++)
        if (all->types[i] == XLA_SCALAR && all->names[i]->length == strlen(name) &&
            memcmp(all->names[i]->data, name, all->names[i]->length) == 0)
            return ((XlaScalar *)all->values[i])->value;
    jax_fails(call, of_fail(OPFORGE_INVALID_ARGUMENT,
                            "there is no attribute %s; call it through the module that was built "
                            "with the library",
                            name));
    return NULL;
}

static inline int64_t jax_integer(JaxCall *call, const char *name)
{
    const int64_t *const value = jax_attribute(call, name);
    return value == NULL ? 0 : *value;
}

static inline double jax_real(JaxCall *call, const char *name)
{
    const double *const value = jax_attribute(call, name);
    return value == NULL ? 0 : *value;
}

static inline JaxCall jax_begin(const XlaFrame *frame, const char *name, int vendor)
{
    JaxCall call = {frame, name, NULL, vendor, 0, 0, 0, 0, 0, OPFORGE_OK};
    XlaStreamGet asked = {sizeof asked, NULL, frame->context, NULL};
    XlaError *const none = frame->api->stream_get(&asked);
    if (none != NULL) {
        XlaErrorDestroy destroyed = {sizeof destroyed, NULL, none};
        frame->api->error_destroy(&destroyed);
        if (!OF_FUNCTION(jax_host_memory))
            jax_fails(&call,
                      of_fail(OPFORGE_INVALID_ARGUMENT,
                              "its arrays are on the CPU; the library runs on %s\n  fix: put "
                              "them on a GPU: jax.device_put(x, jax.devices(\"%s\")[0])",
                              call.vendor == OF_AMD ? "ROCm" : "CUDA",
                              call.vendor == OF_AMD ? "rocm" : "cuda"));
    } else {
        call.stream = asked.stream;
        jax_fails(&call, jax_device(call.vendor, call.stream, &call.device));
    }
    call.present = jax_integer(&call, "present");
    return call;
}

static inline OpforgeTensor *jax_buffer(JaxCall *call, const XlaBuffers *buffers, int64_t at,
                                        OpforgeTensor *room)
{
    const XlaBuffer *buffer;
    if (at >= buffers->count) {
        jax_fails(call, of_fail(OPFORGE_INVALID_ARGUMENT,
                                "it got %lld arrays too few; call it through the module that was "
                                "built with the library",
                                (long long)(at + 1 - buffers->count)));
        return NULL;
    }
    buffer = buffers->buffers[at];
    memset(room, 0, sizeof *room);
    room->data = buffer->data;
    room->device.device_type = of_device_type(call->vendor);
    room->device.device_id = call->device;
    room->ndim = (int32_t)buffer->rank;
    room->dtype = jax_dtype(buffer->dtype);
    room->shape = buffer->dims;
    return room;
}

static inline int jax_is_present(JaxCall *call)
{
    return (int)(call->present >> call->next_tensor++ & 1);
}

static inline OpforgeTensor *jax_input(JaxCall *call, OpforgeTensor *room)
{
    return jax_is_present(call) ? jax_buffer(call, &call->frame->inputs, call->next_input++, room)
                                : NULL;
}

static inline OpforgeTensor *jax_output(JaxCall *call, OpforgeTensor *room)
{
    return jax_is_present(call) ? jax_buffer(call, &call->frame->results, call->next_result++, room)
                                : NULL;
}

/* After the outputs: a tensor that is written to has to be in the memory of the next result. */
static inline void jax_shares(JaxCall *call, const OpforgeTensor *written)
{
    OpforgeTensor result;
    if (written == NULL ||
        jax_buffer(call, &call->frame->results, call->next_result++, &result) == NULL)
        return;
    if (result.data != written->data)
        jax_fails(call, of_fail(OPFORGE_INVALID_ARGUMENT,
                                "XLA did not keep a tensor that is written to in its place"));
}

static inline XlaError *jax_done(JaxCall *call, OpforgeStatus status)
{
    XlaErrorCreate made = {sizeof made, NULL, NULL, XLA_INTERNAL};
    if (status == OPFORGE_OK)
        return NULL;
    made.message = of_last_error();
    if (status == OPFORGE_INVALID_ARGUMENT)
        made.code = XLA_INVALID_ARGUMENT;
    else if (status == OPFORGE_UNCOVERED)
        made.code = XLA_UNIMPLEMENTED;
    else if (status == OPFORGE_NO_DRIVER)
        made.code = XLA_UNAVAILABLE;
    else if (status == OPFORGE_OUT_OF_MEMORY)
        made.code = XLA_RESOURCE_EXHAUSTED;
    return call->frame->api->error_create(&made);
}

#endif
