/* demo_everything: demo::everything (ops.py:50). Written by opforge. */

#include "runtime.h"

#include "api.h"
#include "kernels.h"

#include <string.h>

/* The sizes and scalars of a call. */
typedef struct {
    double s_fp16;
    double s_bf16;
    double s_fp32;
    double s_fp64;
    int64_t s_i8;
    int64_t s_i16;
    int64_t s_i32;
    int64_t s_i64;
    int64_t s_u8;
    int64_t s_u16;
    int64_t s_u32;
    int64_t s_u64;
    int64_t s_i1;
    int64_t rows;
    int64_t device_multi_processor_count; /* device.multi_processor_count */
} Values;

static const int64_t allowed_0[] = {0, 3, 200};

/* partial: rows * 8 + 16 */
static void numbers_0(const void *values, const uint64_t *at, int64_t *n, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)at;
    n[0] = of_add(of_mul(v->rows, 8, overflow), 16, overflow); /* bytes */
}

/* fill partial with 0x3ff0000000000001 */
static void numbers_1(const void *values, const uint64_t *at, int64_t *n, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)at;
    (void)overflow;
    n[0] = 16; /* offset */
    n[1] = v->rows; /* count */
}

/* fill state with 0x3f800000 */
static void numbers_2(const void *values, const uint64_t *at, int64_t *n, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)at;
    (void)overflow;
    n[0] = 0; /* offset */
    n[1] = v->rows; /* count */
}

/* first_kernel, grid (min(rows, device.multi_processor_count), 1, 1) */
static void numbers_3(const void *values, const uint64_t *at, int64_t *n, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    n[0] = of_min(v->rows, v->device_multi_processor_count);
    n[1] = 1;
    n[2] = 1;
    n[3] = (int64_t)at[0]; /* x_ptr */
    n[4] = (int64_t)at[1]; /* bias_ptr */
    n[5] = (int64_t)(at[5] + (uint64_t)16); /* partial_ptr */
    n[6] = (int64_t)at[3]; /* out_ptr */
    n[7] = of_float_bits(v->s_fp16); /* s_fp16 */
    n[8] = of_float_bits(v->s_bf16); /* s_bf16 */
    n[9] = of_float_bits(v->s_fp32); /* s_fp32 */
    n[10] = of_float_bits(v->s_fp64); /* s_fp64 */
    n[11] = v->s_i8; /* s_i8 */
    n[12] = v->s_i16; /* s_i16 */
    n[13] = v->s_i32; /* s_i32 */
    n[14] = v->s_i64; /* s_i64 */
    n[15] = v->s_u8; /* s_u8 */
    n[16] = v->s_u16; /* s_u16 */
    n[17] = v->s_u32; /* s_u32 */
    n[18] = v->s_u64; /* s_u64 */
    n[19] = v->s_i1; /* s_i1 */
}

static const char *const arguments_of_0[] = {
    "x (x_ptr of the kernel)",
    "bias (bias_ptr of the kernel)",
    "partial (partial_ptr of the kernel)",
    "out (out_ptr of the kernel)",
    "s_fp16",
    "s_bf16",
    "s_fp32",
    "s_fp64",
    "s_i8",
    "s_i16",
    "s_i32",
    "s_i64",
    "s_u8",
    "s_u16",
    "s_u32",
    "s_u64",
    "s_i1",
};

static const uint8_t types_0[] = {
    OF_POINTER,
    OF_POINTER,
    OF_POINTER | OF_BY_16,
    OF_POINTER,
    OF_FP16,
    OF_BF16,
    OF_FP32,
    OF_FP64,
    OF_I8,
    OF_I16,
    OF_I32,
    OF_I64,
    OF_U8,
    OF_U16,
    OF_U32,
    OF_U64 | OF_UNSIGNED,
    OF_I1,
};

static const Variant variants_0[] = {
    {KERNEL_everything_first, types_0},
};

static const Launch launch_0[] = {
    {"first_kernel", "kernels.py:50", 17, arguments_of_0, 1, variants_0},
};

