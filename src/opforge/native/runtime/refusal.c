/* Explains why no case or path takes a call: each candidate, and the first condition it fails. */
#include "match.h"

#include <string.h>

/* Bytes left free for the last line, which counts what did not fit. */
#define RESERVED 160

static int accepted_type(const Operation *op, int tensor, uint32_t key)
{
    int i;
    for (i = 0; i < op->case_count; i++) {
        const uint32_t other = op->cases[i].keys[tensor];
        if (other != OF_ABSENT && OF_KEY_TYPE(other) == OF_KEY_TYPE(key)) {
            return 1;
        }
    }
    return 0;
}

static int accepted_rank(const Operation *op, int tensor, uint32_t key)
{
    int i;
    for (i = 0; i < op->case_count; i++) {
        const uint32_t other = op->cases[i].keys[tensor];
        if (other != OF_ABSENT && OF_KEY_RANK(other) == OF_KEY_RANK(key)) {
            return 1;
        }
    }
    return 0;
}

/* Whether an earlier case says the same of the tensor, where `mask` picks type or rank. */
static int is_repeated(const Operation *op, int tensor, int index, uint32_t mask)
{
    int i;
    for (i = 0; i < index; i++) {
        const uint32_t other = op->cases[i].keys[tensor];
        if (other != OF_ABSENT && ((other ^ op->cases[index].keys[tensor]) & mask) == 0) {
            return 1;
        }
    }
    return 0;
}

static OpforgeStatus refuse_type(const Operation *op, int tensor, uint32_t key)
{
    int shown = 0;
    int i;
    of_fail(OPFORGE_INVALID_ARGUMENT, "%s: type ", op->tensors[tensor].name);
    of_describe_type(OF_KEY_TYPE(key));
    of_more(", expected ");
    for (i = 0; i < op->case_count; i++) {
        const uint32_t other = op->cases[i].keys[tensor];
        if (other != OF_ABSENT && !is_repeated(op, tensor, i, 0xffff)) {
            of_more("%s", shown++ ? " or " : "");
            of_describe_type(OF_KEY_TYPE(other));
        }
    }
    return OPFORGE_INVALID_ARGUMENT;
}

static OpforgeStatus refuse_rank(const Operation *op, int tensor, uint32_t key)
{
    int shown = 0;
    int i;
    of_fail(OPFORGE_INVALID_ARGUMENT, "%s: has %d dimension%s, expected ", op->tensors[tensor].name,
            OF_KEY_RANK(key), OF_KEY_RANK(key) == 1 ? "" : "s");
    for (i = 0; i < op->case_count; i++) {
        const uint32_t other = op->cases[i].keys[tensor];
        if (other != OF_ABSENT && !is_repeated(op, tensor, i, 0xff0000)) {
            of_more("%s%d", shown++ ? " or " : "", OF_KEY_RANK(other));
        }
    }
    return OPFORGE_INVALID_ARGUMENT;
}

/* Refuses a tensor that no case takes, whatever the other arguments are. */
static OpforgeStatus refuse_tensor(const Operation *op, const View *views)
{
    int i;
    for (i = 0; i < op->input_count; i++) {
        const uint32_t key = views[i].key;
        if (key == OF_ABSENT) {
            continue;
        }
        if (!accepted_type(op, i, key)) {
            return refuse_type(op, i, key);
        }
        /* Of tensors that are broadcast, name the one that has this many dimensions itself. */
        if (!accepted_rank(op, i, key) && views[i].tensor->ndim == OF_KEY_RANK(key)) {
            return refuse_rank(op, i, key);
        }
    }
    return OPFORGE_OK;
}

