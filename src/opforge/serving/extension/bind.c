/* The arguments of a call: bound to parameters, and looked at. */
#include "served.h"

int served_not_covered(Call *call, PyObject *reason)
{
    call->reason = reason;
    return reason == NULL ? FAILED : NOT_COVERED;
}

/* For a reason other than that nothing was built. */
int served_never_covered(Call *call, const char *remedy, PyObject *reason)
{
    call->remedy = remedy;
    return served_not_covered(call, reason);
}

/* The position of a name among `count`; all of them are interned, and most that are looked for. */
static int find_name(PyObject *const *names, int count, PyObject *name)
{
    int i;
    for (i = 0; i < count; i++) {
        if (names[i] == name) {
            return i;
        }
    }
    return -1;
}

static int find_text(PyObject *const *names, int count, PyObject *name)
{
    int i;
    for (i = 0; i < count; i++) {
        if (PyUnicode_Compare(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

/* `known` is the option's place among those of the kernel, or -1. */
static int add_option(Call *call, int known, PyObject *name, PyObject *value)
{
    PyObject *taken = known < 0 ? NULL : call->kernel->defaults[known];
    /* Triton ignores an option that is None, and takes its default without one. */
    const int is_taken = value == Py_None ? 1 : taken == NULL ? 0 : served_same(taken, value);
    if (is_taken != 0) {
        return is_taken < 0 ? FAILED : COVERED;
    }
    if (call->option_count == SERVED_OPTIONS) {
        return served_never_covered(
            call, REMEDY_CALL, PyUnicode_FromFormat("it has more than %d options", SERVED_OPTIONS));
    }
    call->option_names[call->option_count] = known < 0 ? name : call->kernel->options[known];
    call->option_values[call->option_count++] = value;
    return COVERED;
}

static int bind_keyword(Call *call, PyObject *name, PyObject *value, int *next)
{
    KernelObject *kernel = call->kernel;
    int at = *next;
    if (at >= kernel->count || kernel->names[at] != name) {
        at = find_name(kernel->names, kernel->count, name);
    }
    if (at < 0) {
        const int known = find_name(kernel->options, kernel->option_count, name);
        if (known >= 0) {
            return add_option(call, known, name, value);
        }
        at = find_text(kernel->names, kernel->count, name);
    }
    if (at < 0) {
        return add_option(call, find_text(kernel->options, kernel->option_count, name), name,
                          value);
    }
    if (call->bound[at] != NULL) {
        return served_never_covered(call, REMEDY_CALL,
                                    PyUnicode_FromFormat("%U is given twice", name));
    }
    call->bound[at] = value;
    *next = at + 1;
    return COVERED;
}

static int bind_keywords(Call *call)
{
    const Py_ssize_t count = PyTuple_Size(call->keywords);
    int next = (int)call->given_count;
    Py_ssize_t i;
    int found = COVERED;
    for (i = 0; found == COVERED && i < count; i++) {
        found = bind_keyword(call, PyTuple_GetItem(call->keywords, i),
                             call->given[call->given_count + i], &next);
    }
    return found;
}

/* As Python binds them; what it would refuse, Triton is left to refuse. */
int served_bind(Call *call)
{
    const KernelObject *kernel = call->kernel;
    int i;
    if (call->given_count > kernel->count) {
        return served_never_covered(call, REMEDY_CALL,
                                    PyUnicode_FromFormat("it takes %d arguments, but got %zd",
                                                         kernel->count, call->given_count));
    }
    for (i = 0; i < (int)call->given_count; i++) {
        call->bound[i] = call->given[i];
    }
    for (; i < kernel->count; i++) {
        call->bound[i] = NULL;
    }
    call->option_count = 0;
    if (call->keywords != NULL) {
        const int found = bind_keywords(call);
        if (found != COVERED) {
            return found;
        }
    }
    for (i = (int)call->given_count; i < kernel->count; i++) {
        if (call->bound[i] == NULL) {
            call->bound[i] = kernel->parameters[i].default_value;
            if (call->bound[i] == NULL) {
                return served_never_covered(
                    call, REMEDY_CALL, PyUnicode_FromFormat("%U is missing", kernel->names[i]));
            }
        }
    }
    return COVERED;
}

static int look_at_integer(PyObject *value, Argument *argument)
{
    int overflow = 0;
    argument->kind = KIND_INT;
    argument->value.integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0) {
        const int is_narrow = argument->value.integer == (int32_t)argument->value.integer;
        argument->width = is_narrow ? TYPE_I32 : TYPE_I64;
        return COVERED;
    }
    argument->width = TYPE_U64;
    argument->value.bits = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return NOT_COVERED;
    }
    return COVERED;
}

/* Whether the attribute is only missing; any other exception stays. */
static int is_missing(void)
{
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return FAILED;
    }
    PyErr_Clear();
    return NOT_COVERED;
}

static int look_at_pointer(PyObject *value, Argument *argument)
{
    PyObject *found = PyObject_GetAttr(value, served_dtype);
    if (found == NULL) {
        return is_missing();
    }
    /* Compared with dtypes that instances keep alive, so it need not be kept itself. */
    argument->dtype = found;
    Py_DECREF(found);
    found = PyObject_CallMethodObjArgs(value, served_data_ptr, NULL);
    if (found == NULL) {
        return is_missing();
    }
    argument->kind = KIND_POINTER;
    /* In the 64 bits of an address; as an unsigned long long it takes Python twice as long. */
    argument->value.bits = PyLong_AsSize_t(found);
    Py_DECREF(found);
    return argument->value.bits == UINT64_MAX && PyErr_Occurred() ? FAILED : COVERED;
}

static int look_at_descriptor(Call *call, PyObject *value, const DescriptorType *type,
                              Argument *argument)
{
    if (call->descriptor_count == SERVED_DESCRIPTORS) {
        return NOT_COVERED;
    }
    argument->value.integer = call->descriptor_count;
    return served_look_at_descriptor(value, type, argument,
                                     &call->descriptors[call->descriptor_count++]);
}

static int look_at(Call *call, PyObject *value, Argument *argument)
{
    const PyTypeObject *type = Py_TYPE(value);
    const DescriptorType *described;
    argument->dtype = NULL;
    if (type == &PyLong_Type) {
        return look_at_integer(value, argument);
    }
    if (type == &PyFloat_Type) {
        argument->kind = KIND_FLOAT;
        argument->value.real = PyFloat_AsDouble(value);
        return COVERED;
    }
    if (value == Py_None) {
        argument->kind = KIND_NONE;
        argument->value.bits = 0;
        return COVERED;
    }
    if (type == &PyBool_Type) {
        argument->kind = KIND_BOOL;
        argument->value.bits = value == Py_True;
        return COVERED;
    }
    described = served_descriptor_type(call->kernel, type);
    return described != NULL ? look_at_descriptor(call, value, described, argument)
                             : look_at_pointer(value, argument);
}

static PyObject *unknown_kind(const Call *call, PyObject *name, PyObject *value)
{
    PyObject *type;
    PyObject *text;
    if (served_descriptor_type(call->kernel, Py_TYPE(value)) != NULL) {
        return call->descriptor_count == SERVED_DESCRIPTORS
                   ? PyUnicode_FromFormat("%U is one descriptor more than %d", name,
                                          SERVED_DESCRIPTORS)
                   : PyUnicode_FromFormat("%U is not a valid descriptor: shape, strides and "
                                          "block_shape must have the same number of integers, and "
                                          "sizes must be below 2**31",
                                          name);
    }
    if (PyLong_CheckExact(value)) {
        return PyUnicode_FromFormat("%U does not fit into 64 bits", name);
    }
    type = PyObject_GetAttr((PyObject *)Py_TYPE(value), served_name);
    if (type == NULL) {
        return NULL;
    }
    text = PyUnicode_FromFormat(
        "%U is of type %U, which is not a number, a tensor, a tensor descriptor or None", name,
        type);
    Py_DECREF(type);
    return text;
}

int served_look_at(Call *call)
{
    const KernelObject *kernel = call->kernel;
    int i;
    call->descriptor_count = 0;
    for (i = 0; i < kernel->runtime_count; i++) {
        const int at = kernel->runtime[i];
        const int found = look_at(call, call->bound[at], &call->arguments[i]);
        if (found == NOT_COVERED) {
            const int is_long = PyLong_CheckExact(call->bound[at]);
            return served_never_covered(call, is_long ? REMEDY_CALL : REMEDY_NONE,
                                        unknown_kind(call, kernel->names[at], call->bound[at]));
        }
        if (found == FAILED) {
            return FAILED;
        }
    }
    return COVERED;
}
