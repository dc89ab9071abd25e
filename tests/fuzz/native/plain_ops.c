/* Operators of compact tensors, scalars and choices: calls that they take, what they compute. */
#include "ops.h"

/* add: x, y, out */

static void make_add(Random *random, Call *call)
{
    int64_t shape[2];
    const int bits = chance(random, 50) ? 16 : 32;
    const int ndim = 1 + below(random, 2);
    int i;
    shape[0] = some_size(random, 0);
    shape[1] = some_size(random, 0);
    for (i = 0; i < 3; i++) {
        describe_tensor(&call->given[i].spec, FLOAT, bits, ndim, shape);
        vary_compact(random, &call->given[i].spec);
    }
}

static Verdict judge_add(Call *call, Verdict *called)
{
    const Given *x = &call->given[0];
    const Given *y = &call->given[1];
    const Spec *spec = &x->spec;
    int d;
    if (!(is(call, 0, FLOAT, 16, 1) || is(call, 0, FLOAT, 16, 2) || is(call, 0, FLOAT, 32, 1) ||
          is(call, 0, FLOAT, 32, 2)) ||
        !is(call, 1, spec->code, spec->bits, spec->ndim) || !x->is_compact || !y->is_compact) {
        return REFUSED;
    }
    for (d = 0; d < spec->ndim; d++) {
        if (size(call, 1, d) != size(call, 0, d)) {
            return REFUSED;
        }
    }
    want(call, 0, spec->code, spec->bits, spec->ndim, spec->shape);
    call->launches = x->elements > 0;
    if ((x->elements + 127) / 128 > LARGEST_GRID) {
        *called = REFUSED;
    }
    return ACCEPTED;
}

static void compute_add(Call *call)
{
    const int width = call->given[0].spec.bits / 8;
    int64_t i;
    for (i = 0; i < call->given[0].elements; i++) {
        uint32_t a = 0;
        uint32_t b = 0;
        memcpy(&a, element(call, 0, i), (size_t)width);
        memcpy(&b, element(call, 1, i), (size_t)width);
        a += b;
        memcpy(element(call, 2, i), &a, (size_t)width);
    }
}

/* matmul: a, b, out */

static void make_matmul(Random *random, Call *call)
{
    int64_t sizes[3];
    int64_t shape[2];
    int i;
    for (i = 0; i < 3; i++) {
        sizes[i] = below(random, 3) ? below(random, 9) : below(random, 34);
    }
    sizes[1] += sizes[1] == 0;
    /* Where grids end. */
    if (chance(random, 2)) {
        sizes[0] = LARGEST_GRID * 16 + below(random, 3) - 1;
        sizes[2] = 1 + below(random, 2);
    } else if (chance(random, 2)) {
        sizes[2] = 65535 * 16 + below(random, 3) - 1;
    }
    for (i = 0; i < 3; i++) {
        shape[0] = sizes[i == 1];
        shape[1] = sizes[i == 0 ? 1 : 2];
        describe_tensor(&call->given[i].spec, FLOAT, 32, 2, shape);
        if (i == 2 || chance(random, 30)) {
            vary_compact(random, &call->given[i].spec);
        } else {
            vary_strides(random, &call->given[i].spec, 1);
        }
    }
}

static Verdict judge_matmul(Call *call, Verdict *called)
{
    int64_t shape[2];
    if (!is(call, 0, FLOAT, 32, 2) || !is(call, 1, FLOAT, 32, 2) ||
        size(call, 0, 1) != size(call, 1, 0) || size(call, 1, 0) < 1 || size(call, 1, 0) > 4096) {
        return REFUSED;
    }
    shape[0] = size(call, 0, 0);
    shape[1] = size(call, 1, 1);
    want(call, 0, FLOAT, 32, 2, shape);
    call->wanted[0].strides[0] = shape[1];
    call->launches = shape[0] > 0 && shape[1] > 0;
    if ((shape[0] + (Wide)15) / 16 > LARGEST_GRID || (shape[1] + (Wide)15) / 16 > 65535) {
        *called = call->launches ? REFUSED : EITHER;
    }
    return ACCEPTED;
}

static void compute_matmul(Call *call)
{
    const int64_t *a = call->given[0].strides;
    const int64_t *b = call->given[1].strides;
    int64_t i;
    int64_t j;
    int64_t k;
    for (i = 0; i < size(call, 0, 0); i++) {
        for (j = 0; j < size(call, 1, 1); j++) {
            uint32_t sum = 0;
            for (k = 0; k < size(call, 1, 0); k++) {
                sum += load(call, 0, i * a[0] + k * a[1]) * load(call, 1, k * b[0] + j * b[1]);
            }
            store(call, 2, i * size(call, 1, 1) + j, sum);
        }
    }
}

/* everything: x, bias, state, out, stats */

