/* The type Image: a kernel compiled for some architectures, loaded on the devices that use it. */
#include "served.h"

#include <stdlib.h>
#include <string.h>

/* The drivers map memory in blocks of 2 MiB. */
#define BLOCK_BITS 21
#define KNOWN_BLOCKS 64

/* `functions` are the tuples that it was made of: the records' contents and symbols are theirs. */
struct ImageObject {
    PyObject_HEAD Kernel kernel;
    PyObject *functions;
    Image *images;
    int *map_counts;
    Loaded loaded[SERVED_DEVICES];
    ImageObject *next;
    ImageObject *previous;
};

PyTypeObject *served_image_type;

/* What native/runtime takes from the library it is part of; there is none here. */
const int of_kernel_count = 0;
const int of_arch_count = 0;
const Arch of_arch_list[1];
const char of_archs[] = "";

/* All that exist, under the GIL. */
static ImageObject *first_image;

static uint64_t known_blocks[KNOWN_BLOCKS];

/* With the exceptions that Triton raises in the same place. */
void served_raise(const char *kernel, OpforgeStatus status)
{
    PyErr_Format(status == OPFORGE_INVALID_ARGUMENT ? PyExc_ValueError : PyExc_RuntimeError,
                 "%s: %s", kernel, of_last_error());
}

/* The architectures as people write them. */
static OpforgeStatus no_image(const Device *device, const Kernel *kernel)
{
    int i;
    of_fail(OPFORGE_UNCOVERED, "nothing was built for ");
    of_describe_arch(device->driver->vendor, device->arch);
    of_more(" (device %d), only for", device->ordinal);
    for (i = 0; i < kernel->image_count; i++) {
        of_more("%s ", i ? "," : "");
        of_describe_arch(kernel->images[i].vendor, kernel->images[i].arch);
    }
    return OPFORGE_UNCOVERED;
}

/* Under the lock, and with the device current. */
static OpforgeStatus load(Device *device, const Kernel *kernel, Loaded *loaded)
{
    const Driver *driver = device->driver;
    const Image *image = of_choose_image(kernel, driver->vendor, device->arch);
    OpforgeStatus status;
    void *module = NULL;
    void *function = NULL;
    int error;
    if (image == NULL) {
        return no_image(device, kernel);
    }
    status = of_check_shared(device, image, "it");
    if (status != OPFORGE_OK) {
        return status;
    }
    error = driver->load_module(&module, image->data);
    if (error != OF_DRIVER_SUCCESS) {
        return of_driver_failed(driver, error, &driver->load_module);
    }
    error = driver->get_function(&function, module, image->function);
    if (error == OF_DRIVER_SUCCESS) {
        status = of_prepare_function(driver, image, function);
    } else {
        status = of_driver_failed(driver, error, &driver->get_function);
        of_more(" (%s)", image->function);
    }
    if (status != OPFORGE_OK) {
        if (driver->unload_module(module) != OF_DRIVER_SUCCESS) {
            of_forgive(driver);
        }
        return status;
    }
    loaded->module = module;
    loaded->image = image;
    __atomic_store_n(&loaded->function, function, __ATOMIC_RELEASE);
    return OPFORGE_OK;
}

/* NULL where it is not loaded yet. */
const Loaded *served_loaded(ImageObject *image, int device)
{
    const Loaded *loaded;
    if (device < 0 || device >= SERVED_DEVICES) {
        return NULL;
    }
    loaded = &image->loaded[device];
    return __atomic_load_n(&loaded->function, __ATOMIC_ACQUIRE) == NULL ? NULL : loaded;
}

/* All launches of a process are for GPUs of one vendor: torch is built for one. */
static Place place_of(int device)
{
    const Place place = {served_configuration.vendor, device};
    return place;
}

OpforgeStatus served_load(ImageObject *image, int device)
{
    Scope scope;
    /* Refuses devices that do not exist. */
    OpforgeStatus status = of_enter(place_of(device), NULL, &scope);
    if (status != OPFORGE_OK) {
        return status;
    }
    of_lock();
    if (image->loaded[device].function == NULL) {
        status = load(scope.device, &image->kernel, &image->loaded[device]);
    }
    of_unlock();
    return of_leave(&scope, status);
}