/* second_kernel, grid (1, rows, 2) */
static void numbers_4(const void *values, const uint64_t *at, int64_t *n, int *overflow)
{
    const Values *v = (const Values *)values;
    n[0] = 1;
    n[1] = v->rows;
    n[2] = 2;
    n[3] = (int64_t)(at[5] + (uint64_t)16); /* partial_ptr */
    n[4] = (int64_t)at[4]; /* stats_ptr */
    n[5] = of_mul(v->rows, 2, overflow); /* rows */
}

static const char *const arguments_of_1[] = {
    "partial (partial_ptr of the kernel)",
    "stats (stats_ptr of the kernel)",
    "rows",
};

static const uint8_t types_1[] = {OF_POINTER, OF_POINTER, OF_I32};

static const Variant variants_1[] = {
    {KERNEL_everything_second, types_1},
};

static const Launch launch_1[] = {
    {"second_kernel", "kernels.py:60", 3, arguments_of_1, 1, variants_1},
};

/* rows <= 1000 */
static int guards_0(const void *values, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    if (!(v->rows <= 1000)) {
        return 0;
    }
    return -1;
}

static const char *const conditions_0[] = {"rows <= 1000 does not hold (ops.py:60)"};

static const uint32_t outputs_0[] = {OF_KEY(2, 32, 2), OF_KEY(2, 64, 1)};

/* out [rows, 8], stats [rows] */
static void layouts_0(const void *values, Layout *layouts, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    layouts[0].sizes[0] = v->rows;
    layouts[0].strides[0] = 8;
    layouts[0].sizes[1] = 8;
    layouts[0].strides[1] = 1;
    layouts[1].sizes[0] = v->rows;
    layouts[1].strides[0] = 1;
}

static const Step steps_0[] = {
    {OF_ALLOCATE, 5, 0, 0, NULL, numbers_0},
    {OF_FILL, 5, 8, UINT64_C(0x3ff0000000000001), NULL, numbers_1},
    {OF_FILL, 2, 4, UINT64_C(0x3f800000), NULL, numbers_2},
    {OF_LAUNCH, 0, 0, 0, &launch_0[0], numbers_3},
    {OF_LAUNCH, 0, 0, 0, &launch_1[0], numbers_4},
};

/* 1000 < rows */
static int guards_1(const void *values, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    if (!(1000 < v->rows)) {
        return 0;
    }
    return -1;
}

static const char *const conditions_1[] = {"1000 < rows does not hold (ops.py:61)"};

static const uint32_t outputs_1[] = {OF_ABSENT, OF_ABSENT};

static const uint32_t keys_0[] = {OF_KEY(2, 32, 2), OF_KEY(2, 32, 1), OF_KEY(2, 32, 1), 0};

static void bind_0(const View *views, void *values)
{
    Values *v = (Values *)values;
    v->rows = views[0].shape[0];
}

static const Check checks_0[] = {
    OF_CHECK_COMPACT(0),
    OF_CHECK_SIZE(0, 1, 8),
    OF_CHECK_COMPACT(1),
    OF_CHECK_SIZE(1, 0, 8),
    OF_CHECK_COMPACT(2),
    OF_CHECK_SIZE_LIKE(2, 0, 0, 0, "rows"),
    OF_CHECK_RANGE(0, "rows", offsetof(Values, rows), 1, INT64_MAX),
    OF_CHECK_RANGE(-1, "s_i32", offsetof(Values, s_i32), -5, 5),
    OF_CHECK_ONE_OF(-1, "s_u8", offsetof(Values, s_u8), 3, allowed_0),
};

static const Field fields_0[] = {
    {"rows", offsetof(Values, rows), 0},
    {"device.multi_processor_count", offsetof(Values, device_multi_processor_count), 0},
    {"s_fp16", offsetof(Values, s_fp16), 1},
    {"s_bf16", offsetof(Values, s_bf16), 1},
    {"s_fp32", offsetof(Values, s_fp32), 1},
    {"s_fp64", offsetof(Values, s_fp64), 1},
    {"s_i8", offsetof(Values, s_i8), 0},
    {"s_i16", offsetof(Values, s_i16), 0},
    {"s_i32", offsetof(Values, s_i32), 0},
    {"s_i64", offsetof(Values, s_i64), 0},
    {"s_u8", offsetof(Values, s_u8), 0},
    {"s_u16", offsetof(Values, s_u16), 0},
    {"s_u32", offsetof(Values, s_u32), 0},
    {"s_u64", offsetof(Values, s_u64), 0},
    {"s_i1", offsetof(Values, s_i1), 0},
};

