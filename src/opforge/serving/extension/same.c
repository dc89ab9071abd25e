/* Whether two constants are one: Python's == finds 1, True and 1.0 equal, kernels do not. */
#include "served.h"

#include <string.h>

static int same_items(PyObject *one, PyObject *other)
{
    const Py_ssize_t count = PyTuple_Size(one);
    Py_ssize_t i;
    int is_same = count == PyTuple_Size(other);
    for (i = 0; is_same == 1 && i < count; i++) {
        is_same = served_same(PyTuple_GetItem(one, i), PyTuple_GetItem(other, i));
    }
    return is_same;
}

int served_same(PyObject *one, PyObject *other)
{
    if (one == other) {
        return 1;
    }
    if (Py_TYPE(one) != Py_TYPE(other)) {
        return 0;
    }
    if (PyFloat_CheckExact(one)) {
        /* By their bits: 0.0 is not -0.0, and a NaN is itself. */
        const double a = PyFloat_AsDouble(one);
        const double b = PyFloat_AsDouble(other);
        return memcmp(&a, &b, sizeof a) == 0;
    }
    if (PyTuple_CheckExact(one)) {
        return same_items(one, other);
    }
    return PyObject_RichCompareBool(one, other, Py_EQ);
}
