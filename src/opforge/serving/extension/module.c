/* The module _opforge_served: launches of Triton kernels from images built before. */
#include "served.h"

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
    {"configure", (PyCFunction)(void (*)(void))served_configure, METH_VARARGS | METH_KEYWORDS,
     "configure(stream_of, device_of, allocate, hooks=(), vendor=0)\n--\n\n"
     "Say where launches go, who allocates for them, what stops serving, and whose GPUs they are:\n"
     "NVIDIA's, 0, or AMD's, 1."},
    {"subscript", served_subscript, METH_VARARGS,
     "subscript(type, mark, find, original)\n--\n\n"
     "A __getitem__ for a class of kernels: what a kernel has under the mark serves its launches,\n"
     "None leaves them to the original, and `find` is asked about kernels without one."},
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
    if (served_intern_names() < 0 || served_intern_descriptor_names() < 0 ||
        served_add_image_type(module) < 0 || served_add_kernel_type(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
