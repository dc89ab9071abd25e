/* Why a launch is handed over. Put together only then, so it may take its time.
 *
 * A reason names arguments and never their values: a program has few reasons, and each is told
 * once. What is told has the values of the first such launch. */
#include "served.h"

/* Adds "name" or "name=value" to a text, which it takes over. */
static PyObject *append(PyObject *text, PyObject *name, PyObject *value)
{
    PyObject *longer;
    const char *comma;
    if (text == NULL) {
        return NULL;
    }
    comma = PyUnicode_GetLength(text) ? ", " : "";
    longer = value == NULL ? PyUnicode_FromFormat("%U%s%U", text, comma, name)
                           : PyUnicode_FromFormat("%U%s%U=%R", text, comma, name, value);
    Py_DECREF(text);
    return longer;
}

static PyObject *finish(const char *format, PyObject *text)
{
    PyObject *finished = text == NULL ? NULL : PyUnicode_FromFormat(format, text);
    Py_XDECREF(text);
    return finished;
}

static int tell(Call *call, PyObject *reason, PyObject *told)
{
    if (reason == NULL || told == NULL) {
        Py_XDECREF(reason);
        Py_XDECREF(told);
        return FAILED;
    }
    call->told = told;
    return served_not_covered(call, reason);
}

/* How many constants differ, or -1 with an exception. */
static int differing(const Call *call, const Instance *instance)
{
    const KernelObject *kernel = call->kernel;
    int count = 0;
    int i;
    for (i = 0; i < kernel->constant_count; i++) {
        const int is_same = served_same(instance->constants[i], call->bound[kernel->constants[i]]);
        if (is_same < 0) {
            return -1;
        }
        count += !is_same;
    }
    return count;
}

/* Names those that differ from what is nearest, and tells all. */
static int other_constants(Call *call, const Instance *nearest)
{
    static const char format[] = "nothing was built for the constants %U";
    const KernelObject *kernel = call->kernel;
    PyObject *names = PyUnicode_FromString("");
    PyObject *told = PyUnicode_FromString("");
    int i;
    for (i = 0; i < kernel->constant_count; i++) {
        PyObject *name = kernel->names[kernel->constants[i]];
        PyObject *value = call->bound[kernel->constants[i]];
        const int is_same = served_same(nearest->constants[i], value);
        told = append(told, name, value);
        if (is_same == 0) {
            names = append(names, name, NULL);
        } else if (is_same < 0) {
            Py_CLEAR(names);
        }
    }
    return tell(call, finish(format, names), finish(format, told));
}

static int other_options(Call *call)
{
    static const char format[] = "nothing was built for the options %U";
    PyObject *names;
    PyObject *told;
    int i;
    if (call->option_count == 0) {
        return served_not_covered(
            call, PyUnicode_FromString("nothing was built for a launch without options"));
    }
    names = PyUnicode_FromString("");
    told = PyUnicode_FromString("");
    for (i = 0; i < call->option_count; i++) {
        names = append(names, call->option_names[i], NULL);
        told = append(told, call->option_names[i], call->option_values[i]);
    }
    return tell(call, finish(format, names), finish(format, told));
}

/* The dtype of a tensor, else the value's type: what tells instances apart. */
static const char *const kind_names[KINDS] = {"", "", "int", "float", "bool", "None"};

static PyObject *described(const Call *call, int at)
{
    const Argument *argument = &call->arguments[at];
    PyObject *value = call->bound[call->kernel->runtime[at]];
    if (argument->kind == KIND_DESCRIPTOR) {
        return served_describe_descriptor(&call->descriptors[argument->value.integer], value);
    }
    return argument->kind == KIND_POINTER ? PyObject_GetAttr(value, served_dtype)
                                          : PyUnicode_FromString(kind_names[argument->kind]);
}

static PyObject *expected(const Instance *instance, int at)
{
    if (instance->kinds[at] == KIND_DESCRIPTOR) {
        return served_describe_block(&instance->blocks[at], instance->dtypes[at]);
    }
    if (instance->kinds[at] == KIND_POINTER) {
        Py_INCREF(instance->dtypes[at]);
        return instance->dtypes[at];
    }
    return PyUnicode_FromString(kind_names[instance->kinds[at]]);
}

static int other_kind(Call *call, const Instance *instance)
{
    const KernelObject *kernel = call->kernel;
    PyObject *built;
    PyObject *found;
    PyObject *text = NULL;
    int is_same = 1;
    int i = -1;
    while (is_same == 1) {
        is_same = served_same_kind(instance, call, ++i);
    }
    if (is_same < 0) {
        return FAILED;
    }
    built = expected(instance, i);
    found = described(call, i);
    if (built != NULL && found != NULL) {
        text = PyUnicode_FromFormat("%U is %S, but was built as %S",
                                    kernel->names[kernel->runtime[i]], found, built);
    }
    Py_XDECREF(built);
    Py_XDECREF(found);
    return served_not_covered(call, text);
}

