/* Operators of any strides: calls that they take, and what they compute. */
#include "ops.h"

/* blend: x, y, z, out; z is optional, and all are broadcast */

/* A shape that broadcasts to `shape`. */
static void make_part(Random *random, Spec *spec, const int64_t *shape, int ndim)
{
    int64_t part[MAX_RANK];
    const int dropped = below(random, 3) ? 0 : below(random, ndim + 1);
    int d;
    for (d = dropped; d < ndim; d++) {
        part[d - dropped] = chance(random, 20) ? 1 : shape[d];
    }
    describe_tensor(spec, FLOAT, 32, ndim - dropped, part);
    if (chance(random, 40)) {
        vary_compact(random, spec);
    } else {
        vary_strides(random, spec, 1);
    }
}

/* The shape that tensors are broadcast to; -1 if there is none. */
static int common_shape(Call *call, int first, int last)
{
    int rank = 0;
    int i;
    int d;
    for (i = first; i <= last; i++) {
        const int ndim = call->given[i].tensor != NULL ? call->given[i].spec.ndim : 0;
        rank = ndim > rank ? ndim : rank;
    }
    for (d = 0; d < rank; d++) {
        call->common[d] = 1;
        for (i = first; i <= last; i++) {
            const Spec *spec = &call->given[i].spec;
            const int own = call->given[i].tensor != NULL ? d - (rank - spec->ndim) : -1;
            if (own < 0 || spec->shape[own] == 1) {
                continue;
            }
            if (call->common[d] != 1 && call->common[d] != spec->shape[own]) {
                return -1;
            }
            call->common[d] = spec->shape[own];
        }
    }
    return rank;
}

/* Where the element of a broadcast tensor is that belongs to an index of the common shape. */
static int64_t part_at(const Call *call, int at, const int64_t *index, int rank)
{
    const Given *given = &call->given[at];
    int64_t found = 0;
    int d;
    for (d = 0; d < given->spec.ndim; d++) {
        if (given->spec.shape[d] != 1) {
            found += index[d + rank - given->spec.ndim] * given->strides[d];
        }
    }
    return found;
}

static void make_blend(Random *random, Call *call)
{
    const int ndim = below(random, 4);
    int64_t shape[MAX_RANK];
    int d;
    int i;
    for (d = 0; d < ndim; d++) {
        shape[d] = below(random, 6);
    }
    for (i = 0; i < 3; i++) {
        make_part(random, &call->given[i].spec, shape, ndim);
        call->given[i].tensor = (OpforgeTensor *)1;
    }
    call->given[2].spec.is_present = chance(random, 60);
    if (!call->given[2].spec.is_present) {
        call->given[2].tensor = NULL;
    }
    i = common_shape(call, 0, 2);
    describe_tensor(&call->given[3].spec, FLOAT, 32, i, call->common);
    vary_compact(random, &call->given[3].spec);
}

static Verdict judge_blend(Call *call, Verdict *called)
{
    int64_t ones[MAX_RANK] = {0};
    int rank;
    int i;
    (void)called;
    for (i = 0; i < 3; i++) {
        const Given *given = &call->given[i];
        if (given->tensor != NULL &&
            (given->spec.code != FLOAT || given->spec.bits != 32 || given->spec.ndim > 3)) {
            return REFUSED;
        }
    }
    rank = common_shape(call, 0, 2);
    if (rank < 0 || !fits(call->common, ones, rank, 1)) {
        return REFUSED;
    }
    want(call, 0, FLOAT, 32, rank, call->common);
    call->launches = 1;
    return ACCEPTED;
}

static void compute_blend(Call *call)
{
    const Given *out = &call->given[3];
    int64_t index[MAX_RANK] = {0};
    int64_t i;
    for (i = 0; i < out->elements; i++) {
        const int rank = out->spec.ndim;
        uint32_t sum = 0;
        int t;
        int d;
        for (t = 0; t < 3; t++) {
            if (call->given[t].tensor != NULL) {
                sum += (uint32_t)(2 * t + 1) * load(call, t, part_at(call, t, index, rank));
            }
        }
        store(call, 3, i, sum);
        for (d = rank - 1; d >= 0 && ++index[d] == out->spec.shape[d]; d--) {
            index[d] = 0;
        }
    }
}