static void make_everything(Random *random, Call *call)
{
    static const uint8_t bytes[] = {0, 3, 200};
    int64_t shape[2];
    int i;
    shape[0] = some_size(random, 1) * (chance(random, 3) ? 8 : 1);
    shape[0] = shape[0] > 1000 ? 1000 : shape[0];
    shape[1] = 8;
    describe_tensor(&call->given[0].spec, FLOAT, 32, 2, shape);
    describe_tensor(&call->given[1].spec, FLOAT, 32, 1, &shape[1]);
    describe_tensor(&call->given[2].spec, FLOAT, 32, 1, shape);
    describe_tensor(&call->given[3].spec, FLOAT, 32, 2, shape);
    describe_tensor(&call->given[4].spec, FLOAT, 64, 1, shape);
    for (i = 0; i < 5; i++) {
        vary_compact(random, &call->given[i].spec);
    }
    call->given[1].spec.is_present = chance(random, 60);
    call->choice = below(random, 2);
    call->given[4].spec.is_present = call->choice == 0;
    call->scalars.i32 = below(random, 11) - 5;
    call->scalars.u8 = bytes[below(random, 3)];
    call->scalars.i1 = (uint8_t)below(random, 2);
}

static Verdict judge_everything(Call *call, Verdict *called)
{
    const Scalars *s = &call->scalars;
    const int64_t rows = call->given[0].spec.shape[0];
    const int has_bias = call->given[1].tensor != NULL;
    (void)called;
    if (!is(call, 0, FLOAT, 32, 2) || size(call, 0, 1) != 8 || !call->given[0].is_compact ||
        (has_bias &&
         (!is(call, 1, FLOAT, 32, 1) || size(call, 1, 0) != 8 || !call->given[1].is_compact)) ||
        !is(call, 2, FLOAT, 32, 1) || size(call, 2, 0) != rows || !call->given[2].is_compact) {
        return REFUSED;
    }
    if (rows < 1 || rows > 1000 || s->i32 < -5 || s->i32 > 5 ||
        (s->u8 != 0 && s->u8 != 3 && s->u8 != 200)) {
        return REFUSED;
    }
    want(call, 0, FLOAT, 32, 2, call->given[0].spec.shape);
    want(call, 1, FLOAT, 64, 1, call->given[0].spec.shape);
    call->wanted[1].is_absent = call->choice == 1;
    call->launches = call->choice == 0 ? 2 : 1;
    return ACCEPTED;
}

static void compute_everything(Call *call)
{
    const int bias = call->given[1].tensor != NULL ? 1 : 0;
    int64_t r;
    int c;
    for (r = 0; r < size(call, 0, 0); r++) {
        store(call, 2, r, 0x3f800000);
        for (c = 0; c < 8; c++) {
            store(call, 3, r * 8 + c, load(call, 0, r * 8 + c) + load(call, bias, c));
        }
        if (call->choice == 0) {
            const uint64_t stats = (UINT64_C(0x3ff0000000000001) + (uint64_t)r) * 3;
            memcpy(element(call, 4, r), &stats, sizeof stats);
        }
    }
}

/* special: x, which is written */

static const int clusters[] = {1, 2, 16, 1, 1, 1, 1, 1, 1};

static void make_special(Random *random, Call *call)
{
    int64_t n = some_size(random, 0);
    call->choice = below(random, 9);
    if (chance(random, 3)) {
        n = LARGEST_GRID / clusters[call->choice] + below(random, 3) - 1;
    }
    describe_tensor(&call->given[0].spec, FLOAT, 32, 1, &n);
    vary_compact(random, &call->given[0].spec);
}

static Verdict judge_special(Call *call, Verdict *called)
{
    const int64_t n = call->given[0].spec.shape[0];
    if (!is(call, 0, FLOAT, 32, 1) || !call->given[0].is_compact) {
        return REFUSED;
    }
    call->launches = n > 0;
    if (n > LARGEST_GRID / clusters[call->choice]) {
        *called = REFUSED;
    } else if (n > 0 && call->choice >= 7 && call->given[0].spec.device == 0) {
        *called = REFUSED;
    } else if (call->is_huge && (call->choice == 5 || call->choice == 6)) {
        *called = EITHER;
    }
    return ACCEPTED;
}

static void compute_special(Call *call)
{
    int64_t i;
    for (i = 0; i < size(call, 0, 0); i++) {
        store(call, 0, i, load(call, 0, i) + 6);
    }
}

/* pick: x, out */

static void make_pick(Random *random, Call *call)
{
    const int64_t n = chance(random, 30) ? 77 : 2 + 2 * below(random, 32);
    describe_tensor(&call->given[0].spec, SIGNED, 8, 1, &n);
    describe_tensor(&call->given[1].spec, SIGNED, 8, 1, &n);
    vary_compact(random, &call->given[0].spec);
    vary_compact(random, &call->given[1].spec);
}

static Verdict judge_pick(Call *call, Verdict *called)
{
    const int64_t n = call->given[0].spec.shape[0];
    (void)called;
    if (!is(call, 0, SIGNED, 8, 1) || !call->given[0].is_compact ||
        !(n == 77 || (n >= 1 && n <= 64 && n % 2 == 0))) {
        return REFUSED;
    }
    want(call, 0, SIGNED, 8, 1, &n);
    call->launches = 1;
    return ACCEPTED;
}

