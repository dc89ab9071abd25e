/* The type Kernel: a jitted function's parameters, and the instances that were built. */
#include "served.h"

#include <stdlib.h>
#include <string.h>

PyTypeObject *served_kernel_type;

static int read_parameter(KernelObject *self, int at, PyObject *given)
{
    Parameter *parameter = &self->parameters[at];
    PyObject *name;
    PyObject *default_value;
    int is_constexpr;
    int has_default;
    int specializes;
    int specializes_alignment;
    int is_typed;
    if (!PyTuple_Check(given)) {
        PyErr_Format(PyExc_TypeError, "%U: a parameter is a tuple, not %R", self->name, given);
        return -1;
    }
    if (!PyArg_ParseTuple(given,
                          "UppOppp;(name, is_constexpr, has_default, default, specializes, "
                          "specializes_alignment, is_typed)",
                          &name, &is_constexpr, &has_default, &default_value, &specializes,
                          &specializes_alignment, &is_typed)) {
        return -1;
    }
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    self->names[at] = name;
    if (has_default) {
        Py_INCREF(default_value);
        parameter->default_value = default_value;
    }
    parameter->is_constexpr = (uint8_t)is_constexpr;
    parameter->specializes = (uint8_t)specializes;
    parameter->specializes_alignment = (uint8_t)specializes_alignment;
    parameter->is_typed = (uint8_t)is_typed;
    if (is_constexpr) {
        self->constants[self->constant_count++] = at;
    } else {
        self->runtime[self->runtime_count++] = at;
    }
    return 0;
}

static int read_parameters(KernelObject *self, PyObject *params)
{
    const Py_ssize_t count = PyTuple_Size(params);
    /* One more, because calloc of nothing may return NULL. */
    const size_t room = (size_t)count + 1;
    Py_ssize_t i;
    if (count > SERVED_PARAMETERS) {
        PyErr_Format(PyExc_ValueError, "%U: it has %zd parameters; the most are %d", self->name,
                     count, SERVED_PARAMETERS);
        return -1;
    }
    self->names = (PyObject **)calloc(room, sizeof *self->names);
    self->parameters = (Parameter *)calloc(room, sizeof *self->parameters);
    self->constants = (int *)calloc(room, sizeof *self->constants);
    self->runtime = (int *)calloc(room, sizeof *self->runtime);
    if (self->names == NULL || self->parameters == NULL || self->constants == NULL ||
        self->runtime == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < count; i++) {
        if (read_parameter(self, (int)i, PyTuple_GetItem(params, i)) < 0) {
            return -1;
        }
        self->count++;
    }
    return 0;
}

static char *copy_text(PyObject *text)
{
    PyObject *bytes = PyUnicode_AsUTF8String(text);
    char *copied = NULL;
    if (bytes != NULL) {
        copied = strdup(PyBytes_AsString(bytes));
        Py_DECREF(bytes);
        if (copied == NULL) {
            PyErr_NoMemory();
        }
    }
    return copied;
}

static int read_names(KernelObject *self, PyObject *location)
{
    self->text = copy_text(self->name);
    self->location = self->text == NULL ? NULL : copy_text(location);
    return self->location == NULL ? -1 : 0;
}

static int too_many_options(const KernelObject *self)
{
    PyErr_Format(PyExc_ValueError, "%U: its instances have more than %d options", self->name,
                 SERVED_OPTIONS);
    return -1;
}

