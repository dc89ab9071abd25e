/* One call by tvm-ffi: its arguments as the library's C functions take them.
 *
 * tvm-ffi's C ABI is written down here as far as a call needs it, so that a build needs none of its
 * headers. Its functions are looked up when they are needed: a library that is linked to
 * tvm-ffi would not load where tvm-ffi is not installed, and one with weak symbols would keep their
 * absence if it was loaded first.
 */
#ifndef OPFORGE_TVM_FFI_INCLUDED
#define OPFORGE_TVM_FFI_INCLUDED

#include "runtime.h"

#include "api.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TVM_EXPORT __attribute__((visibility("default")))

/* tvm-ffi's TVMFFITypeIndex. */
enum {
    TVM_NONE = 0,
    TVM_INT = 1,
    TVM_BOOL = 2,
    TVM_FLOAT = 3,
    TVM_DTYPE = 5,
    TVM_DLTENSOR = 7,
    TVM_RAW_TEXT = 8,
    TVM_SMALL_TEXT = 11,
    TVM_TEXT = 65,
    TVM_TENSOR = 70
};

/* tvm-ffi's TVMFFIAny. */
typedef struct {
    int32_t type;
    uint32_t small_length;
    union {
        int64_t integer;
        double real;
        void *pointer;
        const char *text;
        OpforgeDType dtype;
        char small_text[8];
    } value;
} TvmAny;

/* tvm-ffi's TVMFFIObject, which a tensor's DLTensor and a text's TvmText follow. */
typedef struct {
    uint64_t references;
    int32_t type;
    uint32_t padding;
    void (*deleter)(void *object, int flags);
} TvmObject;

typedef struct {
    const char *data;
    size_t length;
} TvmText;

/* A value that an argument may have. */
typedef struct {
    int type;
    int64_t integer;
    double real;
    const char *text;
    OpforgeDType dtype;
} TvmChoice;

typedef struct {
    const char *name;
    const TvmAny *arguments;
    /* Of the first tensor, whose stream the call goes to; -1 before there is one. */
    int device;
    int vendor;
} TvmCall;

/* tvm-ffi's functions for errors. */
typedef struct {
    int (*create)(const TvmText *kind, const TvmText *text, const TvmText *backtrace, void **error);
    void (*set)(void *error);
    int (*release)(void *error);
} TvmErrors;

typedef void *(*TvmStream)(int32_t device_type, int32_t device);

/* Whether CPU memory is passed as that of device 0. */
static int tvm_host_memory = 0;

/* A function of the tvm-ffi that has made the call, so that the process has it. Its Python package
 * offers it to all; other programs may not. */
static inline void *tvm_function(const char *name)
{
    void *const all = dlopen(NULL, RTLD_LAZY);
    void *found = all == NULL ? NULL : dlsym(all, name);
    if (found == NULL) {
        void *const own = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
        found = own == NULL ? NULL : dlsym(own, name);
    }
    return found;
}

/* Raises an exception in the caller; -1, which says so. TVMFFIErrorSetRaisedFromCStr would do, but
 * collects a backtrace first, which takes seconds in a process that has torch. */
static inline int tvm_raise(const char *kind, const char *text)
{
    static const char *const names[] = {"TVMFFIErrorCreate", "TVMFFIErrorSetRaised",
                                        "TVMFFIObjectDecRef"};
    const TvmText parts[] = {{kind, strlen(kind)}, {text, strlen(text)}, {"", 0}};
    void *found[3];
    TvmErrors errors;
    void *error = NULL;
    int i;
    for (i = 0; i < 3; i++)
        found[i] = tvm_function(names[i]);
    /* ISO C has no cast from a pointer to an object to one to a function. */
    memcpy(&errors, found, sizeof errors);
    if (!errors.create || !errors.set || !errors.release ||
        errors.create(&parts[0], &parts[1], &parts[2], &error) != 0) {
        fprintf(stderr, "%s: %s (there is no tvm-ffi to raise it)\n", kind, text);
        return -1;
    }
    errors.set(error);
    errors.release(error);
    return -1;
}

