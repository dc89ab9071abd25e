/* Looks at the tensors of a call: whether they are valid DLPack, and where their memory is. */
#include "runtime.h"

#include <string.h>

/* DLPack's. */
enum { CPU = 1, CUDA = 2, ROCM = 10, CUDA_MANAGED = 13 };

typedef struct {
    uint32_t type;
    const char *name;
} TypeName;

#define TYPE(code, bits, name) {OF_KEY_TYPE(OF_KEY(code, bits, 0)), name}

static const TypeName dtype_names[] = {
    TYPE(2, 16, "fp16"),    TYPE(4, 16, "bf16"),    TYPE(2, 32, "fp32"),  TYPE(2, 64, "fp64"),
    TYPE(10, 8, "fp8e4nv"), TYPE(11, 8, "fp8e4b8"), TYPE(12, 8, "fp8e5"), TYPE(13, 8, "fp8e5b16"),
    TYPE(0, 8, "i8"),       TYPE(0, 16, "i16"),     TYPE(0, 32, "i32"),   TYPE(0, 64, "i64"),
    TYPE(1, 8, "u8"),       TYPE(1, 16, "u16"),     TYPE(1, 32, "u32"),   TYPE(1, 64, "u64"),
    TYPE(6, 8, "bool"),
};

void of_describe_type(uint32_t type)
{
    size_t i;
    for (i = 0; i < sizeof dtype_names / sizeof dtype_names[0]; i++) {
        if (dtype_names[i].type == type) {
            of_more("%s", dtype_names[i].name);
            return;
        }
    }
    of_more("DLPack type %u of %u bits", (unsigned)(type & 0xff), (unsigned)(type >> 8));
}

void of_describe(const View *view)
{
    if (view->tensor == NULL) {
        of_more("NULL");
        return;
    }
    of_describe_type(OF_KEY_TYPE(view->key));
    of_more(" ");
    of_describe_sizes(view->shape, OF_KEY_RANK(view->key));
    if (!view->is_compact) {
        of_more(" strides ");
        of_describe_sizes(view->strides, OF_KEY_RANK(view->key));
    }
}

Place of_place(OpforgeDevice device)
{
    const Place place = {device.device_type == ROCM ? OF_AMD : OF_NVIDIA, device.device_id};
    return place;
}

static OpforgeStatus refuse_device(const TensorInfo *info, const OpforgeTensor *tensor)
{
    static const char cuda[] = "CUDA memory (2, or 13 if managed)";
    static const char rocm[] = "ROCm memory (10)";
    const int has_rocm = of_is_built_for(OF_AMD);
    const int has_cuda = !has_rocm || of_is_built_for(OF_NVIDIA);
    const char *between = has_cuda && has_rocm ? " or " : "";
    if (tensor->device.device_type == CPU) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: is on the CPU; the library runs on %s%s%s",
                       info->name, has_cuda ? "CUDA" : "", between, has_rocm ? "ROCm" : "");
    }
    return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: is on DLPack device type %d, expected %s%s%s",
                   info->name, (int)tensor->device.device_type, has_cuda ? cuda : "", between,
                   has_rocm ? rocm : "");
}

static OpforgeStatus refuse_size(const TensorInfo *info, const OpforgeTensor *tensor,
                                 const char *why)
{
    of_fail(OPFORGE_INVALID_ARGUMENT, "%s: shape ", info->name);
    of_describe_sizes(tensor->shape, tensor->ndim);
    if (tensor->strides != NULL) {
        of_more(" with strides ");
        of_describe_sizes(tensor->strides, tensor->ndim);
    }
    of_more(" %s", why);
    return OPFORGE_INVALID_ARGUMENT;
}

/* Steps after which strides are taken to overlap; sensible ones need one or two per dimension. */
#define MOST_STEPS 4096

/* The dimensions in which a tensor extends, those of large strides first. */
typedef struct {
    int count;
    int64_t sizes[OPFORGE_MAX_RANK];
    int64_t strides[OPFORGE_MAX_RANK];
    /* From the first to the last element within the dimensions behind each. */
    int64_t reach[OPFORGE_MAX_RANK];
} Extent;

static void sort_dimensions(const OpforgeTensor *tensor, const int64_t *strides, Extent *extent)
{
    int i;
    extent->count = 0;
    for (i = 0; i < tensor->ndim; i++) {
        int at = extent->count;
        if (tensor->shape[i] == 1) {
            continue;
        }
        for (; at > 0 && extent->strides[at - 1] < strides[i]; at--) {
            extent->sizes[at] = extent->sizes[at - 1];
            extent->strides[at] = extent->strides[at - 1];
        }
        extent->sizes[at] = tensor->shape[i];
        extent->strides[at] = strides[i];
        extent->count++;
    }
    for (i = extent->count - 1; i >= 0; i--) {
        const int next = i + 1;
        extent->reach[i] = next == extent->count ? 0
                                                 : extent->reach[next] + (extent->sizes[next] - 1) *
                                                                             extent->strides[next];
    }
}

