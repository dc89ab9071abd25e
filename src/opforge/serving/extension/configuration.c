/* Where launches go, who allocates for them, and what stops serving. */
#include "served.h"

Configuration served_configuration;

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

PyObject *served_configure(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream_of", "device_of", "allocate", "hooks", "vendor", NULL};
    PyObject *given[3];
    PyObject *hooks = NULL;
    Watches watches = {0, NULL};
    int vendor = OF_NVIDIA;
    int i;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO|Oi:configure", names, &given[0],
                                     &given[1], &given[2], &hooks, &vendor)) {
        return NULL;
    }
    if (vendor < 0 || vendor >= OF_VENDORS) {
        PyErr_Format(PyExc_ValueError, "vendor is %d", vendor);
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
    served_configuration.vendor = vendor;
    replace(&served_configuration.stream_of, given[0]);
    replace(&served_configuration.device_of, given[1]);
    replace(&served_configuration.allocate, given[2]);
    served_clear_watches(&served_configuration.watches);
    served_configuration.watches = watches;
    Py_RETURN_NONE;
}

int served_current_stream(int device, void **stream)
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
