/* Whether a case or a path takes a call: for select.c, and for refusal.c, which explains it.
 *
 * Inline, because every call asks these questions.
 */
#ifndef OPFORGE_MATCH_INCLUDED
#define OPFORGE_MATCH_INCLUDED

#include "runtime.h"

#include <string.h>

/* Gives the values their sizes and strides. */
static inline void bind(const Case *candidate, const View *views, void *values)
{
    if (candidate->bind != NULL) {
        candidate->bind(views, values);
    }
}

static inline int64_t field_of(const void *values, size_t offset)
{
    int64_t value;
    memcpy(&value, (const char *)values + offset, sizeof value);
    return value;
}

static inline int one_of(const Check *check, int64_t value)
{
    int64_t i;
    for (i = 0; i < check->high; i++) {
        if (check->values[i] == value) {
            return 1;
        }
    }
    return 0;
}

static inline int check_holds(const Check *check, const View *views, const void *values)
{
    const View *view = check->tensor >= 0 ? &views[check->tensor] : NULL;
    switch (check->kind) {
    case OF_COMPACT: return view->is_compact;
    case OF_SIZE_IS: return view->shape[check->dim] == check->low;
    case OF_SIZE_LIKE:
        return view->shape[check->dim] == views[check->other].shape[check->other_dim];
    case OF_STRIDE_IS:
        return view->shape[check->dim] == 1 || view->strides[check->dim] == check->low;
    case OF_STRIDE_LIKE:
        return view->strides[check->dim] == views[check->other].strides[check->other_dim];
    case OF_RANGE:
        return field_of(values, check->offset) >= check->low &&
               field_of(values, check->offset) <= check->high;
    default: return one_of(check, field_of(values, check->offset));
    }
}

/* The first check of a case that does not hold, or NULL. */
static inline const Check *failed_check(const Case *candidate, const View *views,
                                        const void *values)
{
    int i;
    for (i = 0; i < candidate->check_count; i++) {
        if (!check_holds(&candidate->checks[i], views, values)) {
            return &candidate->checks[i];
        }
    }
    return NULL;
}

static inline int may_be_strided(const Case *candidate, int output)
{
    int i;
    for (i = 0; i < candidate->path_count; i++) {
        if (candidate->paths[i].outputs[output] & OF_ANY_STRIDES) {
            return 1;
        }
    }
    return 0;
}

/* An output that is not given, as when it is only described, has the strides that the body gives
 * it. Returns whether there is one. */
static inline int lay_out(const Operation *op, const Case *candidate, const Path *path, View *views,
                          const void *values)
{
    Layout layouts[OF_MAX_OUTPUTS];
    int overflow = 0;
    int found = 0;
    int i;
    int d;
    for (i = 0; i < op->output_count; i++) {
        View *view = &views[op->input_count + i];
        if (view->tensor != NULL || path->layouts == NULL || !may_be_strided(candidate, i)) {
            continue;
        }
        if (!found) {
            path->layouts(values, layouts, &overflow);
            found = 1;
        }
        for (d = 0; d < OF_KEY_RANK(path->outputs[i]); d++) {
            view->strides[d] = layouts[i].strides[d];
        }
    }
    return found;
}

/* The first guard of a path that does not hold, or -1. */
static inline int refused_guard(const Operation *op, const Case *candidate, const Path *path,
                                View *views, void *values, int *overflow)
{
    if (path->refused == NULL && lay_out(op, candidate, path, views, values)) {
        bind(candidate, views, values);
    }
    *overflow = 0;
    return path->guards == NULL ? -1 : path->guards(values, overflow);
}

#endif
