/* kernel[grid](...): finds what was built for the arguments, and launches it. */
#include "served.h"

#include <string.h>

static int is_watched(Call *call, const Watches *watches)
{
    PyObject *reason = NULL;
    const int is_quiet = served_is_quiet(watches, &reason);
    if (is_quiet == 0) {
        Py_INCREF(reason);
        return served_never_covered(call, REMEDY_NONE, reason);
    }
    return is_quiet;
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
    return served_no_instance(call);
}

/* A descriptor becomes so many: address, sizes, strides, flags, and sizes and strides again. */
#define PARTS (1 + 4 * OF_MAX_MAP_RANK + SERVED_MAX_FLAGS)

/* Slots of what is passed, and where the values are that the driver is given. */
typedef struct {
    uint64_t slots[SERVED_PARAMETERS + 2];
    TensorMap maps[SERVED_DESCRIPTORS];
    void *parameters[SERVED_PARAMETERS + SERVED_DESCRIPTORS * PARTS + 2];
    int count;
    Pointer pointers[SERVED_PARAMETERS];
    int pointer_count;
} Packed;

static int pack(const Call *call, const Choice *choice, Packed *packed)
{
    const int count = call->kernel->runtime_count;
    int i;
    packed->pointer_count = 0;
    for (i = 0; i < count; i++) {
        const int type = choice->types[i];
        uint64_t *slot = &packed->slots[i];
        if (!served_pack(&call->arguments[i], type, slot)) {
            return 0;
        }
        if (call->arguments[i].kind <= KIND_DESCRIPTOR) {
            const int is_pointer = call->arguments[i].kind == KIND_POINTER;
            packed->pointers[packed->pointer_count].argument = i;
            packed->pointers[packed->pointer_count++].address =
                is_pointer ? *slot : (uint64_t)call->descriptors[*slot].numbers[0];
        }
    }
    return 1;
}

static int pass_descriptor(Call *call, int at, const Image *image, Packed *packed)
{
    const int place = (int)packed->slots[at];
    const KernelObject *kernel = call->kernel;
    Descriptor *descriptor = &call->descriptors[place];
    const char *name = PyUnicode_AsUTF8AndSize(kernel->names[kernel->runtime[at]], NULL);
    const Launch launch = {kernel->text, kernel->location, 0, NULL, 0, NULL};
    OpforgeStatus status;
    int i;
    if (name == NULL) {
        return FAILED;
    }
    status = of_pass_descriptor(image, place, descriptor->argument, &launch, name,
                                descriptor->numbers, &packed->maps[place], packed->parameters,
                                &packed->count);
    if (status != OPFORGE_OK) {
        PyErr_SetString(status == OPFORGE_INVALID_ARGUMENT ? PyExc_ValueError : PyExc_RuntimeError,
                        of_last_error());
        return FAILED;
    }
    for (i = 1; i <= 2 * descriptor->rank; i++) {
        packed->parameters[packed->count++] = &descriptor->numbers[i];
    }
    return COVERED;
}

/* Lays out what the kernel takes; how it takes a descriptor, only the image says. */
static int pass(Call *call, const Choice *choice, const Image *image, Packed *packed)
{
    const int count = call->kernel->runtime_count;
    int i;
    packed->count = 0;
    for (i = 0; i < count; i++) {
        const int type = TYPE_OF(choice->types[i]);
        if (type < TYPE_ONE) {
            packed->parameters[packed->count++] = &packed->slots[i];
        } else if (type == TYPE_DESCRIPTOR && pass_descriptor(call, i, image, packed) != COVERED) {
            return FAILED;
        }
    }
    return COVERED;
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
    return served_no_variant(call, instance);
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

static int load_first(Call *call, ImageObject *image, int device)
{
    OpforgeStatus status;
    Py_BEGIN_ALLOW_THREADS;
    status = served_load(image, device);
    Py_END_ALLOW_THREADS;
    if (status == OPFORGE_UNCOVERED) {
        return served_never_covered(call, REMEDY_ARCH, PyUnicode_FromString(of_last_error()));
    }
    if (status != OPFORGE_OK) {
        served_raise(call->kernel->text, status);
        return FAILED;
    }
    return COVERED;
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
        return FAILED;
    }
    if (status != OPFORGE_OK) {
        served_raise(call->kernel->text, status);
        return FAILED;
    }
    return COVERED;
}

