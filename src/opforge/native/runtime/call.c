/* What the functions of every operator do: the call, the shapes of its outputs, the bytes of its
 * workspace, and each of them with one implementation. */
#include "runtime.h"

#include <stdio.h>
#include <string.h>

static const char *const platforms[OF_VENDORS] = {"CUDA", "ROCm"};

/* The ordinal is -1 if no tensor was given. */
static OpforgeStatus same_device(const Operation *op, const View *views, int count, Place *place)
{
    int first = -1;
    int i;
    place->vendor = OF_NVIDIA;
    place->ordinal = -1;
    for (i = 0; i < count; i++) {
        const OpforgeTensor *tensor = views[i].tensor;
        if (tensor == NULL) {
            continue;
        }
        if (first < 0) {
            first = i;
            *place = of_place(tensor->device);
        } else if (of_place(tensor->device).vendor != place->vendor) {
            return of_fail(OPFORGE_INVALID_ARGUMENT,
                           "%s: is on %s device %d, but %s is on %s device %d; a call runs on one",
                           op->tensors[i].name, platforms[of_place(tensor->device).vendor],
                           (int)tensor->device.device_id, op->tensors[first].name,
                           platforms[place->vendor], place->ordinal);
        } else if (tensor->device.device_id != place->ordinal) {
            return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: is on device %d, but %s is on device %d",
                           op->tensors[i].name, (int)tensor->device.device_id,
                           op->tensors[first].name, place->ordinal);
        }
    }
    return OPFORGE_OK;
}

static OpforgeStatus ask_device(const Operation *op, Place place, void *values)
{
    Device *device;
    OpforgeStatus status;
    int i;
    if (op->attribute_count == 0) {
        return OPFORGE_OK;
    }
    status = of_device(place, &device);
    for (i = 0; status == OPFORGE_OK && i < op->attribute_count; i++) {
        int64_t value;
        status = of_attribute(device, op->attributes[i], &value);
        memcpy((char *)values + op->attribute_offsets[i], &value, sizeof value);
    }
    return status;
}

static OpforgeStatus check_unsigned(const Operation *op, const void *values)
{
    int i;
    for (i = 0; i < op->unsigned_count; i++) {
        const Field *field = &op->unsigned_fields[i];
        int64_t value;
        memcpy(&value, (const char *)values + field->offset, sizeof value);
        if (value < 0) {
            return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: %llu, expected at most %lld", field->name,
                           (unsigned long long)value, (long long)INT64_MAX);
        }
    }
    return OPFORGE_OK;
}

static OpforgeStatus compute_layouts(const Operation *op, const Path *path, const void *values,
                                     Layout *layouts)
{
    int overflow = 0;
    int i;
    int d;
    if (path->layouts == NULL) {
        return OPFORGE_OK;
    }
    path->layouts(values, layouts, &overflow);
    for (i = 0; i < op->output_count; i++) {
        for (d = 0; d < OF_KEY_RANK(path->outputs[i]); d++) {
            overflow |= layouts[i].sizes[d] < 0;
        }
    }
    if (overflow) {
        return of_fail(OPFORGE_INVALID_ARGUMENT,
                       "the sizes of the outputs are negative or overflow 64 bits");
    }
    return OPFORGE_OK;
}

static OpforgeStatus refuse_output(const TensorInfo *info, const View *view, uint32_t key,
                                   const Layout *layout)
{
    of_fail(OPFORGE_INVALID_ARGUMENT, "%s: is ", info->name);
    of_describe(view);
    of_more(", expected ");
    of_describe_type(OF_KEY_TYPE(key));
    of_more(" ");
    of_describe_sizes(layout->sizes, OF_KEY_RANK(key));
    if (key & OF_ANY_STRIDES) {
        of_more(" with any strides");
        return OPFORGE_INVALID_ARGUMENT;
    }
    of_more(" with strides ");
    of_describe_sizes(layout->strides, OF_KEY_RANK(key));
    return OPFORGE_INVALID_ARGUMENT;
}

static int has_layout(const View *view, uint32_t key, const Layout *layout)
{
    int d;
    for (d = 0; d < OF_KEY_RANK(key); d++) {
        if (view->shape[d] != layout->sizes[d]) {
            return 0;
        }
        if (!(key & OF_ANY_STRIDES) && view->elements > 0 && layout->sizes[d] > 1 &&
            view->strides[d] != layout->strides[d]) {
            return 0;
        }
    }
    return 1;
}

