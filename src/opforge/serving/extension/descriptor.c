/* Tensor descriptors: what a launch reads of them, and whether they are those built for. */
#include "served.h"

static PyObject *base_name;
static PyObject *shape_name;
static PyObject *strides_name;
static PyObject *block_name;
static PyObject *padding_name;
static PyObject *layout_name;
static PyObject *tf32_name;

int served_intern_descriptor_names(void)
{
    base_name = PyUnicode_InternFromString("base");
    shape_name = PyUnicode_InternFromString("shape");
    strides_name = PyUnicode_InternFromString("strides");
    block_name = PyUnicode_InternFromString("block_shape");
    padding_name = PyUnicode_InternFromString("padding");
    layout_name = PyUnicode_InternFromString("layout");
    tf32_name = PyUnicode_InternFromString("round_f32_to_tf32");
    return PyErr_Occurred() ? -1 : 0;
}

int served_read_descriptor_types(KernelObject *kernel, PyObject *given)
{
    const Py_ssize_t count = PyTuple_Size(given);
    Py_ssize_t i;
    if (count > SERVED_DESCRIPTOR_TYPES) {
        PyErr_Format(PyExc_ValueError, "%U: %zd types of descriptors; the most are %d",
                     kernel->name, count, SERVED_DESCRIPTOR_TYPES);
        return -1;
    }
    for (i = 0; i < count; i++) {
        DescriptorType *type = &kernel->descriptor_types[i];
        PyObject *one = PyTuple_GetItem(given, i);
        if (!PyTuple_Check(one)) {
            PyErr_Format(PyExc_TypeError, "%U: a type of descriptors is a tuple, not %R",
                         kernel->name, one);
            return -1;
        }
        if (!PyArg_ParseTuple(one, "Opp;(type, has_layout, has_tf32)", &type->type,
                              &type->has_layout, &type->has_tf32)) {
            return -1;
        }
        Py_INCREF(type->type);
        kernel->descriptor_type_count++;
    }
    return 0;
}

/* NULL where the type is not one of descriptors. */
const DescriptorType *served_descriptor_type(const KernelObject *kernel, const PyTypeObject *type)
{
    int i;
    for (i = 0; i < kernel->descriptor_type_count; i++) {
        if ((const void *)kernel->descriptor_types[i].type == (const void *)type) {
            return &kernel->descriptor_types[i];
        }
    }
    return NULL;
}

/* Integers of a tuple or a list: how many, -1 with an exception, or one more than there is room for
 * where they are anything else. */
static int read_numbers(PyObject *given, int64_t *numbers)
{
    const int is_tuple = PyTuple_Check(given);
    const Py_ssize_t count = is_tuple              ? PyTuple_Size(given)
                             : PyList_Check(given) ? PyList_Size(given)
                                                   : OF_MAX_MAP_RANK + 1;
    Py_ssize_t i;
    if (count > OF_MAX_MAP_RANK) {
        return OF_MAX_MAP_RANK + 1;
    }
    for (i = 0; i < count; i++) {
        PyObject *item = is_tuple ? PyTuple_GetItem(given, i) : PyList_GetItem(given, i);
        int overflow = 0;
        if (!PyLong_Check(item)) {
            return OF_MAX_MAP_RANK + 1;
        }
        numbers[i] = PyLong_AsLongLongAndOverflow(item, &overflow);
        if (overflow != 0) {
            return OF_MAX_MAP_RANK + 1;
        }
    }
    return (int)count;
}

static int read_attribute(PyObject *value, PyObject *name, int64_t *numbers)
{
    PyObject *found = PyObject_GetAttr(value, name);
    const int count = found == NULL ? -1 : read_numbers(found, numbers);
    Py_XDECREF(found);
    return count;
}