static inline const char *tvm_type_name(int32_t type)
{
    switch (type) {
    case TVM_NONE: return "None";
    case TVM_INT: return "int";
    case TVM_BOOL: return "bool";
    case TVM_FLOAT: return "float";
    case TVM_DTYPE: return "dtype";
    case TVM_RAW_TEXT:
    case TVM_SMALL_TEXT:
    case TVM_TEXT: return "str";
    case TVM_DLTENSOR:
    case TVM_TENSOR: return "tensor";
    default: return "another object";
    }
}

/* That an argument has another type. */
static inline int tvm_refuse(const TvmCall *call, int at, const char *parameter,
                             const char *expected, const char *fix)
{
    char text[512];
    snprintf(text, sizeof text, "%s: %s: expected %s, got %s\n  fix: %s", call->name, parameter,
             expected, tvm_type_name(call->arguments[at].type), fix);
    tvm_raise("TypeError", text);
    return 0;
}

/* The functions below are false after they have raised an exception. */

static inline int tvm_takes(const TvmCall *call, int32_t given, int32_t expected, const char *usage)
{
    char text[1024];
    if (given == expected)
        return 1;
    snprintf(text, sizeof text,
             "%s: takes %d arguments, got %d\n  fix: call %s; optional tensors may be None, and "
             "outputs are the caller's to allocate",
             call->name, (int)expected, (int)given, usage);
    tvm_raise("TypeError", text);
    return 0;
}

/* `copy` has room for what is passed if the memory is the host's. NULL for None, which the library
 * takes or refuses. */
static inline int tvm_tensor(TvmCall *call, int at, const char *parameter, OpforgeTensor *copy,
                             OpforgeTensor **tensor)
{
    const TvmAny *const given = &call->arguments[at];
    *tensor = NULL;
    if (given->type == TVM_NONE)
        return 1;
    if (given->type == TVM_DLTENSOR)
        *tensor = given->value.pointer;
    else if (given->type == TVM_TENSOR)
        *tensor = (OpforgeTensor *)((char *)given->value.pointer + sizeof(TvmObject));
    else
        return tvm_refuse(call, at, parameter, "a tensor",
                          "pass one of a library that supports DLPack, as torch and CuPy do");
    if (tvm_host_memory && (*tensor)->device.device_type == 1) {
        *copy = **tensor;
        copy->device.device_type = of_device_type(of_likely_vendor());
        copy->device.device_id = 0;
        *tensor = copy;
    }
    if (call->device < 0 && (*tensor)->device.device_type != 1) {
        call->device = (*tensor)->device.device_id;
        call->vendor = of_place((*tensor)->device).vendor;
    }
    return 1;
}

static inline int tvm_real(const TvmCall *call, int at, const char *parameter, double *number)
{
    const TvmAny *const given = &call->arguments[at];
    if (given->type != TVM_FLOAT && given->type != TVM_INT)
        return tvm_refuse(call, at, parameter, "a number", "pass a float");
    *number = given->type == TVM_FLOAT ? given->value.real : (double)given->value.integer;
    return 1;
}

static inline int tvm_integer(const TvmCall *call, int at, const char *parameter, const char *dtype,
                              int64_t low, int64_t high, int64_t *number)
{
    const TvmAny *const given = &call->arguments[at];
    char text[512];
    if (given->type != TVM_INT && given->type != TVM_BOOL)
        return tvm_refuse(call, at, parameter, "an integer",
                          "pass an int that fits into 64 bits with a sign");
    *number = given->value.integer;
    if (*number >= low && *number <= high)
        return 1;
    snprintf(text, sizeof text,
             "%s: %s: is %lld, which %s does not hold\n  fix: pass an integer from %lld to %lld",
             call->name, parameter, (long long)*number, dtype, (long long)low, (long long)high);
    tvm_raise("ValueError", text);
    return 0;
}