static OpforgeStatus check_outputs(const Operation *op, const Path *path, View *outputs,
                                   const void *values)
{
    Layout layouts[OF_MAX_OUTPUTS];
    OpforgeStatus status = compute_layouts(op, path, values, layouts);
    int i;
    for (i = 0; status == OPFORGE_OK && i < op->output_count; i++) {
        const TensorInfo *info = &op->tensors[op->input_count + i];
        const uint32_t key = path->outputs[i];
        if (key == OF_ABSENT) {
            /* Whatever was passed for it is left alone. */
            outputs[i].bytes = 0;
            continue;
        }
        if (outputs[i].tensor == NULL) {
            status = of_fail(OPFORGE_INVALID_ARGUMENT, "%s: is NULL or has no type", info->name);
        } else if (outputs[i].key != (key & ~OF_ANY_STRIDES) ||
                   !has_layout(&outputs[i], key, &layouts[i])) {
            status = refuse_output(info, &outputs[i], key, &layouts[i]);
        }
    }
    return status;
}

/* A path may have no such output; of_outputs then leaves it without a type. */
static const OpforgeTensor *used(const Operation *op, const OpforgeTensor *const *given, int i)
{
    const int is_void = i >= op->input_count && given[i] != NULL && given[i]->dtype.bits == 0;
    return is_void ? NULL : given[i];
}

/* The name of an output that no call leaves as it is: none if a tensor is empty, because then the
 * grids may be empty, too. */
static const char *must_write(const Operation *op, const View *views)
{
    const int count = op->input_count + op->output_count;
    const char *found = NULL;
    int i;
    for (i = count - 1; i >= 0; i--) {
        const int is_output = i >= op->input_count;
        if (views[i].tensor != NULL && views[i].elements == 0) {
            return NULL;
        }
        if (is_output && views[i].bytes > 0) {
            found = op->tensors[i].name;
        }
    }
    return found;
}

/* Everything that is checked before the path's own steps. Tensors of a call that is only asked
 * about may lack their memory. */
static OpforgeStatus find_path(const Operation *op, const OpforgeTensor *const *given, int is_call,
                               const int *choices, void *values, View *views, Place *place,
                               const Path **path)
{
    const int count = op->input_count + op->output_count;
    int i;
    OpforgeStatus status = OPFORGE_OK;
    for (i = 0; status == OPFORGE_OK && i < count; i++) {
        const OpforgeTensor *tensor = used(op, given, i);
        const int needs_data = is_call || (tensor != NULL && tensor->data != NULL);
        status = of_view(&op->tensors[i], tensor, needs_data, &views[i]);
    }
    if (status == OPFORGE_OK) {
        status = of_broadcast(op, views);
    }
    if (status == OPFORGE_OK) {
        status = same_device(op, views, count, place);
    }
    if (status == OPFORGE_OK) {
        status = check_unsigned(op, values);
    }
    if (status == OPFORGE_OK) {
        status = ask_device(op, *place, values);
    }
    if (status == OPFORGE_OK) {
        status = of_select(op, views, choices, values, path);
    }
    if (status == OPFORGE_OK) {
        status = check_outputs(op, *path, views + op->input_count, values);
    }
    return status == OPFORGE_OK ? of_check_overlaps(op, views) : status;
}

static OpforgeStatus call(const Operation *op, const OpforgeTensor *const *given,
                          const int *choices, void *values, void *stream)
{
    View views[OF_MAX_TENSORS];
    const Path *path = NULL;
    Place place = {OF_NVIDIA, 0};
    OpforgeStatus status = find_path(op, given, 1, choices, values, views, &place, &path);
    if (status == OPFORGE_OK && path->step_count > 0) {
        status = of_run(op, path, views, values, place, stream, must_write(op, views));
    }
    return status;
}

OpforgeStatus of_call(const Operation *op, const OpforgeTensor *const *given, const int *choices,
                      void *values, void *stream)
{
    const OpforgeStatus status = call(op, given, choices, values, stream);
    return status == OPFORGE_OK ? status : of_failed_in(op->name, status);
}