static void describe_check(const Operation *op, const Check *check, const View *views,
                           const void *values)
{
    const View *view = check->tensor >= 0 ? &views[check->tensor] : NULL;
    const char *name = check->tensor >= 0 ? op->tensors[check->tensor].name : check->name;
    const int is_size = check->kind == OF_SIZE_IS || check->kind == OF_SIZE_LIKE;
    int64_t value = 0;
    int64_t i;
    if (check->kind == OF_COMPACT) {
        of_more("%s: strides ", name);
        of_describe_sizes(view->strides, OF_KEY_RANK(view->key));
        of_more(" for shape ");
        of_describe_sizes(view->shape, OF_KEY_RANK(view->key));
        of_more(", expected compact strides");
        return;
    }
    if (check->kind == OF_RANGE || check->kind == OF_ONE_OF) {
        memcpy(&value, (const char *)values + check->offset, sizeof value);
        of_more("%s: %s is %lld, expected ", name, check->name, (long long)value);
        if (check->kind == OF_ONE_OF) {
            for (i = 0; i < check->high; i++) {
                of_more("%s%lld", i ? " or " : "", (long long)check->values[i]);
            }
        } else if (check->high == INT64_MAX) {
            of_more("at least %lld", (long long)check->low);
        } else {
            of_more("%lld to %lld", (long long)check->low, (long long)check->high);
        }
        return;
    }
    value = is_size ? view->shape[check->dim] : view->strides[check->dim];
    of_more("%s: %s %lld in dimension %d, expected ", name, is_size ? "size" : "stride",
            (long long)value, check->dim);
    if (check->kind == OF_SIZE_IS || check->kind == OF_STRIDE_IS) {
        of_more("%lld", (long long)check->low);
    } else {
        const View *other = &views[check->other];
        value = is_size ? other->shape[check->other_dim] : other->strides[check->other_dim];
        of_more("%lld as in %s (%s)", (long long)value, op->tensors[check->other].name,
                check->name);
    }
}

/* The first tensor or choice that a case does not take; 0 where it takes all of them. */
static int describe_mismatch(const Operation *op, const Case *candidate, const View *views,
                             const int *choices)
{
    int i;
    for (i = 0; i < op->input_count; i++) {
        const uint32_t key = views[i].key;
        const uint32_t expected = candidate->keys[i];
        if (key == expected) {
            continue;
        }
        of_more("%s ", op->tensors[i].name);
        if (key == OF_ABSENT || expected == OF_ABSENT) {
            of_more("%s", key == OF_ABSENT ? "is NULL" : "is not NULL");
        } else if (OF_KEY_TYPE(key) != OF_KEY_TYPE(expected)) {
            of_more("is ");
            of_describe_type(OF_KEY_TYPE(key));
        } else {
            of_more("has %d dimension%s", OF_KEY_RANK(key), OF_KEY_RANK(key) == 1 ? "" : "s");
        }
        return 1;
    }
    for (i = 0; i < op->choice_count; i++) {
        if ((uint32_t)choices[i] != candidate->keys[op->input_count + i]) {
            of_more("%s is %s", op->choices[i].name, op->choices[i].labels[choices[i]]);
            return 1;
        }
    }
    return 0;
}

static int takes(const Operation *op, const Case *candidate, const View *views, const int *choices)
{
    int i;
    for (i = 0; i < op->input_count; i++) {
        if (views[i].key != candidate->keys[i]) {
            return 0;
        }
    }
    for (i = 0; i < op->choice_count; i++) {
        if ((uint32_t)choices[i] != candidate->keys[op->input_count + i]) {
            return 0;
        }
    }
    return 1;
}

static int failed_checks(const Case *candidate, const View *views, const void *values)
{
    int count = 0;
    int i;
    for (i = 0; i < candidate->check_count; i++) {
        count += !check_holds(&candidate->checks[i], views, values);
    }
    return count;
}

/* Whether two cases ask for the same, under whatever names. */
static int same_check(const Check *a, const Check *b)
{
    const int alike = a->kind == b->kind && a->tensor == b->tensor && a->dim == b->dim &&
                      a->other == b->other && a->other_dim == b->other_dim;
    return alike && a->offset == b->offset && a->low == b->low && a->high == b->high &&
           a->values == b->values;
}

/* The case that comes closest to a call, by the number of checks that fail. NULL if another comes
 * as close and asks for something else, or if no check of some case fails. */
