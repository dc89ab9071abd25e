/* Why a launch is handed over. Put together only then, so it may take its time. */
#include "served.h"

/* Adds "name=value" to a text, which it takes over. */
static PyObject *append(PyObject *text, PyObject *name, PyObject *value)
{
    PyObject *longer;
    if (text == NULL) {
        return NULL;
    }
    longer =
        PyUnicode_FromFormat("%U%s%U=%R", text, PyUnicode_GetLength(text) ? ", " : "", name, value);
    Py_DECREF(text);
    return longer;
}

static PyObject *finish(const char *format, PyObject *text)
{
    PyObject *finished = text == NULL ? NULL : PyUnicode_FromFormat(format, text);
    Py_XDECREF(text);
    return finished;
}

static PyObject *other_constants(const Call *call)
{
    const KernelObject *kernel = call->kernel;
    PyObject *text = PyUnicode_FromString("");
    int i;
    for (i = 0; i < kernel->constant_count; i++) {
        const int at = kernel->constants[i];
        text = append(text, kernel->names[at], call->bound[at]);
    }
    return finish("nothing was built for the constants %U", text);
}

static PyObject *other_options(const Call *call)
{
    PyObject *text;
    int i;
    if (call->option_count == 0) {
        return PyUnicode_FromString("nothing was built for a launch without options");
    }
    text = PyUnicode_FromString("");
    for (i = 0; i < call->option_count; i++) {
        text = append(text, call->option_names[i], call->option_values[i]);
    }
    return finish("nothing was built for the options %U", text);
}

/* The dtype of a tensor, else the value's type: what tells instances apart. */
static PyObject *described(PyObject *value, int kind)
{
    static const char *const names[KINDS] = {"", "int", "float", "bool", "None"};
    return kind == KIND_POINTER ? PyObject_GetAttr(value, served_dtype)
                                : PyUnicode_FromString(names[kind]);
}

static PyObject *expected(const Instance *instance, int at)
{
    if (instance->kinds[at] == KIND_POINTER) {
        Py_INCREF(instance->dtypes[at]);
        return instance->dtypes[at];
    }
    return described(NULL, instance->kinds[at]);
}

static PyObject *other_kind(const Call *call, const Instance *instance)
{
    const KernelObject *kernel = call->kernel;
    PyObject *built;
    PyObject *found;
    PyObject *text = NULL;
    int i = 0;
    while (instance->kinds[i] == call->arguments[i].kind &&
           (const void *)instance->dtypes[i] == call->arguments[i].dtype) {
        i++;
    }
    built = expected(instance, i);
    found = described(call->bound[kernel->runtime[i]], call->arguments[i].kind);
    if (built != NULL && found != NULL) {
        text = PyUnicode_FromFormat("%U is %S, but was built as %S",
                                    kernel->names[kernel->runtime[i]], found, built);
    }
    Py_XDECREF(built);
    Py_XDECREF(found);
    return text;
}

/* The first thing that no instance has. */
PyObject *served_reason_of_instance(const Call *call)
{
    const KernelObject *kernel = call->kernel;
    const Instance *nearest = NULL;
    int i;
    if (kernel->instance_count == 0) {
        return PyUnicode_FromString("nothing was built");
    }
    for (i = 0; i < kernel->instance_count; i++) {
        const Instance *instance = kernel->instances[i];
        const int is_same = served_same_constants(instance, call);
        if (is_same < 0) {
            return NULL;
        }
        if (is_same && served_same_kinds(instance, call)) {
            return other_options(call);
        }
        if (is_same && nearest == NULL) {
            nearest = instance;
        }
    }
    return nearest == NULL ? other_constants(call) : other_kind(call, nearest);
}

static PyObject *refusal(const Call *call, int at, int type)
{
    PyObject *name = call->kernel->names[call->kernel->runtime[at]];
    PyObject *value = call->bound[call->kernel->runtime[at]];
    uint64_t slot;
    if (type == (TYPE_POINTER | BY_16)) {
        return PyUnicode_FromFormat("%U is not aligned to 16 bytes", name);
    }
    if (type == TYPE_ONE) {
        return PyUnicode_FromFormat("%U is %R, not 1", name, value);
    }
    if (type & BY_16 && served_pack(&call->arguments[at], type & ~BY_16, &slot)) {
        return PyUnicode_FromFormat("%U is %R, not a multiple of 16", name, value);
    }
    return PyUnicode_FromFormat("%U is %R, which does not fit into %s", name, value,
                                served_type_name(type));
}

/* By the last variant, which assumes the least. */
PyObject *served_reason_of_variant(const Call *call, const Instance *instance)
{
    const Choice *choice = &instance->choices[instance->choice_count - 1];
    uint64_t slot;
    int i = 0;
    while (served_pack(&call->arguments[i], choice->types[i], &slot)) {
        i++;
    }
    return refusal(call, i, choice->types[i]);
}
