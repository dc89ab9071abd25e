/* What a call must answer. */
#include "fuzz.h"

#include <string.h>

__extension__ typedef __int128 Wide;

/* Whether a tensor of that shape can be described in 64 bits. */
int fits(const int64_t *shape, const int64_t *strides, int ndim, int width)
{
    Wide product = 1;
    Wide last = 0;
    int d;
    for (d = 0; d < ndim; d++) {
        if (shape[d] > 0) {
            product *= shape[d];
            last += (Wide)(shape[d] - 1) * strides[d];
            if (product > INT64_MAX || last > INT64_MAX) {
                return 0;
            }
        }
    }
    return product * width <= INT64_MAX && (last + 1) * width <= INT64_MAX;
}

/* The expected memory of a tensor's element, which `index` counts by strides. */
unsigned char *element(const Call *call, int tensor, int64_t index)
{
    const Given *given = &call->given[tensor];
    return given->block->expected + given->start + index * (given->spec.bits / 8);
}

static Verdict lower(Verdict a, Verdict b)
{
    return a < b ? a : b;
}

/* An output without a type counts as left out. */
static int is_given(const Call *call, int at)
{
    const Given *given = &call->given[at];
    return given->tensor != NULL && (at < call->op->inputs || given->spec.bits != 0);
}

static Verdict judge_output(const Given *given, const Wanted *wanted)
{
    const Spec *spec = &given->spec;
    int d;
    if (spec->code != wanted->code || spec->bits != wanted->bits || spec->ndim != wanted->ndim) {
        return REFUSED;
    }
    for (d = 0; d < spec->ndim; d++) {
        if (spec->shape[d] != wanted->shape[d]) {
            return REFUSED;
        }
        if (!wanted->is_free && given->elements > 0 && spec->shape[d] > 1 &&
            given->strides[d] != wanted->strides[d]) {
            return REFUSED;
        }
    }
    return ACCEPTED;
}

static Verdict judge_memory(const Call *call)
{
    const Op *op = call->op;
    const int count = op->inputs + op->outputs;
    Verdict verdict = ACCEPTED;
    int i;
    int j;
    for (i = 0; i < count; i++) {
        const Given *a = &call->given[i];
        const int is_output = i >= op->inputs;
        if (!is_given(call, i) || !(is_output || (op->written >> i & 1)) ||
            (is_output && call->wanted[i - op->inputs].is_absent)) {
            continue;
        }
        if (!a->is_compact && a->block == NULL) {
            verdict = lower(verdict, EITHER);
        }
        for (j = 0; j < count; j++) {
            const Given *b = &call->given[j];
            if (j == i || !is_given(call, j) ||
                (j >= op->inputs && call->wanted[j - op->inputs].is_absent)) {
                continue;
            }
            if (ranges_meet(a, b)) {
                verdict = lower(verdict, share_elements(a, b) ? REFUSED : EITHER);
            }
        }
    }
    return verdict;
}

/* Whether all tensors are on one device that exists, and the stream belongs to it. */
static Verdict judge_device(const Call *call)
{
    const int count = call->op->inputs + call->op->outputs;
    int device = 0;
    int is_found = 0;
    int i;
    for (i = 0; i < count; i++) {
        if (!is_given(call, i)) {
            continue;
        }
        if (is_found && call->given[i].spec.device != device) {
            return REFUSED;
        }
        is_found = 1;
        device = call->given[i].spec.device;
    }
    if (device < 0 || device >= DEVICES || call->stream_device == -2 ||
        (call->stream_device >= 0 && call->stream_device != device)) {
        /* Where nothing is launched, nobody need ask. */
        return call->launches > 0 || call->op->asks_device ? REFUSED : EITHER;
    }
    return ACCEPTED;
}

static Verdict judge_inputs(Call *call, int with_data, Verdict *called)
{
    const Op *op = call->op;
    int i;
    for (i = 0; i < op->inputs; i++) {
        const Given *given = &call->given[i];
        if (given->tensor == NULL ? !(op->optional >> i & 1)
                                  : !(with_data ? given->is_valid_data : given->is_valid)) {
            return REFUSED;
        }
        if ((op->written >> i & 1) && given->tensor != NULL && !given->is_compact &&
            given->block == NULL) {
            *called = EITHER;
        }
    }
    if (call->implementation != -1 &&
        (call->implementation < 0 || call->implementation >= op->implementations)) {
        return REFUSED;
    }
    if (op->choices > 0 && (call->choice < 0 || call->choice >= op->choices)) {
        return REFUSED;
    }
    return ACCEPTED;
}

/* Also says which status a refusal has where that is certain, and otherwise OPFORGE_OK. */
Verdict judge_call(Call *call, OpforgeStatus *status)
{
    const Op *op = call->op;
    Verdict called = ACCEPTED;
    Verdict verdict = judge_inputs(call, 1, &called);
    int i;
    *status = OPFORGE_OK;
    call->launches = 0;
    if (verdict == REFUSED) {
        *status = OPFORGE_INVALID_ARGUMENT;
        return REFUSED;
    }
    verdict = lower(verdict, op->judge(call, &called));
    if (verdict == REFUSED) {
        return REFUSED;
    }
    for (i = 0; i < op->outputs; i++) {
        const Given *given = &call->given[op->inputs + i];
        if (!is_given(call, op->inputs + i)) {
            verdict = lower(verdict, call->wanted[i].is_absent ? ACCEPTED : REFUSED);
        } else if (call->wanted[i].is_absent) {
            /* Whether something is looked at that nobody needs is left open. */
            verdict = lower(verdict, EITHER);
        } else {
            const int is_valid = given->is_valid_data;
            verdict = lower(verdict, is_valid ? judge_output(given, &call->wanted[i]) : REFUSED);
        }
    }
    if (verdict == REFUSED) {
        *status = OPFORGE_INVALID_ARGUMENT;
        return REFUSED;
    }
    verdict = lower(lower(verdict, called), judge_device(call));
    return lower(verdict, judge_memory(call));
}

Verdict judge_outputs(Call *call)
{
    const Op *op = call->op;
    Verdict called = ACCEPTED;
    Verdict verdict = ACCEPTED;
    int device = 0;
    int is_found = 0;
    int i;
    if (judge_inputs(call, 0, &verdict) == REFUSED) {
        return REFUSED;
    }
    verdict = lower(verdict, op->judge(call, &called));
    for (i = 0; verdict != REFUSED && i < op->outputs; i++) {
        const Wanted *wanted = &call->wanted[i];
        if (!wanted->is_absent &&
            !fits(wanted->shape, wanted->strides, wanted->ndim, wanted->bits / 8)) {
            verdict = REFUSED;
        }
    }
    for (i = 0; i < op->inputs; i++) {
        if (call->given[i].tensor != NULL) {
            if (is_found && call->given[i].spec.device != device) {
                return REFUSED;
            }
            is_found = 1;
            device = call->given[i].spec.device;
        }
    }
    return op->asks_device && (device < 0 || device >= DEVICES) ? REFUSED : verdict;
}