/* add_to: state, x; only x is broadcast */

static void make_add_to(Random *random, Call *call)
{
    int64_t shape[2];
    shape[0] = below(random, 20);
    shape[1] = below(random, 20);
    describe_tensor(&call->given[0].spec, FLOAT, 32, 2, shape);
    vary_compact(random, &call->given[0].spec);
    make_part(random, &call->given[1].spec, shape, 2);
}

static Verdict judge_add_to(Call *call, Verdict *called)
{
    (void)called;
    if (!is(call, 0, FLOAT, 32, 2) || !call->given[0].is_compact ||
        call->given[1].spec.code != FLOAT || call->given[1].spec.bits != 32 ||
        common_shape(call, 0, 1) != 2 || call->common[0] != size(call, 0, 0) ||
        call->common[1] != size(call, 0, 1)) {
        return REFUSED;
    }
    call->launches = 1;
    return ACCEPTED;
}

static void compute_add_to(Call *call)
{
    int64_t index[2];
    for (index[0] = 0; index[0] < size(call, 0, 0); index[0]++) {
        for (index[1] = 0; index[1] < size(call, 0, 1); index[1]++) {
            const int64_t at = index[0] * size(call, 0, 1) + index[1];
            store(call, 0, at, load(call, 0, at) + load(call, 1, part_at(call, 1, index, 2)));
        }
    }
}

/* turned and either: x, out; the output has any strides */

static void make_turned(Random *random, Call *call)
{
    int64_t shape[2];
    int64_t turned[2];
    shape[0] = turned[1] = below(random, 12);
    shape[1] = turned[0] = below(random, 12);
    describe_tensor(&call->given[0].spec, FLOAT, 32, 2, shape);
    vary_compact(random, &call->given[0].spec);
    describe_tensor(&call->given[1].spec, FLOAT, 32, 2, turned);
    if (chance(random, 30)) {
        vary_compact(random, &call->given[1].spec);
    } else if (chance(random, 70)) {
        vary_strides(random, &call->given[1].spec, 0);
    } else {
        call->given[1].spec.has_strides = 1;
        call->given[1].spec.strides[0] = below(random, 15);
        call->given[1].spec.strides[1] = below(random, 15);
    }
}

static Verdict judge_either(Call *call, Verdict *called)
{
    int64_t shape[2];
    (void)called;
    if (!is(call, 0, FLOAT, 32, 2) || !call->given[0].is_compact) {
        return REFUSED;
    }
    shape[0] = size(call, 0, 1);
    shape[1] = size(call, 0, 0);
    want(call, 0, FLOAT, 32, 2, shape);
    call->wanted[0].strides[0] = shape[1];
    call->wanted[0].is_free = 1;
    call->launches = 1;
    return ACCEPTED;
}

static Verdict judge_turned(Call *call, Verdict *called)
{
    const Verdict verdict = judge_either(call, called);
    if (verdict == ACCEPTED) {
        call->wanted[0].strides[0] = 1;
        call->wanted[0].strides[1] = size(call, 0, 1);
    }
    return verdict;
}

static void compute_turned(Call *call)
{
    const int64_t *strides = call->given[1].strides;
    int64_t i;
    int64_t j;
    for (i = 0; i < size(call, 0, 0); i++) {
        for (j = 0; j < size(call, 0, 1); j++) {
            store(call, 1, j * strides[0] + i * strides[1],
                  load(call, 0, i * size(call, 0, 1) + j));
        }
    }
}

/* cube: x, out of 2 x 3 x 4 */

