/* Finds the case and the path of a call. */
#include "match.h"

static const Path *first_path(const Operation *op, const Case *candidate, View *views, void *values)
{
    int overflow;
    int i;
    for (i = 0; i < candidate->path_count; i++) {
        const Path *path = &candidate->paths[i];
        if (path->refused == NULL &&
            refused_guard(op, candidate, path, views, values, &overflow) < 0 && !overflow) {
            return path;
        }
    }
    return NULL;
}

/* No memcmp: the first key differs most of the time. */
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

OpforgeStatus of_select(const Operation *op, View *views, const int *choices, void *values,
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
            return of_fail(OPFORGE_INVALID_ARGUMENT,
                           "%s: %d is not a value of the enum, which has %d", op->choices[i].name,
                           choices[i], op->choices[i].count);
        }
        keys[op->input_count + i] = (uint32_t)choices[i];
    }
    for (i = 0; i < op->case_count; i++) {
        const Case *candidate = &op->cases[i];
        if (!same_keys(keys, candidate->keys, count)) {
            continue;
        }
        bind(candidate, views, values);
        if (failed_check(candidate, views, values) != NULL) {
            continue;
        }
        *path = first_path(op, candidate, views, values);
        if (*path != NULL) {
            return OPFORGE_OK;
        }
    }
    return of_refuse(op, views, choices, values);
}