static void compute_pick(Call *call)
{
    const int64_t n = size(call, 0, 0);
    int64_t i;
    for (i = 0; i < n; i++) {
        *element(call, 1, i) = (unsigned char)(*element(call, 0, i) ^ (n == 77 ? 0x11 : 0x22));
    }
}

/* copy: x, out; by rows, or for any strides into columns */

static void make_copy(Random *random, Call *call)
{
    int64_t shape[2];
    shape[0] = 1 + below(random, 40);
    shape[1] = below(random, 40);
    call->implementation = below(random, 4) - 1;
    call->implementation = call->implementation > 1 ? -1 : call->implementation;
    shape[1] += call->implementation == 0 ? shape[1] % 2 : 0;
    describe_tensor(&call->given[0].spec, FLOAT, 32, 2, shape);
    describe_tensor(&call->given[1].spec, FLOAT, 32, 2, shape);
    if (call->implementation == 0 || chance(random, 50)) {
        vary_compact(random, &call->given[0].spec);
    } else {
        vary_strides(random, &call->given[0].spec, 1);
    }
    if (call->implementation == 0) {
        vary_compact(random, &call->given[1].spec);
    } else {
        call->given[1].spec.has_strides = 1;
        call->given[1].spec.strides[0] = 1;
        call->given[1].spec.strides[1] = shape[0];
        /* The right one of the two, most of the time. */
        if (call->implementation == -1 && shape[1] % 2 == 0 && chance(random, 60)) {
            vary_compact(random, &call->given[1].spec);
        }
    }
}

static int takes_rows(const Call *call)
{
    return call->implementation != 1 && call->given[0].is_compact && size(call, 0, 1) % 2 == 0;
}

static Verdict judge_copy(Call *call, Verdict *called)
{
    const Given *x = &call->given[0];
    if (!is(call, 0, FLOAT, 32, 2)) {
        return REFUSED;
    }
    want(call, 0, FLOAT, 32, 2, x->spec.shape);
    call->wanted[0].strides[0] = size(call, 0, 1);
    call->launches = 1;
    if (takes_rows(call)) {
        if (x->elements > INT32_MAX) {
            *called = REFUSED;
        }
        return ACCEPTED;
    }
    if (call->implementation == 0 || size(call, 0, 0) < 1 || size(call, 0, 0) > 64) {
        return REFUSED;
    }
    call->wanted[0].strides[0] = 1;
    call->wanted[0].strides[1] = size(call, 0, 0);
    if (x->strides[0] > INT32_MAX || x->strides[1] > INT32_MAX) {
        *called = REFUSED;
    }
    return ACCEPTED;
}

static void compute_copy(Call *call)
{
    const int64_t *strides = call->given[0].strides;
    const int is_by_rows = takes_rows(call);
    int64_t i;
    int64_t j;
    for (i = 0; i < size(call, 0, 0); i++) {
        for (j = 0; j < size(call, 0, 1); j++) {
            const int64_t at = is_by_rows ? i * size(call, 0, 1) + j : i + j * size(call, 0, 0);
            const int64_t from = is_by_rows ? at : i * strides[0] + j * strides[1];
            store(call, 1, at, load(call, 0, from));
        }
    }
}

TWO_TENSORS(pick)
TWO_TENSORS(copy)
THREE_TENSORS(add)
THREE_TENSORS(matmul)

CALLS(everything, T(0), T(1), T(2), SCALARS, T(3), T(4))

static OpforgeStatus describe_everything(Call *call, OpforgeTensor *const *outputs)
{
    return CALL(everything_outputs, T(0), T(1), T(2), SCALARS, outputs[0], outputs[1]);
}

CALLS(special, T(0), (demo_special_what)call->choice)

const Op add_op = {"add", 2,        1,         0,           0,           0,           1,
                   0,     make_add, judge_add, compute_add, CALLED(add), describe_add};
const Op matmul_op = {
    "matmul",       2, 1, 0, 0, 0, 1, 0, make_matmul, judge_matmul, compute_matmul, CALLED(matmul),
    describe_matmul};
const Op everything_op = {"everything",
                          3,
                          2,
                          4,
                          2,
                          2,
                          1,
                          1,
                          make_everything,
                          judge_everything,
                          compute_everything,
                          CALLED(everything),
                          describe_everything};
const Op special_op = {
    "special",       1,   0, 1, 0, 9, 1, 0, make_special, judge_special, compute_special,
    CALLED(special), NULL};
const Op pick_op = {
    "pick", 1, 1, 0, 0, 0, 1, 0, make_pick, judge_pick, compute_pick, CALLED(pick), describe_pick};
const Op copy_op = {
    "copy", 1, 1, 0, 0, 0, 2, 0, make_copy, judge_copy, compute_copy, CALLED(copy), describe_copy};