static int is_known(uint64_t address)
{
    const uint64_t block = address >> BLOCK_BITS;
    return __atomic_load_n(&known_blocks[block % KNOWN_BLOCKS], __ATOMIC_RELAXED) == block;
}

static void know(uint64_t address)
{
    const uint64_t block = address >> BLOCK_BITS;
    __atomic_store_n(&known_blocks[block % KNOWN_BLOCKS], block, __ATOMIC_RELAXED);
}

/* `found` is the first pointer to memory of the host alone, or -1: a kernel that uses it would end
 * the context and all that is in it. Asking the driver costs as much as all the rest of an
 * argument, so each block of memory is asked for once. */
OpforgeStatus served_find_unreachable(int device, const Pointer *pointers, int count, int *found)
{
    const Driver *driver;
    Scope scope;
    OpforgeStatus status;
    int i = 0;
    *found = -1;
    while (i < count && (pointers[i].address == 0 || is_known(pointers[i].address))) {
        i++;
    }
    if (i == count) {
        return OPFORGE_OK;
    }
    status = of_enter(place_of(device), NULL, &scope);
    if (status != OPFORGE_OK) {
        return status;
    }
    driver = scope.device->driver;
    for (; driver->pointer_attribute != NULL && i < count && *found < 0; i++) {
        uint64_t seen = 0;
        int error = OF_DRIVER_SUCCESS;
        if (pointers[i].address != 0) {
            error =
                driver->pointer_attribute(&seen, OF_POINTER_DEVICE_POINTER, pointers[i].address);
        }
        if (error == OF_DRIVER_INVALID_VALUE) {
            of_forgive(driver);
            *found = i;
        } else if (error != OF_DRIVER_SUCCESS) {
            return of_leave(&scope, of_driver_failed(driver, error, &driver->pointer_attribute));
        } else {
            know(pointers[i].address);
        }
    }
    return of_leave(&scope, OPFORGE_OK);
}

OpforgeStatus served_launch(const Loaded *loaded, const Launching *launching)
{
    Scope scope;
    /* Without the stream: it comes from the device's own, and asking for its context costs. */
    OpforgeStatus status = of_enter(place_of(launching->device), NULL, &scope);
    if (status == OPFORGE_OK) {
        status = of_launch(scope.device->driver, loaded->image, loaded->function, launching->grid,
                           launching->stream, launching->parameters);
        status = of_leave(&scope, status);
    }
    return status;
}

/* After a fork: handles of the parent mean nothing in the child, which loads its own. */
void served_forget_images(void)
{
    ImageObject *image;
    for (image = first_image; image != NULL; image = image->next) {
        memset(image->loaded, 0, sizeof image->loaded);
    }
    memset(known_blocks, 0, sizeof known_blocks);
}

/* Under the lock. */
static OpforgeStatus unload_images(const Scope *scope)
{
    const Driver *driver = scope->device->driver;
    ImageObject *image;
    for (image = first_image; image != NULL; image = image->next) {
        Loaded *loaded = &image->loaded[scope->device->ordinal];
        if (loaded->function != NULL) {
            const int error = driver->unload_module(loaded->module);
            if (error != OF_DRIVER_SUCCESS) {
                return of_driver_failed(driver, error, &driver->unload_module);
            }
            memset(loaded, 0, sizeof *loaded);
        }
    }
    return OPFORGE_OK;
}

/* Keeps what could not be unloaded, so that it can be repeated. */
OpforgeStatus served_unload_images(int device)
{
    Scope scope;
    OpforgeStatus status;
    if (of_open_device(place_of(device)) == NULL) {
        return OPFORGE_OK;
    }
    status = of_enter(place_of(device), NULL, &scope);
    if (status != OPFORGE_OK) {
        return status;
    }
    of_lock();
    status = of_leave(&scope, unload_images(&scope));
    if (status == OPFORGE_OK) {
        status = of_close_device(scope.device);
    }
    of_unlock();
    memset(known_blocks, 0, sizeof known_blocks);
    return status;
}

