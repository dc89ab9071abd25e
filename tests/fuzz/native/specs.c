/* How tensors are described, and how descriptions are mutated. */
#include "fuzz.h"

#include <string.h>

__extension__ typedef __int128 Wide;

uint64_t random_bits(Random *random)
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int below(Random *random, int limit)
{
    return (int)(random_bits(random) % (uint64_t)limit);
}

int chance(Random *random, int percent)
{
    return below(random, 100) < percent;
}

/* Mostly small, or next to where a type ends. */
int64_t any_number(Random *random)
{
    static const int64_t ends[] = {
        0,
        1,
        -1,
        2,
        8,
        16,
        77,
        127,
        128,
        1000,
        4096,
        65535,
        INT32_MAX,
        (int64_t)INT32_MAX + 1,
        UINT32_MAX,
        (int64_t)1 << 40,
        (int64_t)1 << 61,
        (int64_t)1 << 62,
        INT64_MAX,
        INT64_MIN,
    };
    const int64_t end = ends[below(random, (int)(sizeof ends / sizeof ends[0]))];
    const int by = below(random, 3) - 1;
    if (chance(random, 40)) {
        return below(random, 40);
    }
    return (end == INT64_MAX && by > 0) || (end == INT64_MIN && by < 0) ? end : end + by;
}

void compact_strides(const int64_t *shape, int ndim, int64_t *strides)
{
    Wide step = 1;
    int d;
    for (d = ndim - 1; d >= 0; d--) {
        strides[d] = (int64_t)step;
        step = step * shape[d] % ((Wide)1 << 62);
    }
}

void describe_tensor(Spec *spec, int code, int bits, int ndim, const int64_t *shape)
{
    memset(spec, 0, sizeof *spec);
    spec->is_present = 1;
    spec->has_shape = 1;
    spec->has_data = 1;
    spec->code = code;
    spec->bits = bits;
    spec->lanes = 1;
    spec->device_type = is_amd() ? 10 : 2;
    spec->ndim = ndim;
    spec->shares = -1;
    memcpy(spec->shape, shape, (size_t)ndim * sizeof *shape);
}

/* What also counts as compact: sizes of 1 and empty tensors may have any strides. */
void vary_compact(Random *random, Spec *spec)
{
    int is_empty = 0;
    int d;
    spec->has_strides = chance(random, 60);
    compact_strides(spec->shape, spec->ndim, spec->strides);
    for (d = 0; d < spec->ndim; d++) {
        is_empty |= spec->shape[d] == 0;
    }
    for (d = 0; d < spec->ndim; d++) {
        if ((spec->shape[d] == 1 || is_empty) && chance(random, 30)) {
            spec->strides[d] = below(random, 50);
        }
    }
}

void vary_strides(Random *random, Spec *spec, int may_repeat)
{
    int order[MAX_RANK];
    int64_t step = 1;
    int i;
    if (spec->ndim < 0 || spec->ndim > MAX_RANK) {
        return;
    }
    spec->has_strides = 1;
    for (i = 0; i < spec->ndim; i++) {
        order[i] = i;
    }
    for (i = spec->ndim - 1; i > 0; i--) {
        const int j = below(random, i + 1);
        const int kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (i = 0; i < spec->ndim; i++) {
        const int d = order[i];
        step += chance(random, 25) ? below(random, 4) : 0;
        spec->strides[d] = may_repeat && chance(random, 10) ? 0 : step;
        step *= spec->shape[d] > 0 && spec->shape[d] < 4096 ? spec->shape[d] : 1;
    }
}

static void mutate_type(Random *random, Spec *spec)
{
    static const int bits[] = {0, 1, 4, 7, 8, 16, 24, 32, 64, 128, 255};
    switch (below(random, 3)) {
    case 0: spec->code = below(random, 20); break;
    case 1: spec->bits = bits[below(random, (int)(sizeof bits / sizeof bits[0]))]; break;
    default: spec->lanes = chance(random, 50) ? 0 : below(random, 65536); break;
    }
}

static void mutate_rank(Random *random, Spec *spec)
{
    static const int ranks[] = {-1, 0, 1, 2, 3, 4, 8, 9, 255, 256, INT32_MAX, INT32_MIN};
    int d;
    for (d = spec->ndim < 0 || spec->ndim > MAX_RANK ? 0 : spec->ndim; d < MAX_RANK; d++) {
        spec->shape[d] = below(random, 4);
        spec->strides[d] = below(random, 4);
    }
    spec->ndim = ranks[below(random, (int)(sizeof ranks / sizeof ranks[0]))];
}

static void mutate_tensor(Random *random, Call *call, int at)
{
    const int count = call->op->inputs + call->op->outputs;
    const int other = below(random, count);
    Spec *spec = &call->given[at].spec;
    const int d = below(random, spec->ndim > 0 && spec->ndim <= MAX_RANK ? spec->ndim : 1);
    switch (below(random, 16)) {
    case 0: spec->is_present = 0; break;
    case 1: mutate_rank(random, spec); break;
    case 2:
    case 3: spec->shape[d] = any_number(random); break;
    case 4:
        if (!spec->has_strides && spec->ndim >= 0 && spec->ndim <= MAX_RANK) {
            compact_strides(spec->shape, spec->ndim, spec->strides);
        }
        spec->has_strides = 1;
        spec->strides[d] = any_number(random);
        break;
    case 5: spec->has_strides = !spec->has_strides; break;
    case 6: mutate_type(random, spec); break;
    case 7:
        spec->device_type = below(random, 16) - 1;
        /* The other vendor's are valid, but need a driver other than the stand-in. */
        while (is_amd() ? spec->device_type == 2 || spec->device_type == 13
                        : spec->device_type == 10) {
            spec->device_type--;
        }
        break;
    case 8:
        spec->device = chance(random, 60) ? below(random, DEVICES) : (int32_t)any_number(random);
        break;
    case 9: spec->has_shape = 0; break;
    case 10: spec->has_data = 0; break;
    case 11: spec->shift = below(random, 40); break;
    case 12: spec->astray = UINT64_MAX - (uint64_t)below(random, 4096); break;
    case 13: *spec = call->given[other].spec; break;
    case 14: vary_strides(random, spec, 1); break;
    default:
        spec->shares = other == at ? -1 : other;
        spec->distance = below(random, 3) * 4 * below(random, 40);
        break;
    }
}

static void mutate_scalar(Random *random, Call *call)
{
    Scalars *s = &call->scalars;
    switch (below(random, 6)) {
    case 0: s->i32 = (int32_t)any_number(random); break;
    case 1: s->u8 = (uint8_t)any_number(random); break;
    case 2: s->i1 = (uint8_t)any_number(random); break;
    case 3: s->i64 = any_number(random); break;
    case 4: s->u64 = (uint64_t)any_number(random); break;
    default: s->fp16 = (float)any_number(random) / 3; break;
    }
}

void mutate(Random *random, Call *call)
{
    const int count = call->op->inputs + call->op->outputs;
    int i;
    for (i = 1 + below(random, 3); i > 0; i--) {
        const int what = below(random, 100);
        if (what < 80) {
            mutate_tensor(random, call, below(random, count));
        } else if (what < 90) {
            mutate_scalar(random, call);
        } else if (what < 95) {
            call->choice = (int)any_number(random);
        } else {
            call->implementation = (int)any_number(random);
        }
    }
}