static OpforgeStatus describe_output(const TensorInfo *info, uint32_t key, const Layout *layout,
                                     const OpforgeTensor *like, OpforgeTensor *output)
{
    const int rank = OF_KEY_RANK(key);
    const int64_t width = (int64_t)(key >> 8 & 0xff) / 8;
    int64_t compact = 1;
    int64_t last = 0;
    int is_compact = 1;
    int is_empty = 0;
    int overflow = 0;
    int d;
    if (rank > 0 && output->shape == NULL) {
        return of_fail(OPFORGE_INVALID_ARGUMENT,
                       "%s: its shape is NULL, expected room for %d sizes", info->name,
                       OPFORGE_MAX_RANK);
    }
    for (d = rank - 1; d >= 0; d--) {
        is_compact &= layout->strides[d] == compact || layout->sizes[d] == 1;
        is_empty |= layout->sizes[d] == 0;
        if (layout->sizes[d] > 0) {
            const int64_t reach = of_mul(layout->sizes[d] - 1, layout->strides[d], &overflow);
            compact = of_mul(compact, layout->sizes[d], &overflow);
            last = of_add(last, reach, &overflow);
        }
    }
    of_mul(compact, width, &overflow);
    of_mul(of_add(last, 1, &overflow), width, &overflow);
    if (overflow) {
        of_fail(OPFORGE_INVALID_ARGUMENT, "%s: would have shape ", info->name);
        of_describe_sizes(layout->sizes, rank);
        of_more(", which does not fit into 64 bits");
        return OPFORGE_INVALID_ARGUMENT;
    }
    if (output->strides == NULL && !is_compact && !is_empty) {
        return of_fail(OPFORGE_INVALID_ARGUMENT,
                       "%s: its strides are NULL, but it is not compact; expected room for %d",
                       info->name, OPFORGE_MAX_RANK);
    }
    for (d = 0; d < rank; d++) {
        output->shape[d] = layout->sizes[d];
        if (output->strides != NULL) {
            output->strides[d] = layout->strides[d];
        }
    }
    output->ndim = rank;
    output->dtype.code = (uint8_t)(key & 0xff);
    output->dtype.bits = (uint8_t)(key >> 8 & 0xff);
    output->dtype.lanes = 1;
    output->byte_offset = 0;
    if (like != NULL) {
        output->device = like->device;
    }
    return OPFORGE_OK;
}

static OpforgeStatus describe_outputs(const Operation *op, const Path *path, const View *inputs,
                                      OpforgeTensor *const *outputs, const void *values)
{
    Layout layouts[OF_MAX_OUTPUTS];
    const OpforgeTensor *like = NULL;
    OpforgeStatus status = compute_layouts(op, path, values, layouts);
    int i;
    for (i = op->input_count - 1; i >= 0; i--) {
        like = inputs[i].tensor != NULL ? inputs[i].tensor : like;
    }
    for (i = 0; status == OPFORGE_OK && i < op->output_count; i++) {
        if (path->outputs[i] == OF_ABSENT) {
            outputs[i]->ndim = 0;
            outputs[i]->dtype.code = 0;
            outputs[i]->dtype.bits = 0;
            outputs[i]->dtype.lanes = 0;
        } else {
            status = describe_output(&op->tensors[op->input_count + i], path->outputs[i],
                                     &layouts[i], like, outputs[i]);
        }
    }
    return status;
}

static OpforgeStatus outputs_of(const Operation *op, const OpforgeTensor *const *inputs,
                                OpforgeTensor *const *outputs, const int *choices, void *values)
{
    View views[OF_MAX_TENSORS];
    const Path *path = NULL;
    Place place = {OF_NVIDIA, 0};
    int i;
    OpforgeStatus status = OPFORGE_OK;
    for (i = 0; status == OPFORGE_OK && i < op->input_count + op->output_count; i++) {
        status = of_view(&op->tensors[i], i < op->input_count ? inputs[i] : NULL, 0, &views[i]);
    }
    if (status == OPFORGE_OK) {
        status = of_broadcast(op, views);
    }
    if (status == OPFORGE_OK) {
        status = same_device(op, views, op->input_count, &place);
    }
    for (i = 0; status == OPFORGE_OK && i < op->output_count; i++) {
        if (outputs[i] == NULL) {
            status = of_fail(OPFORGE_INVALID_ARGUMENT, "%s: is NULL, expected a tensor to fill in",
                             op->tensors[op->input_count + i].name);
        }
    }
    if (status == OPFORGE_OK && place.ordinal < 0) {
        place = of_place(outputs[0]->device);
    }
    if (status == OPFORGE_OK) {
        status = check_unsigned(op, values);
    }
    if (status == OPFORGE_OK) {
        status = ask_device(op, place, values);
    }
    if (status == OPFORGE_OK) {
        status = of_select(op, views, choices, values, &path);
    }
    if (status == OPFORGE_OK) {
        status = describe_outputs(op, path, views, outputs, values);
    }
    return status;
}

OpforgeStatus of_outputs(const Operation *op, const OpforgeTensor *const *inputs,
                         OpforgeTensor *const *outputs, const int *choices, void *values)
{
    const OpforgeStatus status = outputs_of(op, inputs, outputs, choices, values);
    return status == OPFORGE_OK ? status : of_failed_in(op->name, status);
}