static inline TvmText tvm_text(const TvmAny *given)
{
    TvmText text = {NULL, 0};
    if (given->type == TVM_RAW_TEXT) {
        text.data = given->value.text;
        text.length = strlen(text.data);
    } else if (given->type == TVM_SMALL_TEXT) {
        text.data = given->value.small_text;
        text.length = given->small_length;
    } else if (given->type == TVM_TEXT) {
        memcpy(&text, (const char *)given->value.pointer + sizeof(TvmObject), sizeof text);
    }
    return text;
}

static inline int tvm_is(const TvmAny *given, const TvmChoice *choice)
{
    const OpforgeDType *const dtype = &given->value.dtype;
    TvmText text;
    double number;
    switch (choice->type) {
    case TVM_NONE: return given->type == TVM_NONE;
    case TVM_INT: return given->type == TVM_INT && given->value.integer == choice->integer;
    case TVM_BOOL: return given->type == TVM_BOOL && given->value.integer == choice->integer;
    case TVM_FLOAT:
        if (given->type != TVM_FLOAT && given->type != TVM_INT)
            return 0;
        number = given->type == TVM_FLOAT ? given->value.real : (double)given->value.integer;
        return number == choice->real || (number != number && choice->real != choice->real);
    case TVM_DTYPE:
        return given->type == TVM_DTYPE && dtype->code == choice->dtype.code &&
               dtype->bits == choice->dtype.bits && dtype->lanes == choice->dtype.lanes;
    default:
        text = tvm_text(given);
        return text.data != NULL && text.length == strlen(choice->text) &&
               memcmp(text.data, choice->text, text.length) == 0;
    }
}

/* `values` lists the choices, in words. */
static inline int tvm_choose(const TvmCall *call, int at, const char *parameter,
                             const TvmChoice *choices, int count, const char *values, int *chosen)
{
    char text[1024];
    for (*chosen = 0; *chosen < count; ++*chosen)
        if (tvm_is(&call->arguments[at], &choices[*chosen]))
            return 1;
    snprintf(text, sizeof text,
             "%s: %s: is not a value that the library was built for\n  fix: pass %s", call->name,
             parameter, values);
    tvm_raise("ValueError", text);
    return 0;
}

/* tvm-ffi's current stream of the device: torch's, where torch's tensors are passed. */
static inline int tvm_stream(const TvmCall *call, void **stream)
{
    static void *found = NULL;
    void *function = __atomic_load_n(&found, __ATOMIC_RELAXED);
    TvmStream current;
    *stream = NULL;
    if (call->device < 0)
        return 1;
    if (function == NULL) {
        function = tvm_function("TVMFFIEnvGetStream");
        __atomic_store_n(&found, function, __ATOMIC_RELAXED);
    }
    if (function == NULL) {
        tvm_raise("RuntimeError", "this tvm-ffi has no TVMFFIEnvGetStream\n"
                                  "  fix: pip install --upgrade apache-tvm-ffi");
        return 0;
    }
    memcpy(&current, &function, sizeof current);
    *stream = current(of_device_type(call->vendor), call->device);
    return 1;
}

/* What the function returns to tvm-ffi. */
static inline int tvm_done(OpforgeStatus status, TvmAny *result)
{
    if (status == OPFORGE_OK) {
        memset(result, 0, sizeof *result);
        return 0;
    }
    return tvm_raise(status == OPFORGE_INVALID_ARGUMENT ? "ValueError"
                     : status == OPFORGE_OUT_OF_MEMORY  ? "MemoryError"
                                                        : "RuntimeError",
                     OF_FUNCTION(last_error)());
}

/* Pass CPU memory as that of device 0: for GPUs that reach it, and for tests without a driver. */
TVM_EXPORT int __tvm_ffi_opforge_host_memory(void *handle, const TvmAny *arguments, int32_t count,
                                             TvmAny *result)
{
    TvmCall call = {OF_LIBRARY "_host_memory", arguments, -1, OF_NVIDIA};
    int64_t wanted;
    (void)handle;
    if (!tvm_takes(&call, count, 1, "opforge_host_memory(True)") ||
        !tvm_integer(&call, 0, "wanted", "bool", 0, 1, &wanted))
        return -1;
    tvm_host_memory = (int)wanted;
    return tvm_done(OPFORGE_OK, result);
}

#endif
