/* Expands tensors to a common shape, by strides of 0. */
#include "runtime.h"

/* The size of a tensor in a dimension of its group's shape, which may have more dimensions. */
static int64_t size_in(const View *view, int rank, int dim)
{
    const int own = dim - (rank - OF_KEY_RANK(view->key));
    return own < 0 ? 1 : view->shape[own];
}

static int in_group(const Operation *op, const View *views, int tensor, int group)
{
    return OF_GROUP_OF(op->tensors[tensor].flags) == group && views[tensor].tensor != NULL;
}

/* The shape that the tensors of a group are broadcast to. */
static OpforgeStatus common_shape(const Operation *op, const View *views, int group, int64_t *sizes,
                                  int *rank)
{
    int d;
    int i;
    *rank = 0;
    for (i = 0; i < op->input_count; i++) {
        if (in_group(op, views, i, group) && OF_KEY_RANK(views[i].key) > *rank) {
            *rank = OF_KEY_RANK(views[i].key);
        }
    }
    for (d = 0; d < *rank; d++) {
        int first = -1;
        sizes[d] = 1;
        for (i = 0; i < op->input_count; i++) {
            const int64_t size = in_group(op, views, i, group) ? size_in(&views[i], *rank, d) : 1;
            if (size == 1) {
                continue;
            }
            if (first >= 0 && size != sizes[d]) {
                return of_fail(OPFORGE_INVALID_ARGUMENT,
                               "%s: size %lld in dimension %d, expected %lld as in %s, or 1",
                               op->tensors[i].name, (long long)size,
                               d - (*rank - OF_KEY_RANK(views[i].key)), (long long)sizes[d],
                               op->tensors[first].name);
            }
            first = i;
            sizes[d] = size;
        }
    }
    return OPFORGE_OK;
}

static OpforgeStatus expand(const TensorInfo *info, View *view, const int64_t *sizes, int rank)
{
    const int missing = rank - OF_KEY_RANK(view->key);
    int64_t compact = 1;
    int is_empty = 0;
    int overflow = 0;
    int d;
    view->is_compact = 1;
    for (d = rank - 1; d >= 0; d--) {
        const int is_repeated = d < missing || view->shape[d - missing] != sizes[d];
        const int64_t stride = is_repeated ? 0 : view->strides[d - missing];
        /* From the end, so that no stride is overwritten before it is read. */
        view->strides[d] = stride;
        view->is_compact &= sizes[d] == 1 || stride == compact;
        is_empty |= sizes[d] == 0;
        compact = of_mul(compact, sizes[d] > 0 ? sizes[d] : 1, &overflow);
    }
    if (overflow) {
        of_fail(OPFORGE_INVALID_ARGUMENT, "%s: broadcast to shape ", info->name);
        of_describe_sizes(sizes, rank);
        of_more(", which does not fit into 64 bits");
        return OPFORGE_INVALID_ARGUMENT;
    }
    for (d = 0; d < rank; d++) {
        view->expanded[d] = sizes[d];
    }
    view->shape = view->expanded;
    view->key = OF_KEY(view->tensor->dtype.code, view->tensor->dtype.bits, rank);
    view->is_compact |= is_empty;
    view->elements = is_empty ? 0 : compact;
    view->bytes = is_empty ? 0 : view->bytes;
    return OPFORGE_OK;
}

OpforgeStatus of_broadcast(const Operation *op, View *views)
{
    OpforgeStatus status = OPFORGE_OK;
    int i;
    for (i = 0; status == OPFORGE_OK && i < op->input_count; i++) {
        int64_t sizes[OPFORGE_MAX_RANK];
        int rank;
        if (!(op->tensors[i].flags & OF_BROADCAST) || views[i].tensor == NULL) {
            continue;
        }
        /* A tensor that was expanded already has the common shape, and does not change it. */
        status = common_shape(op, views, OF_GROUP_OF(op->tensors[i].flags), sizes, &rank);
        if (status == OPFORGE_OK) {
            status = expand(&op->tensors[i], &views[i], sizes, rank);
        }
    }
    return status;
}
