/* Finds the case and the path of a call; says nothing where there is none. */
#include "runtime.h"

#include <string.h>

static int64_t field_of(const void *values, size_t offset)
{
    int64_t value;
    memcpy(&value, (const char *)values + offset, sizeof value);
    return value;
}

static int one_of(const Check *check, int64_t value)
{
    int64_t i;
    for (i = 0; i < check->high; i++) {
        if (check->values[i] == value) {
            return 1;
        }
    }
    return 0;
}

int of_check_holds(const Check *check, const View *views, const void *values)
{
    const View *view = check->tensor >= 0 ? &views[check->tensor] : NULL;
    switch (check->kind) {
    case OF_COMPACT:
        return view->is_compact;
    case OF_SIZE_IS:
        return view->shape[check->dim] == check->low;
    case OF_SIZE_LIKE:
        return view->shape[check->dim] == views[check->other].shape[check->other_dim];
    case OF_STRIDE_IS:
        return view->shape[check->dim] == 1 || view->strides[check->dim] == check->low;
    case OF_STRIDE_LIKE:
        return view->strides[check->dim] == views[check->other].strides[check->other_dim];
    case OF_RANGE:
        return field_of(values, check->offset) >= check->low &&
               field_of(values, check->offset) <= check->high;
    default:
        return one_of(check, field_of(values, check->offset));
    }
}

static int all_checks_hold(const Case *candidate, const View *views, const void *values)
{
    int i;
    for (i = 0; i < candidate->check_count; i++) {
        if (!of_check_holds(&candidate->checks[i], views, values)) {
            return 0;
        }
    }
    return 1;
}

int of_refused_guard(const Path *path, const void *values, int *overflow)
{
    *overflow = 0;
    return path->guards == NULL ? -1 : path->guards(values, overflow);
}

static const Path *first_path(const Case *candidate, const void *values)
{
    int overflow;
    int i;
    for (i = 0; i < candidate->path_count; i++) {
        const Path *path = &candidate->paths[i];
        if (path->refused == NULL && of_refused_guard(path, values, &overflow) < 0 && !overflow) {
            return path;
        }
    }
    return NULL;
}

/* The first mostly differs already, where a memcmp would have to be called. */
static int same_keys(const uint32_t *a, const uint32_t *b, int count)
{
    int i;
    for (i = 0; i < count; i++) {
        if (a[i] != b[i]) {
            return 0;
        }
    }
    return 1;
}

OpforgeStatus of_select(const Operation *op, const View *views, const int *choices, void *values,
                        const Path **path)
{
    uint32_t keys[OF_MAX_KEYS];
    const int count = op->input_count + op->choice_count;
    int i;
    for (i = 0; i < op->input_count; i++) {
        keys[i] = views[i].key;
    }
    for (i = 0; i < op->choice_count; i++) {
        if (choices[i] < 0 || choices[i] >= op->choices[i].count) {
            return of_fail(OPFORGE_INVALID_ARGUMENT, "%s: %d is no value of the enum, which has %d",
                           op->choices[i].name, choices[i], op->choices[i].count);
        }
        keys[op->input_count + i] = (uint32_t)choices[i];
    }
    for (i = 0; i < op->case_count; i++) {
        const Case *candidate = &op->cases[i];
        if (!same_keys(keys, candidate->keys, count)) {
            continue;
        }
        if (candidate->bind != NULL) {
            candidate->bind(views, values);
        }
        if (!all_checks_hold(candidate, views, values)) {
            continue;
        }
        *path = first_path(candidate, values);
        if (*path != NULL) {
            return OPFORGE_OK;
        }
    }
    return of_refuse(op, views, choices, values);
}
