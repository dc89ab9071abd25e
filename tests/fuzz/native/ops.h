/* What the descriptions of operators have in common. */
#ifndef FUZZ_OPS_H
#define FUZZ_OPS_H

#include "fuzz.h"

#include <string.h>

__extension__ typedef __int128 Wide;

enum { SIGNED = 0, FLOAT = 2 };
#define LARGEST_GRID INT64_C(0x7fffffff)

static inline int64_t some_size(Random *random, int least)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 15, 16, 17, 32, 127, 128, 129};
    const int64_t size = sizes[below(random, (int)(sizeof sizes / sizeof sizes[0]))];
    return size < least ? least : size;
}

static inline int is(const Call *call, int at, int code, int bits, int ndim)
{
    const Spec *spec = &call->given[at].spec;
    return spec->code == code && spec->bits == bits && spec->ndim == ndim;
}

static inline int64_t size(const Call *call, int at, int d)
{
    return call->given[at].spec.shape[d];
}

static inline void want(Call *call, int output, int code, int bits, int ndim, const int64_t *shape)
{
    Wanted *wanted = &call->wanted[output];
    memset(wanted, 0, sizeof *wanted);
    wanted->code = code;
    wanted->bits = bits;
    wanted->ndim = ndim;
    memcpy(wanted->shape, shape, (size_t)ndim * sizeof *shape);
    compact_strides(shape, ndim, wanted->strides);
}

static inline uint32_t load(const Call *call, int at, int64_t index)
{
    uint32_t value;
    memcpy(&value, element(call, at, index), sizeof value);
    return value;
}

static inline void store(const Call *call, int at, int64_t index, uint32_t value)
{
    memcpy(element(call, at, index), &value, sizeof value);
}

#define CALL(function, ...) \
    (call->implementation == -1 ? demo_##function(__VA_ARGS__) \
                                : demo_##function##_with(call->implementation, __VA_ARGS__))
#define T(i) (call->given[i].tensor)
#define SCALARS \
    call->scalars.fp16, call->scalars.bf16, call->scalars.fp32, call->scalars.fp64, \
        call->scalars.i8, call->scalars.i16, call->scalars.i32, call->scalars.i64, \
        call->scalars.u8, call->scalars.u16, call->scalars.u32, call->scalars.u64, \
        call->scalars.i1, (demo_everything_mode)call->choice

/* The two functions that take what comes before the stream. */
#define CALLS(name, ...) \
    static OpforgeStatus call_##name(Call *call) \
    { \
        return CALL(name, __VA_ARGS__, call->stream); \
    } \
    static OpforgeStatus measure_##name(Call *call, int64_t *bytes) \
    { \
        return CALL(name##_workspace, __VA_ARGS__, bytes); \
    }

#define CALLED(name) call_##name, measure_##name

#define TWO_TENSORS(name) \
    CALLS(name, T(0), T(1)) \
    static OpforgeStatus describe_##name(Call *call, OpforgeTensor *const *outputs) \
    { \
        return CALL(name##_outputs, T(0), outputs[0]); \
    }

#define THREE_TENSORS(name) \
    CALLS(name, T(0), T(1), T(2)) \
    static OpforgeStatus describe_##name(Call *call, OpforgeTensor *const *outputs) \
    { \
        return CALL(name##_outputs, T(0), T(1), outputs[0]); \
    }

#endif