static int launch_on_device(Call *call, const Choice *choice, Launching *launching, Packed *packed)
{
    ImageObject *image = choice->image;
    const Loaded *loaded;
    PyObject *scratch = NULL;
    int found;
    if (served_current_device(&launching->device) < 0 ||
        served_current_stream(launching->device, &launching->stream) < 0) {
        return FAILED;
    }
    loaded = served_loaded(image, launching->device);
    if (loaded == NULL) {
        found = load_first(call, image, launching->device);
        if (found != COVERED) {
            return found;
        }
        loaded = served_loaded(image, launching->device);
    }
    if (loaded->image->num_ctas > 1 &&
        launching->grid[0] > SERVED_MAX_GRID_X / loaded->image->num_ctas) {
        PyErr_Format(PyExc_ValueError,
                     "%U: grid[0] is %lld, but the largest in clusters of %d is %lld",
                     call->kernel->name, (long long)launching->grid[0], loaded->image->num_ctas,
                     (long long)(SERVED_MAX_GRID_X / loaded->image->num_ctas));
        return FAILED;
    }
    if (pass(call, choice, loaded->image, packed) != COVERED) {
        return FAILED;
    }
    /* Global scratch, and that of profilers, which no launch that is served has. */
    packed->slots[SERVED_PARAMETERS] = 0;
    packed->slots[SERVED_PARAMETERS + 1] = 0;
    if (loaded->image->global_scratch > 0) {
        scratch = allocate_scratch(launching, loaded->image, &packed->slots[SERVED_PARAMETERS]);
        if (scratch == NULL) {
            return FAILED;
        }
    }
    packed->parameters[packed->count] = &packed->slots[SERVED_PARAMETERS];
    packed->parameters[packed->count + 1] = &packed->slots[SERVED_PARAMETERS + 1];
    launching->parameters = packed->parameters;
    found = launch(call, loaded, launching, packed);
    Py_XDECREF(scratch);
    return found;
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
        result = PyObject_CallFunction(
            call->kernel->hand_over, "OOOOOs", call->grid, args, keywords, call->reason,
            call->told == NULL ? call->reason : call->told, call->remedy);
    }
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    Py_CLEAR(call->reason);
    Py_CLEAR(call->told);
    return result;
}

/* With the grid as it was evaluated, since that must not be done twice. */
static PyObject *hand_over_with(Call *call, const int64_t *grid)
{
    PyObject *evaluated =
        Py_BuildValue("(LLL)", (long long)grid[0], (long long)grid[1], (long long)grid[2]);
    PyObject *result = NULL;
    if (evaluated == NULL) {
        Py_CLEAR(call->reason);
        return NULL;
    }
    call->grid = evaluated;
    result = hand_over(call);
    Py_DECREF(evaluated);
    return result;
}

/* A variant is there; only the device may be another one. */
static PyObject *serve(Call *call, const Choice *choice, Packed *packed)
{
    KernelObject *kernel = call->kernel;
    PyObject *returned = choice->returned;
    Launching launching;
    int found = COVERED;
    if (served_evaluate_grid(call, launching.grid) < 0) {
        return NULL;
    }
    if (launching.grid[0] > 0 && launching.grid[1] > 0 && launching.grid[2] > 0) {
        found = launch_on_device(call, choice, &launching, packed);
    }
    if (found != COVERED) {
        return found == NOT_COVERED ? hand_over_with(call, launching.grid) : NULL;
    }
    kernel->served++;
    kernel->general += (unsigned long long)choice->is_general;
    Py_INCREF(returned);
    return returned;
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
    call.told = NULL;
    call.remedy = REMEDY_RECORD;
    if (served_configuration.device_of == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "configure() comes before the first launch");
        return NULL;
    }
    found = is_watched(&call, &served_configuration.watches);
    if (found == COVERED) {
        found = is_watched(&call, &call.kernel->watches);
    }
    if (found == COVERED) {
        found = served_bind(&call);
    }
    if (found == COVERED) {
        found = served_look_at(&call);
    }
    if (found == COVERED) {
        found = find_instance(&call, &instance);
    }
    if (found == COVERED) {
        found = choose(&call, instance, &packed, &choice);
    }
    if (found == COVERED) {
        return serve(&call, choice, &packed);
    }
    return found == NOT_COVERED ? hand_over(&call) : NULL;
}

/* Through void, because the signature of METH_FASTCALL differs from PyCFunction's. */
static PyMethodDef bound = {"launch", (PyCFunction)(void (*)(void))call_kernel,
                            METH_FASTCALL | METH_KEYWORDS, "Launch the kernel on the grid."};

/* A tuple holds kernel and grid: Python keeps freed ones at hand, unlike objects of a type here. */
PyObject *served_callable(KernelObject *kernel, PyObject *grid)
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