static const Path paths_0[] = {
    {NULL, guards_0, conditions_0, outputs_0, layouts_0, 1, 5, steps_0},
    {"aten.mm at ops.py:62", guards_1, conditions_1, outputs_1, NULL, 0, 0, NULL},
};

static const uint32_t outputs_2[] = {OF_KEY(2, 32, 2), OF_ABSENT};

/* out [rows, 8] */
static void layouts_1(const void *values, Layout *layouts, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    layouts[0].sizes[0] = v->rows;
    layouts[0].strides[0] = 8;
    layouts[0].sizes[1] = 8;
    layouts[0].strides[1] = 1;
}

static const Step steps_1[] = {
    {OF_ALLOCATE, 5, 0, 0, NULL, numbers_0},
    {OF_FILL, 5, 8, UINT64_C(0x3ff0000000000001), NULL, numbers_1},
    {OF_FILL, 2, 4, UINT64_C(0x3f800000), NULL, numbers_2},
    {OF_LAUNCH, 0, 0, 0, &launch_0[0], numbers_3},
};

static const uint32_t keys_1[] = {OF_KEY(2, 32, 2), OF_KEY(2, 32, 1), OF_KEY(2, 32, 1), 1};

static const Path paths_1[] = {
    {NULL, guards_0, conditions_0, outputs_2, layouts_1, 1, 4, steps_1},
    {"aten.mm at ops.py:62", guards_1, conditions_1, outputs_1, NULL, 0, 0, NULL},
};

/* first_kernel, grid (min(rows, device.multi_processor_count), 1, 1) */
static void numbers_5(const void *values, const uint64_t *at, int64_t *n, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    n[0] = of_min(v->rows, v->device_multi_processor_count);
    n[1] = 1;
    n[2] = 1;
    n[3] = (int64_t)at[0]; /* x_ptr */
    n[4] = (int64_t)at[0]; /* bias_ptr */
    n[5] = (int64_t)(at[5] + (uint64_t)16); /* partial_ptr */
    n[6] = (int64_t)at[3]; /* out_ptr */
    n[7] = of_float_bits(v->s_fp16); /* s_fp16 */
    n[8] = of_float_bits(v->s_bf16); /* s_bf16 */
    n[9] = of_float_bits(v->s_fp32); /* s_fp32 */
    n[10] = of_float_bits(v->s_fp64); /* s_fp64 */
    n[11] = v->s_i8; /* s_i8 */
    n[12] = v->s_i16; /* s_i16 */
    n[13] = v->s_i32; /* s_i32 */
    n[14] = v->s_i64; /* s_i64 */
    n[15] = v->s_u8; /* s_u8 */
    n[16] = v->s_u16; /* s_u16 */
    n[17] = v->s_u32; /* s_u32 */
    n[18] = v->s_u64; /* s_u64 */
    n[19] = v->s_i1; /* s_i1 */
}

static const char *const arguments_of_2[] = {
    "x (x_ptr of the kernel)",
    "x (bias_ptr of the kernel)",
    "partial (partial_ptr of the kernel)",
    "out (out_ptr of the kernel)",
    "s_fp16",
    "s_bf16",
    "s_fp32",
    "s_fp64",
    "s_i8",
    "s_i16",
    "s_i32",
    "s_i64",
    "s_u8",
    "s_u16",
    "s_u32",
    "s_u64",
    "s_i1",
};

static const Launch launch_2[] = {
    {"first_kernel", "kernels.py:50", 17, arguments_of_2, 1, variants_0},
};

static const Step steps_2[] = {
    {OF_ALLOCATE, 5, 0, 0, NULL, numbers_0},
    {OF_FILL, 5, 8, UINT64_C(0x3ff0000000000001), NULL, numbers_1},
    {OF_FILL, 2, 4, UINT64_C(0x3f800000), NULL, numbers_2},
    {OF_LAUNCH, 0, 0, 0, &launch_2[0], numbers_5},
    {OF_LAUNCH, 0, 0, 0, &launch_1[0], numbers_4},
};

static const uint32_t keys_2[] = {OF_KEY(2, 32, 2), OF_ABSENT, OF_KEY(2, 32, 1), 0};