/* Whether two elements that are `distance` apart in the dimensions before `d` can be one: whether
 * steps in the others lead back. `is_same` says that they have the same place in those before. */
static int meet(const Extent *extent, int d, int64_t distance, int is_same, int *steps)
{
    int overflow = 0;
    int64_t low;
    int64_t high;
    int64_t step;
    if (d == extent->count) {
        return !is_same;
    }
    /* The steps after which the dimensions behind can still lead back. */
    low = -of_floordiv(extent->reach[d] + distance, extent->strides[d], &overflow);
    high = of_floordiv(extent->reach[d] - distance, extent->strides[d], &overflow);
    /* Of two elements either may be the first. */
    low = of_max(low, is_same ? 0 : 1 - extent->sizes[d]);
    high = of_min(high, extent->sizes[d] - 1);
    for (step = low; step <= high; step++) {
        if (++*steps > MOST_STEPS || meet(extent, d + 1, distance + step * extent->strides[d],
                                          is_same && step == 0, steps)) {
            return 1;
        }
    }
    return 0;
}

/* Whether two elements of a tensor share memory. It has no strides of 0. */
static int meets_itself(const OpforgeTensor *tensor, const int64_t *strides)
{
    Extent extent;
    int steps = 0;
    sort_dimensions(tensor, strides, &extent);
    return meet(&extent, 0, 0, 1, &steps);
}

/* Fills in strides, the number of elements, and the bytes from the first to the last. */
static OpforgeStatus measure(const TensorInfo *info, const OpforgeTensor *tensor, View *view)
{
    const int64_t width = tensor->dtype.bits / 8;
    int64_t compact = 1;
    int64_t last = 0;
    int overflow = 0;
    int is_empty = 0;
    int is_compact = 1;
    int repeats = 0;
    int i;
    for (i = tensor->ndim - 1; i >= 0; i--) {
        const int64_t size = tensor->shape[i];
        const int64_t stride = tensor->strides != NULL ? tensor->strides[i] : compact;
        if (size < 0) {
            return refuse_size(info, tensor, "has a negative size");
        }
        if (stride < 0) {
            return refuse_size(info, tensor, "has a negative stride");
        }
        view->strides[i] = stride;
        is_compact &= stride == compact || size == 1;
        if (size == 0) {
            is_empty = 1;
        } else {
            /* The strides of an empty tensor are as if its empty dimensions had one element. */
            compact = of_mul(compact, size, &overflow);
            last = of_add(last, of_mul(size - 1, stride, &overflow), &overflow);
        }
        repeats |= stride == 0 && size > 1;
    }
    if (repeats && !is_empty && (info->flags & (OF_WRITTEN | OF_OUTPUT))) {
        return refuse_size(info, tensor, "overlaps itself but is written to");
    }
    last = of_mul(of_add(last, 1, &overflow), width, &overflow);
    of_mul(compact, width, &overflow);
    if (overflow) {
        return refuse_size(info, tensor, "does not fit into 64 bits");
    }
    /* The sum of two distances must fit as well; there is no memory for tensors beyond that. */
    if ((info->flags & (OF_WRITTEN | OF_OUTPUT)) && !is_compact && !is_empty &&
        last < INT64_MAX / 2 && meets_itself(tensor, view->strides)) {
        return refuse_size(info, tensor, "overlaps itself but is written to");
    }
    view->is_compact = is_compact || is_empty;
    view->elements = is_empty ? 0 : compact;
    view->bytes = is_empty ? 0 : (uint64_t)last;
    return OPFORGE_OK;
}