static int look_at_base(PyObject *value, Argument *argument, Descriptor *descriptor)
{
    PyObject *base = PyObject_GetAttr(value, base_name);
    PyObject *dtype = base == NULL ? NULL : PyObject_GetAttr(base, served_dtype);
    PyObject *address = dtype == NULL ? NULL
                                      : PyObject_CallMethodObjArgs(base, served_data_ptr, NULL);
    Py_XDECREF(base);
    /* Compared with dtypes that instances keep alive, so it need not be kept itself. */
    argument->dtype = dtype;
    Py_XDECREF(dtype);
    if (address == NULL) {
        return -1;
    }
    descriptor->numbers[0] = (int64_t)PyLong_AsSize_t(address);
    Py_DECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

static int look_at_flags(PyObject *value, Descriptor *descriptor)
{
    PyObject *padding = PyObject_GetAttr(value, padding_name);
    int is_tf32 = 0;
    if (padding == NULL) {
        return -1;
    }
    if (PyUnicode_Check(padding) && PyUnicode_CompareWithASCIIString(padding, "nan") == 0) {
        descriptor->argument |= OF_NAN;
    }
    Py_DECREF(padding);
    if (descriptor->type->has_tf32) {
        PyObject *found = PyObject_GetAttr(value, tf32_name);
        is_tf32 = found == NULL ? -1 : PyObject_IsTrue(found);
        Py_XDECREF(found);
    }
    if (is_tf32 > 0) {
        descriptor->argument |= OF_TF32;
    }
    return is_tf32 < 0 ? -1 : 0;
}

/* NOT_COVERED for what Triton will refuse: sizes that are not integers, or lists that differ in
 * length. */
int served_look_at_descriptor(PyObject *value, const DescriptorType *type, Argument *argument,
                              Descriptor *descriptor)
{
    const int rank = read_attribute(value, shape_name, descriptor->numbers + 1);
    int count = rank;
    int d;
    argument->kind = KIND_DESCRIPTOR;
    descriptor->type = type;
    descriptor->rank = rank;
    descriptor->argument = OF_DESCRIPTOR + rank;
    if (rank >= 1 && rank <= OF_MAX_MAP_RANK) {
        count = read_attribute(value, strides_name, descriptor->numbers + 1 + rank);
    }
    if (count == rank && rank >= 1 && rank <= OF_MAX_MAP_RANK) {
        count = read_attribute(value, block_name, descriptor->block);
    }
    if (count < 0) {
        return FAILED;
    }
    if (count != rank || rank < 1 || rank > OF_MAX_MAP_RANK) {
        return NOT_COVERED;
    }
    for (d = 1; d <= rank; d++) {
        if (descriptor->numbers[d] != (int32_t)descriptor->numbers[d]) {
            return NOT_COVERED;
        }
    }
    return look_at_base(value, argument, descriptor) < 0 || look_at_flags(value, descriptor) < 0
               ? FAILED
               : COVERED;
}

/* Of an instance: (dtype, block, layout as text or None). */
int served_read_block(const KernelObject *kernel, PyObject *name, PyObject *given, Block *block,
                      PyObject **dtype)
{
    PyObject *sizes;
    PyObject *layout;
    if (!PyArg_ParseTuple(given, "OO!O;(dtype, block, layout)", dtype, &PyTuple_Type, &sizes,
                          &layout)) {
        return -1;
    }
    block->rank = read_numbers(sizes, block->block);
    if (block->rank < 1 || block->rank > OF_MAX_MAP_RANK ||
        (layout != Py_None && !PyUnicode_Check(layout))) {
        block->rank = 0;
        PyErr_Format(PyExc_ValueError, "%U: %U has no descriptor %R", kernel->name, name, given);
        return -1;
    }
    if (layout != Py_None) {
        Py_INCREF(layout);
        block->layout = layout;
    }
    return 0;
}

/* By its text, as Triton does, which takes a microsecond; most programs keep their layouts. */
static int same_layout(Block *block, PyObject *value)
{
    PyObject *layout = PyObject_GetAttr(value, layout_name);
    PyObject *text;
    PyObject *before;
    int is_same;
    if (layout == NULL || layout == block->seen) {
        Py_XDECREF(layout);
        return layout == NULL ? -1 : 1;
    }
    text = PyObject_Repr(layout);
    if (text == NULL) {
        Py_DECREF(layout);
        return -1;
    }
    is_same = PyUnicode_Compare(text, block->layout) == 0;
    Py_DECREF(text);
    before = is_same ? block->seen : layout;
    if (is_same) {
        block->seen = layout;
    }
    Py_XDECREF(before);
    return is_same;
}

int served_same_block(Block *block, const Descriptor *descriptor, PyObject *value)
{
    int d;
    if (block->rank != descriptor->rank ||
        (block->layout != NULL) != descriptor->type->has_layout) {
        return 0;
    }
    for (d = 0; d < block->rank; d++) {
        if (block->block[d] != descriptor->block[d]) {
            return 0;
        }
    }
    return block->layout == NULL ? 1 : same_layout(block, value);
}

/* "a descriptor of torch.float16 in blocks of [64, 32]" */
static PyObject *describe(PyObject *dtype, const int64_t *block, int rank, PyObject *layout)
{
    PyObject *sizes = PyList_New(0);
    PyObject *text = NULL;
    int d;
    for (d = 0; sizes != NULL && d < rank; d++) {
        PyObject *size = PyLong_FromLongLong(block[d]);
        if (size == NULL || PyList_Append(sizes, size) < 0) {
            Py_CLEAR(sizes);
        }
        Py_XDECREF(size);
    }
    if (sizes != NULL) {
        text = layout == NULL
                   ? PyUnicode_FromFormat("a descriptor of %S in blocks of %R", dtype, sizes)
                   : PyUnicode_FromFormat("a descriptor of %S in blocks of %R with %U", dtype,
                                          sizes, layout);
    }
    Py_XDECREF(sizes);
    return text;
}

PyObject *served_describe_block(const Block *block, PyObject *dtype)
{
    return describe(dtype, block->block, block->rank, block->layout);
}

PyObject *served_describe_descriptor(const Descriptor *descriptor, PyObject *value)
{
    PyObject *base = PyObject_GetAttr(value, base_name);
    PyObject *dtype = base == NULL ? NULL : PyObject_GetAttr(base, served_dtype);
    PyObject *layout = NULL;
    PyObject *text = NULL;
    if (dtype != NULL && descriptor->type->has_layout) {
        PyObject *found = PyObject_GetAttr(value, layout_name);
        layout = found == NULL ? NULL : PyObject_Repr(found);
        Py_XDECREF(found);
    }
    if (dtype != NULL && (layout != NULL || !descriptor->type->has_layout)) {
        text = describe(dtype, descriptor->block, descriptor->rank, layout);
    }
    Py_XDECREF(base);
    Py_XDECREF(dtype);
    Py_XDECREF(layout);
    return text;
}