static int read_block(PyObject *block, MapInfo *map)
{
    const Py_ssize_t rank = PyTuple_Size(block);
    Py_ssize_t d;
    for (d = 0; d < rank && d < OF_MAX_MAP_RANK; d++) {
        const long size = PyLong_AsLong(PyTuple_GetItem(block, d));
        if (size < 1 || size > SERVED_MAX_BLOCK) {
            break;
        }
        map->block[d] = (uint32_t)size;
    }
    if (rank < 1 || d < rank) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%R is not the block of a tensor map", block);
        return -1;
    }
    return 0;
}

/* One per descriptor of the kernel; none where it takes their parts. */
static int read_maps(PyObject *given, Image *image)
{
    const Py_ssize_t count = PyTuple_Size(given);
    MapInfo *maps;
    Py_ssize_t i;
    if (count == 0) {
        return 0;
    }
    if (count > SERVED_DESCRIPTORS) {
        PyErr_Format(PyExc_ValueError, "%zd tensor maps; the most are %d", count,
                     SERVED_DESCRIPTORS);
        return -1;
    }
    maps = (MapInfo *)calloc((size_t)count, sizeof *maps);
    image->maps = maps;
    if (maps == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < count; i++) {
        PyObject *one = PyTuple_GetItem(given, i);
        PyObject *block;
        if (!PyTuple_Check(one)) {
            PyErr_Format(PyExc_TypeError, "a tensor map is a tuple, not %R", one);
            return -1;
        }
        if (!PyArg_ParseTuple(one, "iiipO!;(element, element_size, swizzle, is_padded_fp4, block)",
                              &maps[i].element, &maps[i].element_size, &maps[i].swizzle,
                              &maps[i].is_padded_fp4, &PyTuple_Type, &block) ||
            read_block(block, &maps[i]) < 0) {
            return -1;
        }
    }
    return (int)count;
}

static int read_function(PyObject *given, Image *image, int *map_count)
{
    PyObject *content = NULL;
    PyObject *symbol = NULL;
    PyObject *maps = NULL;
    int threads = 0;
    long long scratch = 0;
    long long align = 0;
    if (!PyTuple_Check(given)) {
        PyErr_Format(PyExc_TypeError, "a function of an Image is a tuple, not %R", given);
        return -1;
    }
    if (!PyArg_ParseTuple(given,
                          "iSUiIipLL|pO!ii;(arch, content, symbol, threads, shared, num_ctas, "
                          "cooperative, scratch_size, scratch_align, programmatic, maps, "
                          "descriptor_flags, vendor)",
                          &image->arch, &content, &symbol, &threads, &image->shared,
                          &image->num_ctas, &image->cooperative, &scratch, &align,
                          &image->programmatic, &PyTuple_Type, &maps, &image->descriptor_flags,
                          &image->vendor)) {
        return -1;
    }
    if (image->vendor < 0 || image->vendor >= OF_VENDORS) {
        PyErr_Format(PyExc_ValueError, "%U: vendor is %d", symbol, image->vendor);
        return -1;
    }
    if (image->descriptor_flags < 0 || image->descriptor_flags > SERVED_MAX_FLAGS) {
        PyErr_Format(PyExc_ValueError, "%U: descriptor_flags is %d", symbol,
                     image->descriptor_flags);
        return -1;
    }
    if (threads < 32 || threads > 1024 || threads % 32 != 0) {
        PyErr_Format(PyExc_ValueError, "%U: %d threads are not whole warps", symbol, threads);
        return -1;
    }
    if (image->num_ctas < 1) {
        PyErr_Format(PyExc_ValueError, "%U: num_ctas is %d", symbol, image->num_ctas);
        return -1;
    }
    /* On every GPU: a launch needs their product alone. */
    image->warp_size = 32;
    image->num_warps = threads / 32;
    image->global_scratch = scratch;
    image->global_scratch_align = align;
    /* Python's bytes end with a zero, which PTX needs. */
    image->data = PyBytes_AsString(content);
    image->function = PyUnicode_AsUTF8AndSize(symbol, NULL);
    if (image->data == NULL || image->function == NULL) {
        return -1;
    }
    *map_count = maps == NULL ? 0 : read_maps(maps, image);
    return *map_count < 0 ? -1 : 0;
}