OpforgeStatus of_view(const TensorInfo *info, const OpforgeTensor *tensor, int needs_data,
                      View *view)
{
    OpforgeStatus status;
    view->tensor = tensor;
    if (info->flags & OF_OUTPUT) {
        /* A case may ask for more strides than a wrong output has. */
        memset(view->strides, 0, sizeof view->strides);
    }
    if (tensor == NULL) {
        view->address = 0;
        view->bytes = 0;
        view->elements = 0;
        view->shape = NULL;
        view->key = OF_ABSENT;
        view->is_compact = 1;
        if (info->flags & OF_OPTIONAL) {
            return OPFORGE_OK;
        }
        return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: is NULL", info->name);
    }
    if (tensor->ndim < 0 || tensor->ndim > OPFORGE_MAX_RANK) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: has %d dimensions, expected 0 to %d",
                       info->name, (int)tensor->ndim, OPFORGE_MAX_RANK);
    }
    if (tensor->ndim > 0 && tensor->shape == NULL) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: its shape is NULL", info->name);
    }
    if (tensor->dtype.lanes != 1) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: its type has %d lanes, expected 1",
                       info->name, (int)tensor->dtype.lanes);
    }
    if (tensor->device.device_type != CUDA && tensor->device.device_type != ROCM &&
        tensor->device.device_type != CUDA_MANAGED) {
        return refuse_device(info, tensor);
    }
    view->shape = tensor->shape;
    view->key = OF_KEY(tensor->dtype.code, tensor->dtype.bits, tensor->ndim);
    view->address = 0;
    status = measure(info, tensor, view);
    if (status != OPFORGE_OK || !needs_data) {
        return status;
    }
    if (tensor->data == NULL && view->elements > 0) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: its data is NULL, but it has %lld elements",
                       info->name, (long long)view->elements);
    }
    view->address = (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
    if (view->address < tensor->byte_offset || view->address + view->bytes < view->address) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: byte_offset %llu leaves the address space",
                       info->name, (unsigned long long)tensor->byte_offset);
    }
    if (view->elements > 0 && tensor->dtype.bits >= 8 &&
        view->address % (tensor->dtype.bits / 8) != 0) {
        return of_fail(OPFORGE_INVALID_ARGUMENT,
                       "%s: its data begins at 0x%llx, not at a multiple of its element size, %d",
                       info->name, (unsigned long long)view->address, tensor->dtype.bits / 8);
    }
    return OPFORGE_OK;
}

/* How many bytes of each period a tensor covers, apart from strides that are multiples of the
 * period; 0 if it covers all of them. */
static uint64_t width_in(const View *view, uint64_t period)
{
    const uint64_t element = view->tensor->dtype.bits / 8;
    uint64_t width = element;
    int i;
    for (i = 0; i < OF_KEY_RANK(view->key); i++) {
        const uint64_t stride = (uint64_t)view->strides[i] * element;
        if (stride % period != 0) {
            width += stride * (uint64_t)(view->shape[i] - 1);
            if (width > period) {
                return 0;
            }
        }
    }
    return width <= period ? width : 0;
}

static int apart_in(const View *a, const View *b, uint64_t period)
{
    const uint64_t width_a = width_in(a, period);
    const uint64_t width_b = width_in(b, period);
    /* From the start of a to that of b, and on to the next start of a. */
    const uint64_t gap = ((b->address % period) + period - (a->address % period)) % period;
    return width_a > 0 && width_b > 0 && gap >= width_a && period - gap >= width_b;
}

/* q and k may be slices of one buffer: their ranges overlap, but their elements do not. */
static int interleave(const View *a, const View *b)
{
    const View *views[2];
    int v;
    int i;
    views[0] = a;
    views[1] = b;
    for (v = 0; v < 2; v++) {
        const uint64_t element = views[v]->tensor->dtype.bits / 8;
        for (i = 0; i < OF_KEY_RANK(views[v]->key); i++) {
            const uint64_t period = (uint64_t)views[v]->strides[i] * element;
            if (period > 0 && views[v]->shape[i] > 1 && apart_in(a, b, period)) {
                return 1;
            }
        }
    }
    return 0;
}

/* A tensor whose memory is still to come is at 0, and overlaps nothing. */
static int overlap(const View *a, const View *b)
{
    if (a->bytes == 0 || b->bytes == 0 || a->address == 0 || b->address == 0 ||
        a->address + a->bytes <= b->address || b->address + b->bytes <= a->address) {
        return 0;
    }
    return !interleave(a, b);
}

OpforgeStatus of_check_overlaps(const Operation *op, const View *views)
{
    const int count = op->input_count + op->output_count;
    int i;
    int j;
    for (i = 0; i < count; i++) {
        if (!(op->tensors[i].flags & (OF_WRITTEN | OF_OUTPUT))) {
            continue;
        }
        for (j = 0; j < count; j++) {
            if (j != i && overlap(&views[i], &views[j])) {
                return of_fail(OPFORGE_INVALID_ARGUMENT,
                               "%s: overlaps %s in memory but is written to", op->tensors[i].name,
                               op->tensors[j].name);
            }
        }
    }
    return OPFORGE_OK;
}
