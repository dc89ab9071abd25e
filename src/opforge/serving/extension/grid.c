/* The grid of a call, evaluated as Triton does. */
#include "served.h"

#define MAX_GRID_YZ 65535

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

/* Raises a TypeError about the type of a value, where one was raised: in words that help. */
static int wrong_type(const Call *call, const char *what, PyObject *value, const char *wanted)
{
    PyObject *name;
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
        return -1;
    }
    PyErr_Clear();
    name = PyObject_GetAttr((PyObject *)Py_TYPE(value), served_name);
    if (name != NULL) {
        PyErr_Format(PyExc_TypeError, "%U: %s is of type %U, not %s", call->kernel->name, what,
                     name, wanted);
        Py_DECREF(name);
    }
    return -1;
}

static int too_large(const Call *call, int dimension, PyObject *value, int64_t most)
{
    PyErr_Format(PyExc_ValueError, "%U: grid[%d] is %S, but the largest is %lld",
                 call->kernel->name, dimension, value, (long long)most);
    return -1;
}

static int read_dimension(const Call *call, int at, PyObject *given, int64_t *dimension)
{
    static const char *const names[] = {"grid[0]", "grid[1]", "grid[2]"};
    const int64_t most = at == 0 ? SERVED_MAX_GRID_X : MAX_GRID_YZ;
    int overflow = 0;
    PyObject *number;
    if (PyLong_CheckExact(given)) {
        *dimension = PyLong_AsLongLongAndOverflow(given, &overflow);
    } else {
        number = PyNumber_Index(given);
        if (number == NULL) {
            return wrong_type(call, names[at], given, "an integer");
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
    return wrong_type(call, "its grid", grid, "a tuple or list of integers");
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

int served_evaluate_grid(const Call *call, int64_t *dimensions)
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