/* The tensors of a call, with the body's own outputs in place of those that are NULL. */
static OpforgeStatus complete(const Operation *op, const OpforgeTensor *const *given,
                              const int *choices, void *values, const OpforgeTensor **completed,
                              OpforgeTensor *outputs, Layout *layouts)
{
    const int count = op->input_count + op->output_count;
    OpforgeTensor *filled[OF_MAX_OUTPUTS];
    OpforgeDevice device = {2, 0};
    OpforgeStatus status = OPFORGE_OK;
    int lacking = 0;
    int i;
    for (i = count - 1; i >= 0; i--) {
        completed[i] = given[i];
        if (i >= op->input_count && given[i] != NULL) {
            device = given[i]->device;
        }
        lacking |= i >= op->input_count && given[i] == NULL;
    }
    for (i = 0; i < op->output_count; i++) {
        memset(&outputs[i], 0, sizeof outputs[i]);
        outputs[i].device = device;
        outputs[i].shape = layouts[i].sizes;
        outputs[i].strides = layouts[i].strides;
        filled[i] = &outputs[i];
    }
    if (lacking) {
        status = outputs_of(op, given, filled, choices, values);
    }
    for (i = op->input_count; i < count; i++) {
        if (given[i] == NULL) {
            completed[i] = filled[i - op->input_count];
        }
    }
    return status;
}

static OpforgeStatus workspace_of(const Operation *op, const OpforgeTensor *const *given,
                                  const int *choices, void *values, int64_t *bytes)
{
    const OpforgeTensor *completed[OF_MAX_TENSORS];
    OpforgeTensor outputs[OF_MAX_OUTPUTS];
    Layout layouts[OF_MAX_OUTPUTS];
    View views[OF_MAX_TENSORS];
    const Path *path = NULL;
    Place place = {OF_NVIDIA, 0};
    OpforgeStatus status;
    if (bytes == NULL) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "bytes: is NULL, expected room for a number");
    }
    status = complete(op, given, choices, values, completed, outputs, layouts);
    if (status == OPFORGE_OK) {
        status = find_path(op, completed, 0, choices, values, views, &place, &path);
    }
    if (status == OPFORGE_OK) {
        status = of_measure(op, path, views, values, place, must_write(op, views), bytes);
    }
    return status;
}

OpforgeStatus of_workspace(const Operation *op, const OpforgeTensor *const *given,
                           const int *choices, void *values, int64_t *bytes)
{
    const OpforgeStatus status = workspace_of(op, given, choices, values, bytes);
    return status == OPFORGE_OK ? status : of_failed_in(op->name, status);
}

int of_implementations(const Operation *op, const OpforgeImplementation **list)
{
    if (list != NULL) {
        *list = op->implementations;
    }
    return op->implementation_count;
}

/* The operator with only the cases of one implementation. */
static OpforgeStatus narrow(const Operation *op, int index, Operation *narrowed)
{
    int i;
    *narrowed = *op;
    if (index >= 0 && index < op->implementation_count) {
        narrowed->cases = op->cases + op->first_cases[index];
        narrowed->case_count = op->first_cases[index + 1] - op->first_cases[index];
        return OPFORGE_OK;
    }
    of_fail(OPFORGE_INVALID_ARGUMENT, "implementation: %d, expected ", index);
    for (i = 0; i < op->implementation_count; i++) {
        of_more("%s%d (%s)", i ? " or " : "", i, op->implementations[i].name);
    }
    return of_failed_in(op->name, OPFORGE_INVALID_ARGUMENT);
}

static OpforgeStatus failed_with(const Operation *op, int index, OpforgeStatus status)
{
    char which[256];
    if (status == OPFORGE_OK) {
        return status;
    }
    snprintf(which, sizeof which, "implementation %d (%s)", index, op->implementations[index].name);
    of_failed_in(which, status);
    return of_failed_in(op->name, status);
}

OpforgeStatus of_call_with(const Operation *op, int index, const OpforgeTensor *const *given,
                           const int *choices, void *values, void *stream)
{
    Operation one;
    const OpforgeStatus status = narrow(op, index, &one);
    return status != OPFORGE_OK
               ? status
               : failed_with(op, index, call(&one, given, choices, values, stream));
}

OpforgeStatus of_outputs_with(const Operation *op, int index, const OpforgeTensor *const *inputs,
                              OpforgeTensor *const *outputs, const int *choices, void *values)
{
    Operation one;
    const OpforgeStatus status = narrow(op, index, &one);
    return status != OPFORGE_OK
               ? status
               : failed_with(op, index, outputs_of(&one, inputs, outputs, choices, values));
}

OpforgeStatus of_workspace_with(const Operation *op, int index, const OpforgeTensor *const *given,
                                const int *choices, void *values, int64_t *bytes)
{
    Operation one;
    const OpforgeStatus status = narrow(op, index, &one);
    return status != OPFORGE_OK
               ? status
               : failed_with(op, index, workspace_of(&one, given, choices, values, bytes));
}
