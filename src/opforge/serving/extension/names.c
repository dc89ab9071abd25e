/* Names of attributes that several files ask for. */
#include "served.h"

PyObject *served_dtype;
PyObject *served_data_ptr;
PyObject *served_name;

int served_intern_names(void)
{
    served_dtype = PyUnicode_InternFromString("dtype");
    served_data_ptr = PyUnicode_InternFromString("data_ptr");
    served_name = PyUnicode_InternFromString("__name__");
    return PyErr_Occurred() ? -1 : 0;
}