static void make_cube(Random *random, Call *call)
{
    static const int64_t shape[] = {2, 3, 4};
    Spec *out = &call->given[1].spec;
    int d;
    describe_tensor(&call->given[0].spec, FLOAT, 32, 3, shape);
    vary_compact(random, &call->given[0].spec);
    describe_tensor(out, FLOAT, 32, 3, shape);
    vary_strides(random, out, 0);
    for (d = 0; d < 3 && chance(random, 30); d++) {
        out->strides[d] = below(random, 13);
    }
}

static Verdict judge_cube(Call *call, Verdict *called)
{
    static const int64_t shape[] = {2, 3, 4};
    (void)called;
    if (!is(call, 0, FLOAT, 32, 3) || !call->given[0].is_compact ||
        memcmp(call->given[0].spec.shape, shape, sizeof shape) != 0) {
        return REFUSED;
    }
    want(call, 0, FLOAT, 32, 3, shape);
    call->wanted[0].is_free = 1;
    call->launches = 1;
    return ACCEPTED;
}

static void compute_cube(Call *call)
{
    const int64_t *strides = call->given[1].strides;
    int i;
    for (i = 0; i < 24; i++) {
        const int64_t at = i / 12 * strides[0] + i / 4 % 3 * strides[1] + i % 4 * strides[2];
        store(call, 1, at, load(call, 0, i));
    }
}

/* rotate: q, k; both are written, and often slices of one buffer */

static void make_rotate(Random *random, Call *call)
{
    const int is_packed = chance(random, 60);
    const int64_t step = 1 + below(random, 2);
    int64_t shape[2];
    int64_t row;
    int i;
    shape[0] = below(random, 6);
    shape[1] = below(random, 6);
    row = step * shape[1] * 2 + below(random, 3);
    for (i = 0; i < 2; i++) {
        Spec *spec = &call->given[i].spec;
        describe_tensor(spec, FLOAT, 32, 2, shape);
        vary_strides(random, spec, 0);
        if (is_packed) {
            spec->strides[0] = row;
            spec->strides[1] = step;
        }
    }
    if (is_packed) {
        call->given[1].spec.shares = 0;
        call->given[1].spec.distance = 4 * below(random, (int)row + 2);
    }
}

static Verdict judge_rotate(Call *call, Verdict *called)
{
    (void)called;
    if (!is(call, 0, FLOAT, 32, 2) || !is(call, 1, FLOAT, 32, 2) ||
        size(call, 0, 0) != size(call, 1, 0) || size(call, 0, 1) != size(call, 1, 1)) {
        return REFUSED;
    }
    call->launches = 1;
    return ACCEPTED;
}

static void compute_rotate(Call *call)
{
    int64_t i;
    int64_t j;
    int t;
    for (t = 0; t < 2; t++) {
        const int64_t *strides = call->given[t].strides;
        for (i = 0; i < size(call, 0, 0); i++) {
            for (j = 0; j < size(call, 0, 1); j++) {
                const int64_t at = i * strides[0] + j * strides[1];
                store(call, t, at, load(call, t, at) * 3 + (uint32_t)t);
            }
        }
    }
}

/* window: x, y, out, take (u64) and shift (i64) */

static void make_window(Random *random, Call *call)
{
    const int64_t n = below(random, 30);
    int64_t shape[2];
    int i;
    shape[0] = n;
    shape[1] = below(random, 12);
    for (i = 0; i < 2; i++) {
        Spec *spec = &call->given[i].spec;
        describe_tensor(spec, SIGNED, 8, 2, shape);
        spec->has_strides = 1;
        spec->strides[0] = shape[1] + 3;
        spec->strides[1] = 1;
    }
    call->scalars.u64 = (uint64_t)below(random, (int)n + 1);
    call->scalars.i64 = 1 + below(random, 5);
    shape[0] = (n - (int64_t)call->scalars.u64) / call->scalars.i64;
    describe_tensor(&call->given[2].spec, SIGNED, 8, 2, shape);
    vary_compact(random, &call->given[2].spec);
}