static const Check checks_1[] = {
    OF_CHECK_COMPACT(0),
    OF_CHECK_SIZE(0, 1, 8),
    OF_CHECK_COMPACT(2),
    OF_CHECK_SIZE_LIKE(2, 0, 0, 0, "rows"),
    OF_CHECK_RANGE(0, "rows", offsetof(Values, rows), 1, INT64_MAX),
    OF_CHECK_RANGE(-1, "s_i32", offsetof(Values, s_i32), -5, 5),
    OF_CHECK_ONE_OF(-1, "s_u8", offsetof(Values, s_u8), 3, allowed_0),
};

static const Path paths_2[] = {
    {NULL, guards_0, conditions_0, outputs_0, layouts_0, 1, 5, steps_2},
    {"aten.mm at ops.py:62", guards_1, conditions_1, outputs_1, NULL, 0, 0, NULL},
};

static const Step steps_3[] = {
    {OF_ALLOCATE, 5, 0, 0, NULL, numbers_0},
    {OF_FILL, 5, 8, UINT64_C(0x3ff0000000000001), NULL, numbers_1},
    {OF_FILL, 2, 4, UINT64_C(0x3f800000), NULL, numbers_2},
    {OF_LAUNCH, 0, 0, 0, &launch_2[0], numbers_5},
};

static const uint32_t keys_3[] = {OF_KEY(2, 32, 2), OF_ABSENT, OF_KEY(2, 32, 1), 1};

static const Path paths_3[] = {
    {NULL, guards_0, conditions_0, outputs_2, layouts_1, 1, 4, steps_3},
    {"aten.mm at ops.py:62", guards_1, conditions_1, outputs_1, NULL, 0, 0, NULL},
};

static const char *const labels_0[] = {"RELU", "NONE"};

static const OpforgeImplementation implementations_0[] = {
    {"everything",
     "demo::everything (ops.py:50)",
     "x: fp32, [rows, 8], compact\nbias: fp32, [8], compact or NULL\nstate: fp32, [rows], compact\nmode: RELU or NONE\nrows: at least 1\ns_i32: -5 to 5\ns_u8: 0 or 3 or 200\nwhere rows <= 1000\nnot where 1000 < rows: aten.mm at ops.py:62"},
};

static const int first_cases_0[] = {0, 4};

static const TensorInfo tensors_0[] = {
    {"x", 0},
    {"bias", OF_OPTIONAL},
    {"state", OF_WRITTEN},
    {"out", OF_OUTPUT | OF_OPTIONAL},
    {"stats", OF_OUTPUT | OF_OPTIONAL},
};

static const ChoiceInfo choices_0[] = {
    {"mode", 2, labels_0},
};

static const size_t attribute_offsets_0[] = {offsetof(Values, device_multi_processor_count)};

static const int attributes_0[] = {OF_DEVICE_MULTI_PROCESSOR_COUNT};

static const Case cases_0[] = {
    {"x fp32 [rows, 8], bias fp32 [8], state fp32 [rows], mode=RELU",
     keys_0, bind_0, 9, checks_0, 15, fields_0, 2, paths_0},
    {"x fp32 [rows, 8], bias fp32 [8], state fp32 [rows], mode=NONE",
     keys_1, bind_0, 9, checks_0, 15, fields_0, 2, paths_1},
    {"x fp32 [rows, 8], bias NULL, state fp32 [rows], mode=RELU",
     keys_2, bind_0, 7, checks_1, 15, fields_0, 2, paths_2},
    {"x fp32 [rows, 8], bias NULL, state fp32 [rows], mode=NONE",
     keys_3, bind_0, 7, checks_1, 15, fields_0, 2, paths_3},
};

static const Operation operation = {
    "demo_everything",
    1, implementations_0, first_cases_0,
    3, 2, tensors_0,
    1, choices_0,
    0, NULL,
    1, attribute_offsets_0, attributes_0,
    4, cases_0,
};