static int read_defaults(KernelObject *self, PyObject *defaults)
{
    PyObject *name;
    PyObject *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(defaults, &at, &name, &value)) {
        if (!PyUnicode_Check(name)) {
            PyErr_Format(PyExc_TypeError, "%U: the name of an option is a str, not %R", self->name,
                         name);
            return -1;
        }
        if (self->option_count == SERVED_OPTIONS) {
            return too_many_options(self);
        }
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        Py_INCREF(value);
        self->options[self->option_count] = name;
        self->defaults[self->option_count++] = value;
    }
    return 0;
}

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name",     "params",   "hand_over",   "watch",
                            "defaults", "location", "descriptors", NULL};
    PyObject *name;
    PyObject *params;
    PyObject *hand_over;
    PyObject *watch = NULL;
    PyObject *defaults = NULL;
    PyObject *location = NULL;
    PyObject *descriptors = NULL;
    KernelObject *self;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "UO!O|OO!UO!:Kernel", names, &name,
                                     &PyTuple_Type, &params, &hand_over, &watch, &PyDict_Type,
                                     &defaults, &location, &PyTuple_Type, &descriptors)) {
        return NULL;
    }
    if (!PyCallable_Check(hand_over)) {
        PyErr_Format(PyExc_TypeError, "%U: hand_over is %R, which cannot be called", name,
                     hand_over);
        return NULL;
    }
    self = (KernelObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF(name);
    Py_INCREF(hand_over);
    self->name = name;
    self->hand_over = hand_over;
    if (read_names(self, location == NULL ? name : location) < 0 ||
        read_parameters(self, params) < 0 ||
        (descriptors != NULL && served_read_descriptor_types(self, descriptors) < 0) ||
        (defaults != NULL && read_defaults(self, defaults) < 0) ||
        (watch != NULL && served_read_watches(watch, &self->watches) < 0)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int kernel_traverse(PyObject *object, visitproc visit, void *arg)
{
    const KernelObject *self = (KernelObject *)object;
    int failed = served_visit_watches(&self->watches, visit, arg);
    int i;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->hand_over);
    for (i = 0; i < self->descriptor_type_count; i++) {
        Py_VISIT(self->descriptor_types[i].type);
    }
    for (i = 0; i < self->option_count; i++) {
        Py_VISIT(self->defaults[i]);
    }
    for (i = 0; i < self->count; i++) {
        Py_VISIT(self->parameters[i].default_value);
    }
    for (i = 0; failed == 0 && i < self->instance_count; i++) {
        failed = served_visit_instance(self, self->instances[i], visit, arg);
    }
    return failed;
}

/* A kernel that is called while its cycle is cleared fails to hand over, and nothing else. */
static int kernel_clear(PyObject *object)
{
    KernelObject *self = (KernelObject *)object;
    Instance **instances = self->instances;
    PyObject *hand_over = self->hand_over;
    const int count = self->instance_count;
    int i;
    self->instances = NULL;
    self->instance_count = 0;
    self->instance_room = 0;
    for (i = 0; i < count; i++) {
        served_free_instance(self, instances[i]);
    }
    free(instances);
    Py_INCREF(Py_None);
    self->hand_over = Py_None;
    Py_XDECREF(hand_over);
    served_clear_watches(&self->watches);
    return 0;
}

static void kernel_dealloc(PyObject *object)
{
    KernelObject *self = (KernelObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    int i;
    PyObject_GC_UnTrack(object);
    kernel_clear(object);
    Py_CLEAR(self->hand_over);
    for (i = 0; i < self->count; i++) {
        Py_XDECREF(self->names[i]);
        Py_XDECREF(self->parameters[i].default_value);
    }
    for (i = 0; i < self->option_count; i++) {
        Py_DECREF(self->options[i]);
        Py_XDECREF(self->defaults[i]);
    }
    for (i = 0; i < self->descriptor_type_count; i++) {
        Py_DECREF(self->descriptor_types[i].type);
    }
    Py_XDECREF(self->name);
    free(self->text);
    free(self->location);
    free(self->names);
    free(self->parameters);
    free(self->constants);
    free(self->runtime);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static int make_room(KernelObject *self)
{
    const int room = self->instance_room == 0 ? 4 : 2 * self->instance_room;
    Instance **grown;
    if (self->instance_count < self->instance_room) {
        return 0;
    }
    grown = (Instance **)realloc(self->instances, (size_t)room * sizeof *grown);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->instances = grown;
    self->instance_room = room;
    return 0;
}

static int learn_options(KernelObject *self, const Instance *instance)
{
    int i;
    int j;
    for (i = 0; i < instance->option_count; i++) {
        for (j = 0; j < self->option_count && self->options[j] != instance->option_names[i]; j++) {
        }
        if (j < self->option_count) {
            continue;
        }
        if (j == SERVED_OPTIONS) {
            return too_many_options(self);
        }
        Py_INCREF(instance->option_names[i]);
        self->options[self->option_count++] = instance->option_names[i];
    }
    return 0;
}

static PyObject *kernel_add(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"constants", "dtypes", "options", "variants", NULL};
    KernelObject *self = (KernelObject *)object;
    PyObject *constants;
    PyObject *dtypes;
    PyObject *options;
    PyObject *variants;
    Instance *instance;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!O!O!:add", names, &PyTuple_Type,
                                     &constants, &PyTuple_Type, &dtypes, &PyDict_Type, &options,
                                     &PyList_Type, &variants)) {
        return NULL;
    }
    instance = served_read_instance(self, constants, dtypes, options, variants);
    if (instance == NULL) {
        return NULL;
    }
    if (make_room(self) < 0 || learn_options(self, instance) < 0) {
        served_free_instance(self, instance);
        return NULL;
    }
    self->instances[self->instance_count++] = instance;
    Py_RETURN_NONE;
}

static PyObject *kernel_bind(PyObject *object, PyObject *grid)
{
    return served_callable((KernelObject *)object, grid);
}

static PyObject *kernel_counts(PyObject *object, PyObject *unused)
{
    const KernelObject *self = (KernelObject *)object;
    (void)unused;
    return Py_BuildValue("{s:K,s:K,s:K}", "served", self->served, "general", self->general,
                         "handed_over", self->handed_over);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)(void (*)(void))kernel_add, METH_VARARGS | METH_KEYWORDS,
     "add(constants, dtypes, options, variants)\n--\n\n"
     "Add an instance; launches by a variant (types, image, returned) return `returned`."},
    {"bind", kernel_bind, METH_O, "bind(grid)\n--\n\nWhat kernel[grid] is: call it to launch."},
    {"counts", kernel_counts, METH_NOARGS,
     "counts()\n--\n\nLaunches served, those by a general variant, and those handed over."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, kernel_new},
    {Py_tp_dealloc, kernel_dealloc},
    {Py_tp_traverse, kernel_traverse},
    {Py_tp_clear, kernel_clear},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Kernel(name, params, hand_over, watch=(), defaults={}, location=name, "
                "descriptors=())\n--\n\n"
                "A kernel that is served; `descriptors` are the types of those that it may be\n"
                "given, each with whether it has a layout, and whether it can round to tf32."},
    {0, NULL},
};

static PyType_Spec spec = {"_opforge_served.Kernel", sizeof(KernelObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int served_add_kernel_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    int failed;
    if (type == NULL) {
        return -1;
    }
    failed = PyModule_AddObjectRef(module, "Kernel", type);
    served_kernel_type = (PyTypeObject *)type;
    Py_DECREF(type);
    return failed;
}
