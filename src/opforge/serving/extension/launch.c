/* kernel[grid](...): binds the arguments, finds what was built for them, and launches it. */
#include "served.h"

#include <string.h>

#define MAX_GRID_X INT64_C(0x7fffffff)
#define MAX_GRID_YZ 65535

/* What a step of a call found. */
enum { FAILED = -1, NOT_COVERED, COVERED };

static int not_covered(Call *call, PyObject *reason)
{
    call->reason = reason;
    return reason == NULL ? FAILED : NOT_COVERED;
}

static int is_watched(Call *call, const Watches *watches)
{
    PyObject *reason = NULL;
    const int is_quiet = served_is_quiet(watches, &reason);
    if (is_quiet == 0) {
        Py_INCREF(reason);
        call->reason = reason;
    }
    return is_quiet;
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

static int add_option(Call *call, PyObject *name, PyObject *value)
{
    if (call->option_count == SERVED_OPTIONS) {
        return not_covered(call,
                           PyUnicode_FromFormat("it has more than %d options", SERVED_OPTIONS));
    }
    call->option_names[call->option_count] = name;
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
        if (find_name(kernel->options, kernel->option_count, name) >= 0) {
            return add_option(call, name, value);
        }
        at = find_text(kernel->names, kernel->count, name);
    }
    if (at < 0) {
        const int known = find_text(kernel->options, kernel->option_count, name);
        return add_option(call, known < 0 ? name : kernel->options[known], value);
    }
    if (call->bound[at] != NULL) {
        return not_covered(call, PyUnicode_FromFormat("%U is given twice", name));
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
static int bind(Call *call)
{
    const KernelObject *kernel = call->kernel;
    int i;
    if (call->given_count > kernel->count) {
        return not_covered(call, PyUnicode_FromFormat("it takes %d arguments, but got %zd",
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
                return not_covered(call, PyUnicode_FromFormat("%U is missing", kernel->names[i]));
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
        return COVERED;
    }
    argument->is_unsigned = 1;
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
    argument->value.bits = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    return argument->value.bits == UINT64_MAX && PyErr_Occurred() ? FAILED : COVERED;
}

static int look_at(PyObject *value, Argument *argument)
{
    const PyTypeObject *type = Py_TYPE(value);
    argument->dtype = NULL;
    argument->is_unsigned = 0;
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
    return look_at_pointer(value, argument);
}

static PyObject *unknown_kind(PyObject *name, PyObject *value)
{
    PyObject *type;
    PyObject *text;
    if (PyLong_CheckExact(value)) {
        return PyUnicode_FromFormat("%U does not fit into 64 bits", name);
    }
    type = PyObject_GetAttrString((PyObject *)Py_TYPE(value), "__name__");
    if (type == NULL) {
        return NULL;
    }
    text = PyUnicode_FromFormat("%U is of type %U, which is no number, tensor or None", name, type);
    Py_DECREF(type);
    return text;
}

static int look_at_arguments(Call *call)
{
    const KernelObject *kernel = call->kernel;
    int i;
    for (i = 0; i < kernel->runtime_count; i++) {
        const int at = kernel->runtime[i];
        const int found = look_at(call->bound[at], &call->arguments[i]);
        if (found == NOT_COVERED) {
            return not_covered(call, unknown_kind(kernel->names[at], call->bound[at]));
        }
        if (found == FAILED) {
            return FAILED;
        }
    }
    return COVERED;
}

static int is_for(const Instance *instance, const Call *call)
{
    int is_same = served_same_kinds(instance, call);
    if (is_same == 1) {
        is_same = served_same_constants(instance, call);
    }
    return is_same == 1 ? served_same_options(instance, call) : is_same;
}

/* Comparing constants may run Python code, which may add instances: none is ever removed, and the
 * array is read anew each time. */
static int find_instance(Call *call, const Instance **found)
{
    KernelObject *kernel = call->kernel;
    int i;
    for (i = 0; i < kernel->instance_count; i++) {
        Instance *instance = kernel->instances[i];
        const int is_same = is_for(instance, call);
        if (is_same < 0) {
            return FAILED;
        }
        if (is_same) {
            if (i > 0 && kernel->instances[i] == instance) {
                memmove(kernel->instances + 1, kernel->instances,
                        (size_t)i * sizeof *kernel->instances);
                kernel->instances[0] = instance;
            }
            *found = instance;
            return COVERED;
        }
    }
    return not_covered(call, served_reason_of_instance(call));
}

/* Slots of what is passed, and where the values are that the driver is given. */
typedef struct {
    uint64_t slots[SERVED_PARAMETERS + 2];
    void *parameters[SERVED_PARAMETERS + 2];
    int count;
    Pointer pointers[SERVED_PARAMETERS];
    int pointer_count;
} Packed;

static int pack(const Call *call, const Choice *choice, Packed *packed)
{
    const int count = call->kernel->runtime_count;
    int i;
    packed->count = 0;
    packed->pointer_count = 0;
    for (i = 0; i < count; i++) {
        const int type = choice->types[i];
        uint64_t *slot = &packed->slots[i];
        if (!served_pack(&call->arguments[i], type, slot)) {
            return 0;
        }
        if (type != TYPE_ONE && type != TYPE_NONE) {
            packed->parameters[packed->count++] = slot;
        }
        if (call->arguments[i].kind == KIND_POINTER) {
            packed->pointers[packed->pointer_count].argument = i;
            packed->pointers[packed->pointer_count++].address = *slot;
        }
    }
    return 1;
}

static int choose(Call *call, const Instance *instance, Packed *packed, const Choice **chosen)
{
    int i;
    for (i = 0; i < instance->choice_count; i++) {
        if (pack(call, &instance->choices[i], packed)) {
            *chosen = &instance->choices[i];
            return COVERED;
        }
    }
    return not_covered(call, served_reason_of_variant(call, instance));
}

/* All parameters by name, as Triton's bound_args. */
static PyObject *by_name(const Call *call)
{
    PyObject *named = PyDict_New();
    int i;
    for (i = 0; named != NULL && i < call->kernel->count; i++) {
        if (PyDict_SetItem(named, call->kernel->names[i], call->bound[i]) < 0) {
            Py_DECREF(named);
            return NULL;
        }
    }
    return named;
}

static PyObject *type_name(PyObject *value)
{
    return PyObject_GetAttrString((PyObject *)Py_TYPE(value), "__name__");
}

static int too_large(const Call *call, int dimension, PyObject *value, int64_t most)
{
    PyErr_Format(PyExc_ValueError, "%U: grid[%d] is %S, but the largest is %lld",
                 call->kernel->name, dimension, value, (long long)most);
    return -1;
}

static int read_dimension(const Call *call, int at, PyObject *given, int64_t *dimension)
{
    const int64_t most = at == 0 ? MAX_GRID_X : MAX_GRID_YZ;
    int overflow = 0;
    PyObject *number;
    if (PyLong_CheckExact(given)) {
        *dimension = PyLong_AsLongLongAndOverflow(given, &overflow);
    } else {
        number = PyNumber_Index(given);
        if (number == NULL) {
            PyObject *name;
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
                return -1;
            }
            PyErr_Clear();
            name = type_name(given);
            if (name != NULL) {
                PyErr_Format(PyExc_TypeError, "%U: grid[%d] is a %U, not an integer",
                             call->kernel->name, at, name);
                Py_DECREF(name);
            }
            return -1;
        }
        *dimension = PyLong_AsLongLongAndOverflow(number, &overflow);
        Py_DECREF(number);
    }
    if (overflow > 0 || (overflow == 0 && *dimension > most)) {
        return too_large(call, at, given, most);
    }
    return 0;
}

static int no_sequence(const Call *call, PyObject *grid)
{
    PyObject *name;
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
        return -1;
    }
    PyErr_Clear();
    name = type_name(grid);
    if (name != NULL) {
        PyErr_Format(PyExc_TypeError, "%U: its grid is a %U, not a tuple or list of integers",
                     call->kernel->name, name);
        Py_DECREF(name);
    }
    return -1;
}

/* More than three are not looked at, as in Triton. */
static int read_dimensions(const Call *call, PyObject *grid, int64_t *dimensions)
{
    const Py_ssize_t count = PySequence_Size(grid);
    Py_ssize_t i;
    if (count < 0) {
        return no_sequence(call, grid);
    }
    if (count == 0) {
        PyErr_Format(PyExc_ValueError, "%U: its grid is empty; it needs 1 to 3 dimensions",
                     call->kernel->name);
        return -1;
    }
    for (i = 0; i < 3; i++) {
        PyObject *given;
        int failed;
        dimensions[i] = 1;
        if (i >= count) {
            continue;
        }
        given = PySequence_GetItem(grid, i);
        if (given == NULL) {
            return no_sequence(call, grid);
        }
        failed = read_dimension(call, (int)i, given, &dimensions[i]);
        Py_DECREF(given);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

static int evaluate_grid(const Call *call, int64_t *dimensions)
{
    PyObject *grid = call->grid;
    PyObject *named;
    int failed;
    if (PyTuple_CheckExact(grid) || PyList_CheckExact(grid) || !PyCallable_Check(grid)) {
        return read_dimensions(call, grid, dimensions);
    }
    named = by_name(call);
    if (named == NULL) {
        return -1;
    }
    grid = PyObject_CallFunctionObjArgs(grid, named, NULL);
    Py_DECREF(named);
    if (grid == NULL) {
        return -1;
    }
    failed = read_dimensions(call, grid, dimensions);
    Py_DECREF(grid);
    return failed;
}

static int current_stream(int device, void **stream)
{
    PyObject *number = PyLong_FromLong(device);
    PyObject *found;
    if (number == NULL) {
        return -1;
    }
    found = PyObject_CallFunctionObjArgs(served_configuration.stream_of, number, NULL);
    Py_DECREF(number);
    if (found == NULL) {
        return -1;
    }
    *stream = PyLong_AsVoidPtr(found);
    Py_DECREF(found);
    return *stream == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Memory for the launch; the buffer must live until then. */
static PyObject *allocate_scratch(const Launching *launching, const Image *image, uint64_t *address)
{
    int overflow = 0;
    int64_t bytes = of_mul(launching->grid[0], launching->grid[1] * launching->grid[2], &overflow);
    PyObject *buffer;
    PyObject *found;
    bytes = of_mul(of_mul(bytes, image->num_ctas, &overflow), image->global_scratch, &overflow);
    if (overflow) {
        return PyErr_NoMemory();
    }
    buffer = PyObject_CallFunction(served_configuration.allocate, "LLK", (long long)bytes,
                                   (long long)image->global_scratch_align,
                                   (unsigned long long)(uintptr_t)launching->stream);
    if (buffer == NULL || buffer == Py_None) {
        return buffer;
    }
    if (PyLong_Check(buffer)) {
        found = buffer;
        Py_INCREF(found);
    } else {
        found = PyObject_CallMethodObjArgs(buffer, served_data_ptr, NULL);
    }
    *address = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(found);
    if (PyErr_Occurred()) {
        Py_DECREF(buffer);
        return NULL;
    }
    return buffer;
}

static int load_first(const Call *call, ImageObject *image, int device)
{
    OpforgeStatus status;
    Py_BEGIN_ALLOW_THREADS;
    status = served_load(image, device);
    Py_END_ALLOW_THREADS;
    if (status != OPFORGE_OK) {
        served_raise(call->kernel->text, status);
        return -1;
    }
    return 0;
}

/* Without the GIL, as Triton: a launch waits while the stream's queue is full. */
static int launch(const Call *call, const Loaded *loaded, const Launching *launching,
                  const Packed *packed)
{
    OpforgeStatus status;
    int unreachable = -1;
    Py_BEGIN_ALLOW_THREADS;
    status = served_find_unreachable(launching->device, packed->pointers, packed->pointer_count,
                                     &unreachable);
    if (status == OPFORGE_OK && unreachable < 0) {
        status = served_launch(loaded, launching);
    }
    Py_END_ALLOW_THREADS;
    if (unreachable >= 0) {
        const int argument = packed->pointers[unreachable].argument;
        PyErr_Format(PyExc_ValueError,
                     "%U: %U is in memory that the GPU cannot reach; is it a CPU "
                     "tensor?",
                     call->kernel->name, call->kernel->names[call->kernel->runtime[argument]]);
        return -1;
    }
    if (status != OPFORGE_OK) {
        served_raise(call->kernel->text, status);
        return -1;
    }
    return 0;
}

static int launch_on_device(const Call *call, ImageObject *image, Launching *launching,
                            Packed *packed)
{
    const Loaded *loaded;
    PyObject *scratch = NULL;
    int failed;
    if (served_current_device(&launching->device) < 0 ||
        current_stream(launching->device, &launching->stream) < 0) {
        return -1;
    }
    loaded = served_loaded(image, launching->device);
    if (loaded == NULL) {
        if (load_first(call, image, launching->device) < 0) {
            return -1;
        }
        loaded = served_loaded(image, launching->device);
    }
    if (loaded->image->num_ctas > 1 && launching->grid[0] > MAX_GRID_X / loaded->image->num_ctas) {
        PyErr_Format(PyExc_ValueError,
                     "%U: grid[0] is %lld, but the largest in clusters of %d is %lld",
                     call->kernel->name, (long long)launching->grid[0], loaded->image->num_ctas,
                     (long long)(MAX_GRID_X / loaded->image->num_ctas));
        return -1;
    }
    /* Global scratch, and that of profilers, which no launch that is served has. */
    packed->slots[SERVED_PARAMETERS] = 0;
    packed->slots[SERVED_PARAMETERS + 1] = 0;
    if (loaded->image->global_scratch > 0) {
        scratch = allocate_scratch(launching, loaded->image, &packed->slots[SERVED_PARAMETERS]);
        if (scratch == NULL) {
            return -1;
        }
    }
    packed->parameters[packed->count] = &packed->slots[SERVED_PARAMETERS];
    packed->parameters[packed->count + 1] = &packed->slots[SERVED_PARAMETERS + 1];
    launching->parameters = packed->parameters;
    failed = launch(call, loaded, launching, packed);
    Py_XDECREF(scratch);
    return failed;
}

/* An instance and a variant are there: from here on nothing is handed over, since the grid must not
 * be evaluated twice. */
static PyObject *serve(const Call *call, const Instance *instance, const Choice *choice,
                       Packed *packed)
{
    KernelObject *kernel = call->kernel;
    Launching launching;
    if (evaluate_grid(call, launching.grid) < 0) {
        return NULL;
    }
    if (launching.grid[0] > 0 && launching.grid[1] > 0 && launching.grid[2] > 0 &&
        launch_on_device(call, choice->image, &launching, packed) < 0) {
        return NULL;
    }
    kernel->served++;
    kernel->general += instance->has_general &&
                       choice == &instance->choices[instance->choice_count - 1];
    Py_RETURN_NONE;
}

static PyObject *positional(const Call *call)
{
    PyObject *args = PyTuple_New(call->given_count);
    Py_ssize_t i;
    for (i = 0; args != NULL && i < call->given_count; i++) {
        Py_INCREF(call->given[i]);
        PyTuple_SetItem(args, i, call->given[i]);
    }
    return args;
}

static PyObject *by_keyword(const Call *call)
{
    const Py_ssize_t count = call->keywords == NULL ? 0 : PyTuple_Size(call->keywords);
    PyObject *keywords = PyDict_New();
    Py_ssize_t i;
    for (i = 0; keywords != NULL && i < count; i++) {
        if (PyDict_SetItem(keywords, PyTuple_GetItem(call->keywords, i),
                           call->given[call->given_count + i]) < 0) {
            Py_DECREF(keywords);
            return NULL;
        }
    }
    return keywords;
}

static PyObject *hand_over(Call *call)
{
    PyObject *args = positional(call);
    PyObject *keywords = by_keyword(call);
    PyObject *result = NULL;
    call->kernel->handed_over++;
    if (args != NULL && keywords != NULL) {
        result = PyObject_CallFunctionObjArgs(call->kernel->hand_over, call->grid, args, keywords,
                                              call->reason, NULL);
    }
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    Py_CLEAR(call->reason);
    return result;
}

static PyObject *call_kernel(PyObject *self, PyObject *const *given, Py_ssize_t given_count,
                             PyObject *keywords)
{
    Call call;
    Packed packed;
    const Instance *instance = NULL;
    const Choice *choice = NULL;
    int found;
    call.kernel = (KernelObject *)PyTuple_GetItem(self, 0);
    call.grid = PyTuple_GetItem(self, 1);
    call.given = given;
    call.given_count = given_count;
    call.keywords = keywords;
    call.reason = NULL;
    if (served_configuration.device_of == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "configure() comes before the first launch");
        return NULL;
    }
    found = is_watched(&call, &served_configuration.watches);
    if (found == COVERED) {
        found = is_watched(&call, &call.kernel->watches);
    }
    if (found == COVERED) {
        found = bind(&call);
    }
    if (found == COVERED) {
        found = look_at_arguments(&call);
    }
    if (found == COVERED) {
        found = find_instance(&call, &instance);
    }
    if (found == COVERED) {
        found = choose(&call, instance, &packed, &choice);
    }
    if (found == COVERED) {
        return serve(&call, instance, choice, &packed);
    }
    return found == NOT_COVERED ? hand_over(&call) : NULL;
}

/* Through void, because METH_FASTCALL has another signature than PyCFunction. */
static PyMethodDef bound = {"launch", (PyCFunction)(void (*)(void))call_kernel,
                            METH_FASTCALL | METH_KEYWORDS, "Launch the kernel on the grid."};

/* A tuple holds kernel and grid: Python keeps freed ones at hand, unlike objects of a type here. */
PyObject *served_bind(KernelObject *kernel, PyObject *grid)
{
    PyObject *self = PyTuple_Pack(2, (PyObject *)kernel, grid);
    PyObject *callable;
    if (self == NULL) {
        return NULL;
    }
    callable = PyCFunction_NewEx(&bound, self, NULL);
    Py_DECREF(self);
    return callable;
}