OpforgeStatus demo_everything(const OpforgeTensor *x, const OpforgeTensor *bias,
                              OpforgeTensor *state, float s_fp16, float s_bf16,
                              float s_fp32, double s_fp64, int8_t s_i8,
                              int16_t s_i16, int32_t s_i32, int64_t s_i64,
                              uint8_t s_u8, uint16_t s_u16, uint32_t s_u32,
                              uint64_t s_u64, uint8_t s_i1,
                              demo_everything_mode mode, OpforgeTensor *out,
                              OpforgeTensor *stats, void *stream)
{
    const OpforgeTensor *const of_given[] = {x, bias, state, out, stats};
    const int of_choices[] = {(int)mode};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    of_values.s_fp16 = s_fp16;
    of_values.s_bf16 = s_bf16;
    of_values.s_fp32 = s_fp32;
    of_values.s_fp64 = s_fp64;
    of_values.s_i8 = s_i8;
    of_values.s_i16 = s_i16;
    of_values.s_i32 = s_i32;
    of_values.s_i64 = s_i64;
    of_values.s_u8 = s_u8;
    of_values.s_u16 = s_u16;
    of_values.s_u32 = s_u32;
    of_values.s_u64 = (int64_t)s_u64;
    of_values.s_i1 = s_i1 != 0;
    return of_call(&operation, of_given, of_choices, &of_values, stream);
}

OpforgeStatus demo_everything_with(int implementation, const OpforgeTensor *x,
                                   const OpforgeTensor *bias, OpforgeTensor *state,
                                   float s_fp16, float s_bf16, float s_fp32,
                                   double s_fp64, int8_t s_i8, int16_t s_i16,
                                   int32_t s_i32, int64_t s_i64, uint8_t s_u8,
                                   uint16_t s_u16, uint32_t s_u32, uint64_t s_u64,
                                   uint8_t s_i1, demo_everything_mode mode,
                                   OpforgeTensor *out, OpforgeTensor *stats,
                                   void *stream)
{
    const OpforgeTensor *const of_given[] = {x, bias, state, out, stats};
    const int of_choices[] = {(int)mode};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    of_values.s_fp16 = s_fp16;
    of_values.s_bf16 = s_bf16;
    of_values.s_fp32 = s_fp32;
    of_values.s_fp64 = s_fp64;
    of_values.s_i8 = s_i8;
    of_values.s_i16 = s_i16;
    of_values.s_i32 = s_i32;
    of_values.s_i64 = s_i64;
    of_values.s_u8 = s_u8;
    of_values.s_u16 = s_u16;
    of_values.s_u32 = s_u32;
    of_values.s_u64 = (int64_t)s_u64;
    of_values.s_i1 = s_i1 != 0;
    return of_call_with(&operation, implementation, of_given, of_choices, &of_values, stream);
}

OpforgeStatus demo_everything_outputs(const OpforgeTensor *x,
                                      const OpforgeTensor *bias,
                                      const OpforgeTensor *state, float s_fp16,
                                      float s_bf16, float s_fp32, double s_fp64,
                                      int8_t s_i8, int16_t s_i16, int32_t s_i32,
                                      int64_t s_i64, uint8_t s_u8, uint16_t s_u16,
                                      uint32_t s_u32, uint64_t s_u64, uint8_t s_i1,
                                      demo_everything_mode mode, OpforgeTensor *out,
                                      OpforgeTensor *stats)
{
    const OpforgeTensor *const of_inputs[] = {x, bias, state};
    OpforgeTensor *const of_filled[] = {out, stats};
    const int of_choices[] = {(int)mode};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    of_values.s_fp16 = s_fp16;
    of_values.s_bf16 = s_bf16;
    of_values.s_fp32 = s_fp32;
    of_values.s_fp64 = s_fp64;
    of_values.s_i8 = s_i8;
    of_values.s_i16 = s_i16;
    of_values.s_i32 = s_i32;
    of_values.s_i64 = s_i64;
    of_values.s_u8 = s_u8;
    of_values.s_u16 = s_u16;
    of_values.s_u32 = s_u32;
    of_values.s_u64 = (int64_t)s_u64;
    of_values.s_i1 = s_i1 != 0;
    return of_outputs(&operation, of_inputs, of_filled, of_choices, &of_values);
}