static int rank_of(const MapInfo *map)
{
    int rank = 0;
    while (rank < OF_MAX_MAP_RANK && map->block[rank] != 0) {
        rank++;
    }
    return rank;
}

/* Whether its functions take descriptors of these ranks, with maps or without. */
int served_takes_descriptors(const ImageObject *image, const int *ranks, int count)
{
    int i;
    int at;
    for (i = 0; i < image->kernel.image_count; i++) {
        const MapInfo *maps = image->images[i].maps;
        if (maps != NULL && image->map_counts[i] != count) {
            return 0;
        }
        for (at = 0; maps != NULL && at < count; at++) {
            if (rank_of(&maps[at]) != ranks[at]) {
                return 0;
            }
        }
    }
    return 1;
}

static PyObject *image_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"functions", NULL};
    PyObject *functions = NULL;
    ImageObject *self;
    Py_ssize_t count;
    Py_ssize_t i;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!:Image", names, &PyList_Type, &functions)) {
        return NULL;
    }
    count = PyList_Size(functions);
    if (count == 0) {
        PyErr_SetString(PyExc_ValueError, "an Image needs a function for an architecture");
        return NULL;
    }
    self = (ImageObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->next = first_image;
    if (first_image != NULL) {
        first_image->previous = self;
    }
    first_image = self;
    self->functions = PyList_AsTuple(functions);
    self->images = (Image *)calloc((size_t)count, sizeof *self->images);
    self->map_counts = (int *)calloc((size_t)count, sizeof *self->map_counts);
    if (self->functions == NULL || self->images == NULL || self->map_counts == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->kernel.images = self->images;
    self->kernel.image_count = (int)count;
    for (i = 0; i < count; i++) {
        if (read_function(PyTuple_GetItem(self->functions, i), &self->images[i],
                          &self->map_counts[i]) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    }
    self->kernel.key = self->images[0].function;
    return (PyObject *)self;
}

/* Its modules stay loaded: a CUDA graph may still launch them. */
static void image_dealloc(PyObject *object)
{
    ImageObject *self = (ImageObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    int i;
    for (i = 0; i < self->kernel.image_count; i++) {
        free((void *)self->images[i].maps);
    }
    Py_XDECREF(self->functions);
    free(self->images);
    free(self->map_counts);
    if (self->previous != NULL) {
        self->previous->next = self->next;
    } else {
        first_image = self->next;
    }
    if (self->next != NULL) {
        self->next->previous = self->previous;
    }
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *image_load(PyObject *object, PyObject *unused)
{
    ImageObject *self = (ImageObject *)object;
    OpforgeStatus status;
    int device;
    (void)unused;
    if (served_current_device(&device) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = served_load(self, device);
    Py_END_ALLOW_THREADS;
    if (status == OPFORGE_UNCOVERED) {
        PyErr_SetString(PyExc_LookupError, of_last_error());
        return NULL;
    }
    if (status != OPFORGE_OK) {
        served_raise(self->kernel.key, status);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"load", image_load, METH_NOARGS,
     "load()\n--\n\nLoad it on the current device, so that launches need not; a LookupError\n"
     "says that it was built for none such."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, image_new},
    {Py_tp_dealloc, image_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Image(functions)\n--\n\nA kernel compiled for some architectures."},
    {0, NULL},
};

static PyType_Spec spec = {"_opforge_served.Image", sizeof(ImageObject), 0, Py_TPFLAGS_DEFAULT,
                           slots};

int served_add_image_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL) {
        return -1;
    }
    served_image_type = (PyTypeObject *)type;
    return PyModule_AddObjectRef(module, "Image", type);
}
