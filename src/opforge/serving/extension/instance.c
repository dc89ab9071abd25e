/* What was built for a kernel: an instance per set of constants, element types and options, with
 * variants that assume more or less of integers and addresses. */
#include "served.h"

#include <stdlib.h>
#include <string.h>

static const char *const kind_names[KINDS] = {"a pointer", "a descriptor", "int",
                                              "fp32",      "u1",           "none"};

static const char *const type_names[TYPES] = {
    "p",   "i8",   "i16",  "i32", "i64", "u8",   "u16", "u32",
    "u64", "fp32", "fp64", "u1",  "1",   "none", "d",
};

const char *served_type_name(int type)
{
    return type_names[TYPE_OF(type)];
}

static int find_name(const char *const *names, int count, const char *text)
{
    int i;
    for (i = 0; i < count; i++) {
        if (strcmp(names[i], text) == 0) {
            return i;
        }
    }
    return -1;
}

static int can_pass(int kind, int type)
{
    switch (type) {
    case TYPE_POINTER: return kind == KIND_POINTER;
    case TYPE_DESCRIPTOR: return kind == KIND_DESCRIPTOR;
    case TYPE_NONE: return kind == KIND_NONE;
    case TYPE_U1: return kind == KIND_BOOL;
    case TYPE_ONE: return kind == KIND_INT;
    case TYPE_FP32:
    case TYPE_FP64: return kind == KIND_FLOAT || kind == KIND_INT;
    /* True goes as 1 where the parameter is annotated as an integer. */
    default: return kind == KIND_INT || kind == KIND_BOOL;
    }
}

/* The type of "i32:16", or -1. */
static int parse_type(PyObject *given)
{
    PyObject *bytes = PyUnicode_Check(given) ? PyUnicode_AsUTF8String(given) : NULL;
    char text[8] = "";
    char *colon;
    int type = -1;
    if (bytes != NULL && PyBytes_Size(bytes) < (Py_ssize_t)sizeof text) {
        strcpy(text, PyBytes_AsString(bytes));
        colon = strchr(text, ':');
        if (strcmp(text, "p16") == 0) {
            type = TYPE_POINTER | BY_16;
        } else if (colon == NULL) {
            type = find_name(type_names, TYPES, text);
        } else if (strcmp(colon, ":16") == 0) {
            *colon = '\0';
            type = find_name(type_names, TYPES, text);
            type = type >= TYPE_I8 && type <= TYPE_U64 ? type | BY_16 : -1;
        }
    }
    PyErr_Clear();
    Py_XDECREF(bytes);
    return type;
}

static int read_type(const KernelObject *kernel, const Instance *instance, int at, PyObject *given)
{
    PyObject *name = kernel->names[kernel->runtime[at]];
    const Parameter *parameter = &kernel->parameters[kernel->runtime[at]];
    const int type = parse_type(given);
    if (type < 0) {
        PyErr_Format(PyExc_ValueError, "%U: %U has no type %R", kernel->name, name, given);
        return -1;
    }
    if (!can_pass(instance->kinds[at], TYPE_OF(type))) {
        PyErr_Format(PyExc_ValueError, "%U: %U is %s, which cannot be passed as %R", kernel->name,
                     name, kind_names[instance->kinds[at]], given);
        return -1;
    }
    if (((type & BY_16) && !parameter->specializes_alignment) ||
        ((type & BY_16 || type == TYPE_ONE) && !parameter->specializes)) {
        PyErr_Format(PyExc_ValueError, "%U: %U is not specialized, but a variant takes it as %R",
                     kernel->name, name, given);
        return -1;
    }
    return parameter->is_typed ? type | TYPED : type;
}

static int takes_descriptors(const KernelObject *kernel, const Instance *instance,
                             const ImageObject *image)
{
    int ranks[SERVED_DESCRIPTORS];
    int count = 0;
    int i;
    for (i = 0; i < kernel->runtime_count; i++) {
        if (instance->kinds[i] == KIND_DESCRIPTOR) {
            ranks[count++] = instance->blocks[i].rank;
        }
    }
    return served_takes_descriptors(image, ranks, count);
}