static const Case *closest_case(const Operation *op, const View *views, const int *choices,
                                void *values)
{
    const Case *closest = NULL;
    const Check *asked = NULL;
    int fewest = 0;
    int differ = 0;
    int i;
    for (i = 0; i < op->case_count; i++) {
        const Case *candidate = &op->cases[i];
        int count;
        if (!takes(op, candidate, views, choices)) {
            continue;
        }
        bind(candidate, views, values);
        count = failed_checks(candidate, views, values);
        if (count == 0) {
            return NULL;
        }
        if (closest == NULL || count < fewest) {
            closest = candidate;
            asked = failed_check(candidate, views, values);
            fewest = count;
            differ = 0;
        } else if (count == fewest && !same_check(asked, failed_check(candidate, views, values))) {
            differ = 1;
        }
    }
    return differ ? NULL : closest;
}

static void describe_fields(const Case *candidate, const void *values)
{
    int i;
    for (i = 0; i < candidate->field_count; i++) {
        const Field *field = &candidate->fields[i];
        of_more("%s%s = ", i ? ", " : "", field->name);
        if (field->is_float) {
            double number;
            memcpy(&number, (const char *)values + field->offset, sizeof number);
            of_more("%.17g", number);
        } else {
            int64_t number;
            memcpy(&number, (const char *)values + field->offset, sizeof number);
            of_more("%lld", (long long)number);
        }
    }
}

static void describe_paths(const Operation *op, const Case *candidate, View *views, void *values)
{
    int i;
    of_more("  %s", candidate->text);
    if (candidate->field_count > 0) {
        of_more(", with ");
        describe_fields(candidate, values);
    }
    of_more(":");
    for (i = 0; i < candidate->path_count; i++) {
        const Path *path = &candidate->paths[i];
        int overflow;
        const int failed = refused_guard(op, candidate, path, views, values, &overflow);
        if (of_room() < RESERVED) {
            of_more("\n    and %d more", candidate->path_count - i);
            return;
        }
        if (failed >= 0) {
            of_more("\n    path %d: %s", i + 1, path->conditions[failed]);
        } else if (overflow) {
            of_more("\n    path %d: its conditions overflow 64 bits", i + 1);
        } else {
            of_more("\n    path %d: %s", i + 1, path->refused);
        }
    }
    if (candidate->path_count == 0) {
        of_more(" it has no path");
    }
}

static void describe_call(const Operation *op, const View *views)
{
    int i;
    for (i = 0; i < op->input_count; i++) {
        of_more("%s%s ", i ? ", " : "", op->tensors[i].name);
        of_describe(&views[i]);
    }
}

OpforgeStatus of_refuse(const Operation *op, View *views, const int *choices, void *values)
{
    OpforgeStatus status;
    const Case *closest;
    const Check *check;
    int taking = 0;
    int i;
    for (i = 0; i < op->case_count; i++) {
        taking += takes(op, &op->cases[i], views, choices);
    }
    status = taking ? OPFORGE_OK : refuse_tensor(op, views);
    if (status != OPFORGE_OK) {
        return status;
    }
    closest = closest_case(op, views, choices, values);
    if (closest != NULL) {
        bind(closest, views, values);
        of_fail(OPFORGE_INVALID_ARGUMENT, "%s", "");
        describe_check(op, failed_check(closest, views, values), views, values);
        return OPFORGE_INVALID_ARGUMENT;
    }
    of_fail(OPFORGE_UNCOVERED, "nothing was built for this call (");
    describe_call(op, views);
    of_more("):");
    for (i = 0; i < op->case_count; i++) {
        const Case *candidate = &op->cases[i];
        if (of_room() < RESERVED) {
            of_more("\n  and %d more", op->case_count - i);
            break;
        }
        if (!takes(op, candidate, views, choices)) {
            if (taking == 0) {
                of_more("\n  %s: ", candidate->text);
                describe_mismatch(op, candidate, views, choices);
            }
            continue;
        }
        bind(candidate, views, values);
        check = failed_check(candidate, views, values);
        of_more("\n");
        if (check != NULL) {
            of_more("  %s: ", candidate->text);
            describe_check(op, check, views, values);
        } else {
            describe_paths(op, candidate, views, values);
        }
    }
    return OPFORGE_UNCOVERED;
}
