/* The module _opforge_served: launches of Triton kernels from images built before. */
#include "served.h"

Configuration served_configuration;
PyObject *served_dtype;
PyObject *served_data_ptr;

int served_current_device(int *device)
{
    PyObject *found;
    long number;
    if (served_configuration.device_of == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "configure() comes before the first launch");
        return -1;
    }
    found = PyObject_CallNoArgs(served_configuration.device_of);
    if (found == NULL) {
        return -1;
    }
    number = PyLong_AsLong(found);
    Py_DECREF(found);
    if (number == -1 && PyErr_Occurred()) {
        return -1;
    }
    *device = (int)number;
    return 0;
}

static void replace(PyObject **place, PyObject *value)
{
    PyObject *old = *place;
    Py_INCREF(value);
    *place = value;
    Py_XDECREF(old);
}

static PyObject *configure(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream_of", "device_of", "allocate", "hooks", NULL};
    PyObject *given[3];
    PyObject *hooks = NULL;
    Watches watches = {0, NULL};
    int i;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO|O:configure", names, &given[0], &given[1],
                                     &given[2], &hooks)) {
        return NULL;
    }
    for (i = 0; i < 3; i++) {
        if (!PyCallable_Check(given[i])) {
            PyErr_Format(PyExc_TypeError, "%s is %R, which cannot be called", names[i], given[i]);
            return NULL;
        }
    }
    if (hooks != NULL && served_read_watches(hooks, &watches) < 0) {
        return NULL;
    }
    replace(&served_configuration.stream_of, given[0]);
    replace(&served_configuration.device_of, given[1]);
    replace(&served_configuration.allocate, given[2]);
    served_clear_watches(&served_configuration.watches);
    served_configuration.watches = watches;
    Py_RETURN_NONE;
}

static PyObject *forget(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    served_forget_images();
    Py_RETURN_NONE;
}

static PyObject *unload(PyObject *module, PyObject *unused)
{
    int device;
    (void)module;
    (void)unused;
    for (device = 0; device < SERVED_DEVICES; device++) {
        const OpforgeStatus status = served_unload_images(device);
        if (status != OPFORGE_OK) {
            served_raise("unload", status);
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS,
     "configure(stream_of, device_of, allocate, hooks=())\n--\n\n"
     "Say where launches go, who allocates for them, and what stops serving."},
    {"forget", forget, METH_NOARGS,
     "forget()\n--\n\nForget what is loaded, in a process that was forked."},
    {"unload", unload, METH_NOARGS,
     "unload()\n--\n\nUnload all images from all devices; no launch may be under way."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_opforge_served",
    "Launches of Triton kernels from images built before.",
    -1,
    methods,
    NULL,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__opforge_served(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    served_dtype = PyUnicode_InternFromString("dtype");
    served_data_ptr = PyUnicode_InternFromString("data_ptr");
    if (served_dtype == NULL || served_data_ptr == NULL || served_add_image_type(module) < 0 ||
        served_add_kernel_type(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