static Verdict judge_window(Call *call, Verdict *called)
{
    const int64_t *x = call->given[0].strides;
    const int64_t *y = call->given[1].strides;
    const int64_t n = call->given[0].spec.shape[0];
    const int64_t w = call->given[0].spec.shape[1];
    const Wide take = call->scalars.u64;
    const Wide shift = call->scalars.i64;
    int64_t shape[2];
    if (!is(call, 0, SIGNED, 8, 2) || !is(call, 1, SIGNED, 8, 2) || size(call, 1, 0) != n ||
        size(call, 1, 1) != w || (w != 1 && (x[1] != 1 || y[1] != 1))) {
        return REFUSED;
    }
    if (take > INT64_MAX || shift <= 0 || take * shift > 1000 || take > n) {
        return REFUSED;
    }
    shape[0] = (int64_t)((n - take) / shift);
    shape[1] = w;
    want(call, 0, SIGNED, 8, 2, shape);
    call->wanted[0].strides[0] = w;
    call->launches = shape[0] > 0;
    if (shape[0] > LARGEST_GRID) {
        *called = REFUSED;
    } else if (call->is_huge) {
        *called = EITHER;
    }
    if (x[0] != y[0]) {
        return n > 1 ? REFUSED : EITHER;
    }
    return ACCEPTED;
}

static void compute_window(Call *call)
{
    const Given *out = &call->given[2];
    int64_t r;
    int64_t c;
    for (r = 0; r < out->spec.shape[0]; r++) {
        for (c = 0; c < out->spec.shape[1]; c++) {
            const int64_t row = (int64_t)call->scalars.u64 + r * call->scalars.i64;
            const int sum = *element(call, 0, row * call->given[0].strides[0] + c) +
                            *element(call, 1, row * call->given[1].strides[0] + c) + 0x5a;
            *element(call, 2, r * out->spec.shape[1] + c) = (unsigned char)sum;
        }
    }
}

TWO_TENSORS(turned)
TWO_TENSORS(either)
TWO_TENSORS(cube)

CALLS(blend, T(0), T(1), T(2), T(3))

static OpforgeStatus describe_blend(Call *call, OpforgeTensor *const *outputs)
{
    return CALL(blend_outputs, T(0), T(1), T(2), outputs[0]);
}

CALLS(add_to, T(0), T(1))

CALLS(rotate, T(0), T(1))

CALLS(window, T(0), T(1), call->scalars.u64, call->scalars.i64, T(2))

static OpforgeStatus describe_window(Call *call, OpforgeTensor *const *outputs)
{
    return CALL(window_outputs, T(0), T(1), call->scalars.u64, call->scalars.i64, outputs[0]);
}

const Op blend_op = {
    "blend",       3, 1, 0, 4, 0, 1, 0, make_blend, judge_blend, compute_blend, CALLED(blend),
    describe_blend};
const Op add_to_op = {
    "add_to", 2, 0, 1, 0, 0, 1, 0, make_add_to, judge_add_to, compute_add_to, CALLED(add_to), NULL};
const Op turned_op = {
    "turned",       1, 1, 0, 0, 0, 1, 0, make_turned, judge_turned, compute_turned, CALLED(turned),
    describe_turned};
const Op either_op = {
    "either",       1, 1, 0, 0, 0, 1, 0, make_turned, judge_either, compute_turned, CALLED(either),
    describe_either};
const Op cube_op = {
    "cube", 1, 1, 0, 0, 0, 1, 0, make_cube, judge_cube, compute_cube, CALLED(cube), describe_cube};
const Op rotate_op = {
    "rotate", 2, 0, 3, 0, 0, 1, 0, make_rotate, judge_rotate, compute_rotate, CALLED(rotate), NULL};
const Op window_op = {
    "window",       2, 1, 0, 0, 0, 1, 0, make_window, judge_window, compute_window, CALLED(window),
    describe_window};