OpforgeStatus demo_everything_outputs_with(int implementation,
                                           const OpforgeTensor *x,
                                           const OpforgeTensor *bias,
                                           const OpforgeTensor *state, float s_fp16,
                                           float s_bf16, float s_fp32,
                                           double s_fp64, int8_t s_i8,
                                           int16_t s_i16, int32_t s_i32,
                                           int64_t s_i64, uint8_t s_u8,
                                           uint16_t s_u16, uint32_t s_u32,
                                           uint64_t s_u64, uint8_t s_i1,
                                           demo_everything_mode mode,
                                           OpforgeTensor *out, OpforgeTensor *stats)
{
    const OpforgeTensor *const of_inputs[] = {x, bias, state};
    OpforgeTensor *const of_filled[] = {out, stats};
    const int of_choices[] = {(int)mode};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    of_values.s_fp16 = s_fp16;
    of_values.s_bf16 = s_bf16;
    of_values.s_fp32 = s_fp32;
    of_values.s_fp64 = s_fp64;
    of_values.s_i8 = s_i8;
    of_values.s_i16 = s_i16;
    of_values.s_i32 = s_i32;
    of_values.s_i64 = s_i64;
    of_values.s_u8 = s_u8;
    of_values.s_u16 = s_u16;
    of_values.s_u32 = s_u32;
    of_values.s_u64 = (int64_t)s_u64;
    of_values.s_i1 = s_i1 != 0;
    return of_outputs_with(&operation, implementation, of_inputs, of_filled, of_choices, &of_values);
}

OpforgeStatus demo_everything_workspace(const OpforgeTensor *x,
                                        const OpforgeTensor *bias,
                                        const OpforgeTensor *state, float s_fp16,
                                        float s_bf16, float s_fp32, double s_fp64,
                                        int8_t s_i8, int16_t s_i16, int32_t s_i32,
                                        int64_t s_i64, uint8_t s_u8, uint16_t s_u16,
                                        uint32_t s_u32, uint64_t s_u64,
                                        uint8_t s_i1, demo_everything_mode mode,
                                        const OpforgeTensor *out,
                                        const OpforgeTensor *stats, int64_t *bytes)
{
    const OpforgeTensor *const of_given[] = {x, bias, state, out, stats};
    const int of_choices[] = {(int)mode};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    of_values.s_fp16 = s_fp16;
    of_values.s_bf16 = s_bf16;
    of_values.s_fp32 = s_fp32;
    of_values.s_fp64 = s_fp64;
    of_values.s_i8 = s_i8;
    of_values.s_i16 = s_i16;
    of_values.s_i32 = s_i32;
    of_values.s_i64 = s_i64;
    of_values.s_u8 = s_u8;
    of_values.s_u16 = s_u16;
    of_values.s_u32 = s_u32;
    of_values.s_u64 = (int64_t)s_u64;
    of_values.s_i1 = s_i1 != 0;
    return of_workspace(&operation, of_given, of_choices, &of_values, bytes);
}

OpforgeStatus demo_everything_workspace_with(int implementation,
                                             const OpforgeTensor *x,
                                             const OpforgeTensor *bias,
                                             const OpforgeTensor *state,
                                             float s_fp16, float s_bf16,
                                             float s_fp32, double s_fp64,
                                             int8_t s_i8, int16_t s_i16,
                                             int32_t s_i32, int64_t s_i64,
                                             uint8_t s_u8, uint16_t s_u16,
                                             uint32_t s_u32, uint64_t s_u64,
                                             uint8_t s_i1,
                                             demo_everything_mode mode,
                                             const OpforgeTensor *out,
                                             const OpforgeTensor *stats,
                                             int64_t *bytes)
{
    const OpforgeTensor *const of_given[] = {x, bias, state, out, stats};
    const int of_choices[] = {(int)mode};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    of_values.s_fp16 = s_fp16;
    of_values.s_bf16 = s_bf16;
    of_values.s_fp32 = s_fp32;
    of_values.s_fp64 = s_fp64;
    of_values.s_i8 = s_i8;
    of_values.s_i16 = s_i16;
    of_values.s_i32 = s_i32;
    of_values.s_i64 = s_i64;
    of_values.s_u8 = s_u8;
    of_values.s_u16 = s_u16;
    of_values.s_u32 = s_u32;
    of_values.s_u64 = (int64_t)s_u64;
    of_values.s_i1 = s_i1 != 0;
    return of_workspace_with(&operation, implementation, of_given, of_choices, &of_values, bytes);
}

int demo_everything_implementations(const OpforgeImplementation **list)
{
    return of_implementations(&operation, list);
}
