/* kernel[grid] of Triton's classes, for a class to have as its method. */
#include "served.h"

static PyObject *mark;
static PyObject *bind;
static PyObject *find;
static PyObject *original;

/* What the kernel has under the mark, or `find` gives. */
static PyObject *found_for(PyObject *kernel)
{
    PyObject *found = PyObject_GetAttr(kernel, mark);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return found;
    }
    PyErr_Clear();
    return PyObject_CallFunctionObjArgs(find, kernel, NULL);
}

static PyObject *subscript(PyObject *kernel, PyObject *grid)
{
    PyObject *found = found_for(kernel);
    PyObject *result = NULL;
    if (found == Py_None) {
        result = PyObject_CallFunctionObjArgs(original, kernel, grid, NULL);
    } else if (found != NULL && Py_TYPE(found) == served_kernel_type) {
        result = served_callable((KernelObject *)found, grid);
    } else if (found != NULL) {
        result = PyObject_CallMethodObjArgs(found, bind, grid, NULL);
    }
    Py_XDECREF(found);
    return result;
}

static PyMethodDef method = {"__getitem__", subscript, METH_O, "What launches on a grid."};

static void keep(PyObject **place, PyObject *value)
{
    PyObject *before = *place;
    Py_INCREF(value);
    *place = value;
    Py_XDECREF(before);
}

PyObject *served_subscript(PyObject *module, PyObject *args)
{
    PyObject *type;
    PyObject *name;
    PyObject *finder;
    PyObject *before;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!UOO:subscript", &PyType_Type, &type, &name, &finder, &before)) {
        return NULL;
    }
    if (bind == NULL) {
        bind = PyUnicode_InternFromString("bind");
        if (bind == NULL) {
            return NULL;
        }
    }
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    keep(&mark, name);
    Py_DECREF(name);
    keep(&find, finder);
    keep(&original, before);
    return PyDescr_NewMethod((PyTypeObject *)type, &method);
}