static int read_choice(const KernelObject *kernel, const Instance *instance, PyObject *given,
                       Choice *choice)
{
    const Py_ssize_t size = PyTuple_Check(given) ? PyTuple_Size(given) : 0;
    PyObject *types;
    PyObject *image;
    int i;
    if ((size != 2 && size != 3) || !PyTuple_Check(PyTuple_GetItem(given, 0)) ||
        Py_TYPE(PyTuple_GetItem(given, 1)) != served_image_type) {
        PyErr_Format(PyExc_TypeError,
                     "%U: a variant is (types, image) or (types, image, returned), not %R",
                     kernel->name, given);
        return -1;
    }
    choice->returned = size == 3 ? PyTuple_GetItem(given, 2) : Py_None;
    Py_INCREF(choice->returned);
    types = PyTuple_GetItem(given, 0);
    image = PyTuple_GetItem(given, 1);
    if (PyTuple_Size(types) != kernel->runtime_count) {
        PyErr_Format(PyExc_ValueError, "%U: a variant has %zd types for %d parameters",
                     kernel->name, PyTuple_Size(types), kernel->runtime_count);
        return -1;
    }
    choice->types = (uint8_t *)calloc((size_t)kernel->runtime_count + 1, 1);
    if (choice->types == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < kernel->runtime_count; i++) {
        const int type = read_type(kernel, instance, i, PyTuple_GetItem(types, i));
        if (type < 0) {
            return -1;
        }
        choice->types[i] = (uint8_t)type;
    }
    if (!takes_descriptors(kernel, instance, (ImageObject *)image)) {
        PyErr_Format(PyExc_ValueError,
                     "%U: the tensor maps of an image are not those of its descriptors",
                     kernel->name);
        return -1;
    }
    Py_INCREF(image);
    choice->image = (ImageObject *)image;
    return 0;
}

static int assumes_nothing(const KernelObject *kernel, const Choice *choice)
{
    int i;
    for (i = 0; i < kernel->runtime_count; i++) {
        if (choice->types[i] & BY_16 || TYPE_OF(choice->types[i]) == TYPE_ONE) {
            return 0;
        }
    }
    return 1;
}

