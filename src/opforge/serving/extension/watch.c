/* What stops serving while it is so, such as launch hooks.
 *
 * A launch looks at each of them, so they are places to look into, not functions to call:
 *
 *     (list, reason)                    while the list is not empty
 *     (dict, name, accepted, reason)    while the name is there with a value not in `accepted`
 *     (object, name, accepted, reason)  while its attribute is not in `accepted`, or is not there
 */
#include "served.h"

#include <stdlib.h>

static int bad_watch(void)
{
    PyErr_SetString(PyExc_TypeError,
                    "a watch is (list, reason) or (dict or object, name, accepted values, reason)");
    return -1;
}

static int read_watch(PyObject *given, Watch *watch)
{
    const Py_ssize_t size = PyTuple_Check(given) ? PyTuple_Size(given) : 0;
    if (size != 2 && size != 4) {
        return bad_watch();
    }
    watch->reason = PyTuple_GetItem(given, size - 1);
    if (size == 2) {
        watch->list = PyTuple_GetItem(given, 0);
    } else {
        watch->holder = PyTuple_GetItem(given, 0);
        watch->name = PyTuple_GetItem(given, 1);
        watch->accepted = PyTuple_GetItem(given, 2);
    }
    if (!PyUnicode_Check(watch->reason) ||
        (size == 2 ? !PyList_Check(watch->list)
                   : !PyUnicode_Check(watch->name) || !PyTuple_Check(watch->accepted))) {
        memset(watch, 0, sizeof *watch);
        return bad_watch();
    }
    Py_XINCREF(watch->list);
    Py_XINCREF(watch->holder);
    Py_XINCREF(watch->name);
    Py_XINCREF(watch->accepted);
    Py_INCREF(watch->reason);
    return 0;
}

/* Into watches that are empty. */
int served_read_watches(PyObject *given, Watches *watches)
{
    Py_ssize_t count;
    Py_ssize_t i;
    if (!PyTuple_Check(given)) {
        return bad_watch();
    }
    count = PyTuple_Size(given);
    watches->items = (Watch *)calloc((size_t)count + 1, sizeof *watches->items);
    if (watches->items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < count; i++) {
        if (read_watch(PyTuple_GetItem(given, i), &watches->items[i]) < 0) {
            served_clear_watches(watches);
            return -1;
        }
        watches->count++;
    }
    return 0;
}

static int is_accepted(const Watch *watch, PyObject *value)
{
    const Py_ssize_t count = PyTuple_Size(watch->accepted);
    Py_ssize_t i;
    int is_same = 0;
    for (i = 0; i < count; i++) {
        if (PyTuple_GetItem(watch->accepted, i) == value) {
            return 1;
        }
    }
    Py_INCREF(value);
    for (i = 0; is_same == 0 && i < count; i++) {
        is_same = served_same(PyTuple_GetItem(watch->accepted, i), value);
    }
    Py_DECREF(value);
    return is_same;
}

static int is_quiet_in_dict(const Watch *watch)
{
    PyObject *value = PyDict_GetItemWithError(watch->holder, watch->name);
    if (value != NULL) {
        return is_accepted(watch, value);
    }
    return PyErr_Occurred() ? -1 : 1;
}

static int is_quiet_in_object(const Watch *watch)
{
    PyObject *value = PyObject_GetAttr(watch->holder, watch->name);
    int is_quiet;
    if (value == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    is_quiet = is_accepted(watch, value);
    Py_DECREF(value);
    return is_quiet;
}

/* 1, or 0 with a borrowed reason, or -1 with an exception. */
int served_is_quiet(const Watches *watches, PyObject **reason)
{
    int i;
    for (i = 0; i < watches->count; i++) {
        const Watch *watch = &watches->items[i];
        const int is_quiet = watch->list != NULL           ? PyList_Size(watch->list) == 0
                             : PyDict_Check(watch->holder) ? is_quiet_in_dict(watch)
                                                           : is_quiet_in_object(watch);
        if (is_quiet != 1) {
            *reason = watch->reason;
            return is_quiet;
        }
    }
    return 1;
}

int served_visit_watches(const Watches *watches, visitproc visit, void *arg)
{
    int i;
    for (i = 0; i < watches->count; i++) {
        Py_VISIT(watches->items[i].list);
        Py_VISIT(watches->items[i].holder);
        Py_VISIT(watches->items[i].accepted);
    }
    return 0;
}

void served_clear_watches(Watches *watches)
{
    Watch *items = watches->items;
    const int count = watches->count;
    int i;
    watches->count = 0;
    watches->items = NULL;
    for (i = 0; i < count; i++) {
        Py_XDECREF(items[i].list);
        Py_XDECREF(items[i].holder);
        Py_XDECREF(items[i].name);
        Py_XDECREF(items[i].accepted);
        Py_DECREF(items[i].reason);
    }
    free(items);
}