/* The first thing that no instance has. */
int served_no_instance(Call *call)
{
    const KernelObject *kernel = call->kernel;
    const Instance *nearest = NULL;
    int least = 0;
    int i;
    if (kernel->instance_count == 0) {
        return served_never_covered(call, REMEDY_BUILD, PyUnicode_FromString("nothing was built"));
    }
    for (i = 0; i < kernel->instance_count; i++) {
        const Instance *instance = kernel->instances[i];
        const int count = differing(call, instance);
        const int is_same = count == 0 ? served_same_kinds(instance, call) : 0;
        if (count < 0 || is_same < 0) {
            return FAILED;
        }
        if (is_same) {
            return other_options(call);
        }
        if (nearest == NULL || count < least) {
            nearest = instance;
            least = count;
        }
    }
    return least > 0 ? other_constants(call, nearest) : other_kind(call, nearest);
}

static int is_of_width(const Choice *choice, const Call *call, int at)
{
    const Argument *argument = &call->arguments[at];
    const int type = choice->types[at];
    if (argument->kind != KIND_INT || type & TYPED) {
        return 1;
    }
    return TYPE_OF(type) == argument->width ||
           (TYPE_OF(type) == TYPE_ONE && argument->width == TYPE_I32);
}

/* The argument whose width no variant has; the count of arguments if each is in some. */
static int find_other_width(const Call *call, const Instance *instance)
{
    int at;
    int i;
    for (at = 0; at < call->kernel->runtime_count; at++) {
        for (i = 0; i < instance->choice_count; i++) {
            if (is_of_width(&instance->choices[i], call, at)) {
                break;
            }
        }
        if (i == instance->choice_count) {
            break;
        }
    }
    return at;
}

static int has_widths(const Call *call, const Choice *choice)
{
    int at;
    for (at = 0; at < call->kernel->runtime_count; at++) {
        if (!is_of_width(choice, call, at)) {
            return 0;
        }
    }
    return 1;
}

static int other_width(Call *call, int at)
{
    static const char *const names[TYPES] = {
        [TYPE_I32] = "an integer of 32 bits (i32)",
        [TYPE_I64] = "an integer of 64 bits (i64)",
        [TYPE_U64] = "an unsigned integer of 64 bits (u64)",
    };
    PyObject *name = call->kernel->names[call->kernel->runtime[at]];
    const char *width = names[call->arguments[at].width];
    return tell(call, PyUnicode_FromFormat("%U is %s, for which nothing was built", name, width),
                PyUnicode_FromFormat("%U is %R, %s, for which nothing was built", name,
                                     call->bound[call->kernel->runtime[at]], width));
}

static int other_widths(Call *call)
{
    const KernelObject *kernel = call->kernel;
    PyObject *text = PyUnicode_FromString("");
    int at;
    for (at = 0; at < kernel->runtime_count; at++) {
        if (call->arguments[at].kind == KIND_INT) {
            PyObject *width = PyUnicode_FromFormat("%U as %s", kernel->names[kernel->runtime[at]],
                                                   served_type_name(call->arguments[at].width));
            text = width == NULL ? NULL : append(text, width, NULL);
            Py_XDECREF(width);
        }
    }
    return served_not_covered(call, finish("nothing was built for this mix of integers: %U", text));
}

static int refusal(Call *call, int at, int type)
{
    PyObject *name = call->kernel->names[call->kernel->runtime[at]];
    PyObject *value = call->bound[call->kernel->runtime[at]];
    uint64_t slot;
    if (TYPE_OF(type) == TYPE_POINTER) {
        return served_not_covered(call,
                                  PyUnicode_FromFormat("%U is not aligned to 16 bytes", name));
    }
    if (TYPE_OF(type) == TYPE_ONE) {
        return tell(call, PyUnicode_FromFormat("%U is not 1", name),
                    PyUnicode_FromFormat("%U is %R, not 1", name, value));
    }
    if (type & BY_16 && served_pack(&call->arguments[at], type & ~BY_16, &slot)) {
        return tell(call, PyUnicode_FromFormat("%U is not a multiple of 16", name),
                    PyUnicode_FromFormat("%U is %R, not a multiple of 16", name, value));
    }
    return tell(call, PyUnicode_FromFormat("%U does not fit into %s", name, served_type_name(type)),
                PyUnicode_FromFormat("%U is %R, which does not fit into %s", name, value,
                                     served_type_name(type)));
}

/* By the widths of integers, or by the last variant that has them, which assumes the least. */
int served_no_variant(Call *call, const Instance *instance)
{
    const int other = find_other_width(call, instance);
    const Choice *choice = NULL;
    uint64_t slot;
    int i;
    if (other < call->kernel->runtime_count) {
        return other_width(call, other);
    }
    for (i = 0; i < instance->choice_count; i++) {
        if (has_widths(call, &instance->choices[i])) {
            choice = &instance->choices[i];
        }
    }
    if (choice == NULL) {
        return other_widths(call);
    }
    i = 0;
    while (served_pack(&call->arguments[i], choice->types[i], &slot)) {
        i++;
    }
    return refusal(call, i, choice->types[i]);
}