static int read_choices(const KernelObject *kernel, Instance *instance, PyObject *variants)
{
    const Py_ssize_t count = PyList_Size(variants);
    Py_ssize_t i;
    if (count == 0) {
        PyErr_Format(PyExc_ValueError, "%U: an instance needs a variant", kernel->name);
        return -1;
    }
    instance->choices = (Choice *)calloc((size_t)count, sizeof *instance->choices);
    if (instance->choices == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    instance->choice_count = (int)count;
    for (i = 0; i < count; i++) {
        if (read_choice(kernel, instance, PyList_GetItem(variants, i), &instance->choices[i]) < 0) {
            return -1;
        }
        instance->choices[i].is_general = count > 1 &&
                                          assumes_nothing(kernel, &instance->choices[i]);
    }
    return 0;
}

static int read_constants(const KernelObject *kernel, Instance *instance, PyObject *constants)
{
    int i;
    if (PyTuple_Size(constants) != kernel->constant_count) {
        PyErr_Format(PyExc_ValueError, "%U: %zd constants for %d constexpr parameters",
                     kernel->name, PyTuple_Size(constants), kernel->constant_count);
        return -1;
    }
    for (i = 0; i < kernel->constant_count; i++) {
        instance->constants[i] = PyTuple_GetItem(constants, i);
        Py_INCREF(instance->constants[i]);
    }
    return 0;
}

static int read_kind(const KernelObject *kernel, int at, PyObject *given)
{
    PyObject *bytes;
    int kind;
    if (PyTuple_Check(given)) {
        return KIND_DESCRIPTOR;
    }
    if (!PyUnicode_Check(given)) {
        return KIND_POINTER;
    }
    bytes = PyUnicode_AsUTF8String(given);
    if (bytes == NULL) {
        return -1;
    }
    kind = find_name(kind_names + KIND_INT, KINDS - KIND_INT, PyBytes_AsString(bytes)) + KIND_INT;
    Py_DECREF(bytes);
    if (kind < KIND_INT) {
        PyErr_Format(PyExc_ValueError, "%U: %U has no dtype %R", kernel->name,
                     kernel->names[kernel->runtime[at]], given);
        return -1;
    }
    return kind;
}

static int read_descriptor(const KernelObject *kernel, Instance *instance, int at, PyObject *given)
{
    PyObject *name = kernel->names[kernel->runtime[at]];
    PyObject *dtype = NULL;
    if (served_read_block(kernel, name, given, &instance->blocks[at], &dtype) < 0) {
        return -1;
    }
    Py_INCREF(dtype);
    instance->dtypes[at] = dtype;
    return 0;
}

static int read_dtypes(const KernelObject *kernel, Instance *instance, PyObject *dtypes)
{
    int descriptor_count = 0;
    int i;
    if (PyTuple_Size(dtypes) != kernel->runtime_count) {
        PyErr_Format(PyExc_ValueError, "%U: %zd dtypes for %d parameters", kernel->name,
                     PyTuple_Size(dtypes), kernel->runtime_count);
        return -1;
    }
    for (i = 0; i < kernel->runtime_count; i++) {
        PyObject *given = PyTuple_GetItem(dtypes, i);
        const int kind = read_kind(kernel, i, given);
        if (kind < 0) {
            return -1;
        }
        instance->kinds[i] = (uint8_t)kind;
        if (kind == KIND_DESCRIPTOR && read_descriptor(kernel, instance, i, given) < 0) {
            return -1;
        }
        descriptor_count += kind == KIND_DESCRIPTOR;
        if (kind == KIND_POINTER) {
            Py_INCREF(given);
            instance->dtypes[i] = given;
        }
    }
    if (descriptor_count > SERVED_DESCRIPTORS) {
        PyErr_Format(PyExc_ValueError, "%U: it has %d descriptors; the most are %d", kernel->name,
                     descriptor_count, SERVED_DESCRIPTORS);
        return -1;
    }
    return 0;
}

static int read_options(const KernelObject *kernel, Instance *instance, PyObject *options)
{
    PyObject *name;
    PyObject *value;
    Py_ssize_t at = 0;
    if (PyDict_Size(options) > SERVED_OPTIONS) {
        PyErr_Format(PyExc_ValueError, "%U: %zd options; the most are %d", kernel->name,
                     PyDict_Size(options), SERVED_OPTIONS);
        return -1;
    }
    while (PyDict_Next(options, &at, &name, &value)) {
        if (!PyUnicode_Check(name)) {
            PyErr_Format(PyExc_TypeError, "%U: the name of an option is a str, not %R",
                         kernel->name, name);
            return -1;
        }
        if (value == Py_None) {
            continue;
        }
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        Py_INCREF(value);
        instance->option_names[instance->option_count] = name;
        instance->option_values[instance->option_count++] = value;
    }
    return 0;
}

Instance *served_read_instance(const KernelObject *kernel, PyObject *constants, PyObject *dtypes,
                               PyObject *options, PyObject *variants)
{
    /* One more each, because calloc of nothing may return NULL. */
    Instance *instance = (Instance *)calloc(1, sizeof *instance);
    const size_t runtime_count = (size_t)kernel->runtime_count + 1;
    const size_t option_count = (size_t)PyDict_Size(options) + 1;
    if (instance == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    instance->constants =
        (PyObject **)calloc((size_t)kernel->constant_count + 1, sizeof *instance->constants);
    instance->dtypes = (PyObject **)calloc(runtime_count, sizeof *instance->dtypes);
    instance->kinds = (uint8_t *)calloc(runtime_count, 1);
    instance->blocks = (Block *)calloc(runtime_count, sizeof *instance->blocks);
    instance->option_names = (PyObject **)calloc(option_count, sizeof *instance->option_names);
    instance->option_values = (PyObject **)calloc(option_count, sizeof *instance->option_values);
    if (instance->constants == NULL || instance->dtypes == NULL || instance->kinds == NULL ||
        instance->blocks == NULL || instance->option_names == NULL ||
        instance->option_values == NULL) {
        PyErr_NoMemory();
    } else if (read_constants(kernel, instance, constants) == 0 &&
               read_dtypes(kernel, instance, dtypes) == 0 &&
               read_options(kernel, instance, options) == 0 &&
               read_choices(kernel, instance, variants) == 0) {
        return instance;
    }
    served_free_instance(kernel, instance);
    return NULL;
}

int served_visit_instance(const KernelObject *kernel, const Instance *instance, visitproc visit,
                          void *arg)
{
    int i;
    for (i = 0; i < kernel->constant_count; i++) {
        Py_VISIT(instance->constants[i]);
    }
    for (i = 0; i < kernel->runtime_count; i++) {
        Py_VISIT(instance->dtypes[i]);
        Py_VISIT(instance->blocks[i].seen);
    }
    for (i = 0; i < instance->option_count; i++) {
        Py_VISIT(instance->option_values[i]);
    }
    for (i = 0; i < instance->choice_count; i++) {
        Py_VISIT(instance->choices[i].returned);
    }
    return 0;
}

/* One that was not read to its end, too. */
void served_free_instance(const KernelObject *kernel, Instance *instance)
{
    int i;
    for (i = 0; instance->constants != NULL && i < kernel->constant_count; i++) {
        Py_XDECREF(instance->constants[i]);
    }
    for (i = 0; instance->dtypes != NULL && i < kernel->runtime_count; i++) {
        Py_XDECREF(instance->dtypes[i]);
    }
    for (i = 0; instance->blocks != NULL && i < kernel->runtime_count; i++) {
        Py_XDECREF(instance->blocks[i].layout);
        Py_XDECREF(instance->blocks[i].seen);
    }
    for (i = 0; i < instance->option_count; i++) {
        Py_DECREF(instance->option_names[i]);
        Py_DECREF(instance->option_values[i]);
    }
    for (i = 0; i < instance->choice_count; i++) {
        Py_XDECREF((PyObject *)instance->choices[i].image);
        Py_XDECREF(instance->choices[i].returned);
        free(instance->choices[i].types);
    }
    free(instance->constants);
    free(instance->dtypes);
    free(instance->kinds);
    free(instance->blocks);
    free(instance->option_names);
    free(instance->option_values);
    free(instance->choices);
    free(instance);
}

/* 1, 0, or -1 with an exception: of descriptors, layouts may be compared. */
int served_same_kind(const Instance *instance, const Call *call, int at)
{
    const Argument *argument = &call->arguments[at];
    if (instance->kinds[at] != argument->kind ||
        (const void *)instance->dtypes[at] != argument->dtype) {
        return 0;
    }
    return argument->kind == KIND_DESCRIPTOR
               ? served_same_block(&instance->blocks[at],
                                   &call->descriptors[argument->value.integer],
                                   call->bound[call->kernel->runtime[at]])
               : 1;
}

int served_same_kinds(const Instance *instance, const Call *call)
{
    const int count = call->kernel->runtime_count;
    int is_same = 1;
    int i;
    for (i = 0; is_same == 1 && i < count; i++) {
        is_same = served_same_kind(instance, call, i);
    }
    return is_same;
}

int served_same_constants(const Instance *instance, const Call *call)
{
    const KernelObject *kernel = call->kernel;
    int is_same = 1;
    int i;
    for (i = 0; is_same == 1 && i < kernel->constant_count; i++) {
        is_same = served_same(instance->constants[i], call->bound[kernel->constants[i]]);
    }
    return is_same;
}

static int find_option(const Instance *instance, PyObject *name)
{
    int i;
    for (i = 0; i < instance->option_count; i++) {
        if (instance->option_names[i] == name) {
            return i;
        }
    }
    return -1;
}

/* The call's names are interned, as the instance's. */
int served_same_options(const Instance *instance, const Call *call)
{
    int is_same = instance->option_count == call->option_count;
    int i;
    for (i = 0; is_same == 1 && i < call->option_count; i++) {
        const int at = find_option(instance, call->option_names[i]);
        is_same = at < 0 ? 0 : served_same(instance->option_values[at], call->option_values[i]);
    }
    return is_same;
}

static int fits(const Argument *argument, int type)
{
    const int64_t value = argument->value.integer;
    if (argument->width == TYPE_U64) {
        return type == TYPE_U64;
    }
    switch (type) {
    case TYPE_I8: return value >= INT8_MIN && value <= INT8_MAX;
    case TYPE_I16: return value >= INT16_MIN && value <= INT16_MAX;
    case TYPE_I32: return value >= INT32_MIN && value <= INT32_MAX;
    case TYPE_U8: return value >= 0 && value <= UINT8_MAX;
    case TYPE_U16: return value >= 0 && value <= UINT16_MAX;
    case TYPE_U32: return value >= 0 && value <= (int64_t)UINT32_MAX;
    case TYPE_U64: return value >= 0;
    case TYPE_ONE: return value == 1;
    default: return 1;
    }
}

static double real_of(const Argument *argument)
{
    if (argument->kind == KIND_FLOAT) {
        return argument->value.real;
    }
    return argument->width == TYPE_U64 ? (double)argument->value.bits
                                       : (double)argument->value.integer;
}

/* Whether the variant takes the value; if so, the slot is what the kernel gets. */
int served_pack(const Argument *argument, int type, uint64_t *slot)
{
    const int is_typed = type & TYPED;
    type &= ~TYPED;
    if (type == TYPE_FP32) {
        const float narrow = (float)real_of(argument);
        *slot = 0;
        memcpy(slot, &narrow, sizeof narrow);
        return 1;
    }
    if (type == TYPE_FP64) {
        const double wide = real_of(argument);
        memcpy(slot, &wide, sizeof wide);
        return 1;
    }
    /* Of a descriptor, its place. */
    *slot = argument->value.bits;
    if (type & BY_16 && *slot & 15) {
        return 0;
    }
    type &= ~BY_16;
    if (argument->kind != KIND_INT) {
        return 1;
    }
    /* Arithmetic in a width other than that of Triton's kernel gives other results. */
    return is_typed || type == TYPE_ONE ? fits(argument, type) : type == argument->width;
}
