/* demo_add: demo::add (ops.py:10). Written by opforge. */

#include "runtime.h"

#include "api.h"
#include "kernels.h"

#include <string.h>

/* The sizes and scalars of a call. */
typedef struct {
    int64_t m;
    int64_t n;
} Values;

/* m == 0 */
static int guards_0(const void *values, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    if (!(v->m == 0)) {
        return 0;
    }
    return -1;
}

static const char *const conditions_0[] = {"m == 0 does not hold (ops.py:12)"};

static const uint32_t outputs_0[] = {OF_KEY(2, 16, 1)};

/* out [m] */
static void layouts_0(const void *values, Layout *layouts, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    layouts[0].sizes[0] = v->m;
    layouts[0].strides[0] = 1;
}

/* add_kernel, grid ((m + 127) // 128, 1, 1), BLOCK=128 */
static void numbers_0(const void *values, const uint64_t *at, int64_t *n, int *overflow)
{
    const Values *v = (const Values *)values;
    n[0] = of_floordiv(of_add(v->m, 127, overflow), 128, overflow);
    n[1] = 1;
    n[2] = 1;
    n[3] = (int64_t)at[0]; /* x_ptr */
    n[4] = (int64_t)at[1]; /* y_ptr */
    n[5] = (int64_t)at[2]; /* out_ptr */
    n[6] = v->m; /* n */
}

static const char *const arguments_of_0[] = {
    "x (x_ptr of the kernel)",
    "y (y_ptr of the kernel)",
    "out (out_ptr of the kernel)",
    "n",
};

static const uint8_t types_0[] = {
    OF_POINTER | OF_BY_16,
    OF_POINTER | OF_BY_16,
    OF_POINTER | OF_BY_16,
    OF_I32 | OF_BY_16,
};

static const uint8_t types_1[] = {OF_POINTER, OF_POINTER, OF_POINTER, OF_I32};

static const uint8_t types_2[] = {OF_POINTER, OF_POINTER, OF_POINTER, OF_I64};

static const Variant variants_0[] = {
    {KERNEL_add_fp16_aligned, types_0},
    {KERNEL_add_fp16_plain, types_1},
    {KERNEL_add_fp16_wide, types_2},
};

static const Launch launch_0[] = {
    {"add_kernel", "ops.py:13", 4, arguments_of_0, 3, variants_0},
};

/* m != 0 */
static int guards_1(const void *values, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    if (!(v->m != 0)) {
        return 0;
    }
    return -1;
}

static const char *const conditions_1[] = {"m != 0 does not hold (ops.py:12)"};

static const Step steps_0[] = {
    {OF_LAUNCH, 0, 0, 0, &launch_0[0], numbers_0},
};

static const uint32_t keys_0[] = {OF_KEY(2, 16, 1), OF_KEY(2, 16, 1)};

static void bind_0(const View *views, void *values)
{
    Values *v = (Values *)values;
    v->m = views[0].shape[0];
}

static const Check checks_0[] = {
    OF_CHECK_COMPACT(0),
    OF_CHECK_COMPACT(1),
    OF_CHECK_SIZE_LIKE(1, 0, 0, 0, "m"),
};

static const Field fields_0[] = {
    {"m", offsetof(Values, m), 0},
};

static const Path paths_0[] = {
    {NULL, guards_0, conditions_0, outputs_0, layouts_0, 0, 0, NULL},
    {NULL, guards_1, conditions_1, outputs_0, layouts_0, 0, 1, steps_0},
};

/* m * n == 0 */
static int guards_2(const void *values, int *overflow)
{
    const Values *v = (const Values *)values;
    if (!(of_mul(v->m, v->n, overflow) == 0)) {
        return 0;
    }
    return -1;
}

static const char *const conditions_2[] = {"m * n == 0 does not hold (ops.py:12)"};

static const uint32_t outputs_1[] = {OF_KEY(2, 16, 2)};

/* out [m, n] */
static void layouts_1(const void *values, Layout *layouts, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    layouts[0].sizes[0] = v->m;
    layouts[0].strides[0] = v->n;
    layouts[0].sizes[1] = v->n;
    layouts[0].strides[1] = 1;
}

/* add_kernel, grid ((m * n + 127) // 128, 1, 1), BLOCK=128 */
static void numbers_1(const void *values, const uint64_t *at, int64_t *n, int *overflow)
{
    const Values *v = (const Values *)values;
    n[0] = of_floordiv(of_add(of_mul(v->m, v->n, overflow), 127, overflow), 128, overflow);
    n[1] = 1;
    n[2] = 1;
    n[3] = (int64_t)at[0]; /* x_ptr */
    n[4] = (int64_t)at[1]; /* y_ptr */
    n[5] = (int64_t)at[2]; /* out_ptr */
    n[6] = of_mul(v->m, v->n, overflow); /* n */
}

/* m * n != 0 */
static int guards_3(const void *values, int *overflow)
{
    const Values *v = (const Values *)values;
    if (!(of_mul(v->m, v->n, overflow) != 0)) {
        return 0;
    }
    return -1;
}

static const char *const conditions_3[] = {"m * n != 0 does not hold (ops.py:12)"};

static const Step steps_1[] = {
    {OF_LAUNCH, 0, 0, 0, &launch_0[0], numbers_1},
};

static const uint32_t keys_1[] = {OF_KEY(2, 16, 2), OF_KEY(2, 16, 2)};

static void bind_1(const View *views, void *values)
{
    Values *v = (Values *)values;
    v->m = views[0].shape[0];
    v->n = views[0].shape[1];
}

static const Check checks_1[] = {
    OF_CHECK_COMPACT(0),
    OF_CHECK_COMPACT(1),
    OF_CHECK_SIZE_LIKE(1, 0, 0, 0, "m"),
    OF_CHECK_SIZE_LIKE(1, 1, 0, 1, "n"),
};

static const Field fields_1[] = {
    {"m", offsetof(Values, m), 0},
    {"n", offsetof(Values, n), 0},
};

static const Path paths_1[] = {
    {NULL, guards_2, conditions_2, outputs_1, layouts_1, 0, 0, NULL},
    {NULL, guards_3, conditions_3, outputs_1, layouts_1, 0, 1, steps_1},
};

static const uint32_t outputs_2[] = {OF_KEY(2, 32, 1)};

static const Variant variants_1[] = {
    {KERNEL_add_fp32_aligned, types_0},
    {KERNEL_add_fp32_plain, types_1},
    {KERNEL_add_fp32_wide, types_2},
};

static const Launch launch_1[] = {
    {"add_kernel", "ops.py:13", 4, arguments_of_0, 3, variants_1},
};

static const Step steps_2[] = {
    {OF_LAUNCH, 0, 0, 0, &launch_1[0], numbers_0},
};

static const uint32_t keys_2[] = {OF_KEY(2, 32, 1), OF_KEY(2, 32, 1)};

static const Path paths_2[] = {
    {NULL, guards_0, conditions_0, outputs_2, layouts_0, 0, 0, NULL},
    {NULL, guards_1, conditions_1, outputs_2, layouts_0, 0, 1, steps_2},
};

static const uint32_t outputs_3[] = {OF_KEY(2, 32, 2)};

static const Step steps_3[] = {
    {OF_LAUNCH, 0, 0, 0, &launch_1[0], numbers_1},
};

static const uint32_t keys_3[] = {OF_KEY(2, 32, 2), OF_KEY(2, 32, 2)};

static const Path paths_3[] = {
    {NULL, guards_2, conditions_2, outputs_3, layouts_1, 0, 0, NULL},
    {NULL, guards_3, conditions_3, outputs_3, layouts_1, 0, 1, steps_3},
};

static const OpforgeImplementation implementations_0[] = {
    {"add",
     "demo::add (ops.py:10)",
     "x: fp16 or fp32, [m], compact or [m, n], compact\ny: fp16 or fp32, [m], compact or [m, n], compact"},
};

static const int first_cases_0[] = {0, 4};

static const TensorInfo tensors_0[] = {
    {"x", 0},
    {"y", 0},
    {"out", OF_OUTPUT | OF_OPTIONAL},
};

static const Case cases_0[] = {
    {"x fp16 [m], y fp16 [m]",
     keys_0, bind_0, 3, checks_0, 1, fields_0, 2, paths_0},
    {"x fp16 [m, n], y fp16 [m, n]",
     keys_1, bind_1, 4, checks_1, 2, fields_1, 2, paths_1},
    {"x fp32 [m], y fp32 [m]",
     keys_2, bind_0, 3, checks_0, 1, fields_0, 2, paths_2},
    {"x fp32 [m, n], y fp32 [m, n]",
     keys_3, bind_1, 4, checks_1, 2, fields_1, 2, paths_3},
};

static const Operation operation = {
    "demo_add",
    1, implementations_0, first_cases_0,
    2, 1, tensors_0,
    0, NULL,
    0, NULL,
    0, NULL, NULL,
    4, cases_0,
};

OpforgeStatus demo_add(const OpforgeTensor *x, const OpforgeTensor *y,
                       OpforgeTensor *out, void *stream)
{
    const OpforgeTensor *const of_given[] = {x, y, out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_call(&operation, of_given, NULL, &of_values, stream);
}

OpforgeStatus demo_add_with(int implementation, const OpforgeTensor *x,
                            const OpforgeTensor *y, OpforgeTensor *out,
                            void *stream)
{
    const OpforgeTensor *const of_given[] = {x, y, out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_call_with(&operation, implementation, of_given, NULL, &of_values, stream);
}

OpforgeStatus demo_add_outputs(const OpforgeTensor *x, const OpforgeTensor *y,
                               OpforgeTensor *out)
{
    const OpforgeTensor *const of_inputs[] = {x, y};
    OpforgeTensor *const of_filled[] = {out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_outputs(&operation, of_inputs, of_filled, NULL, &of_values);
}

OpforgeStatus demo_add_outputs_with(int implementation, const OpforgeTensor *x,
                                    const OpforgeTensor *y, OpforgeTensor *out)
{
    const OpforgeTensor *const of_inputs[] = {x, y};
    OpforgeTensor *const of_filled[] = {out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_outputs_with(&operation, implementation, of_inputs, of_filled, NULL, &of_values);
}

OpforgeStatus demo_add_workspace(const OpforgeTensor *x, const OpforgeTensor *y,
                                 const OpforgeTensor *out, int64_t *bytes)
{
    const OpforgeTensor *const of_given[] = {x, y, out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_workspace(&operation, of_given, NULL, &of_values, bytes);
}

OpforgeStatus demo_add_workspace_with(int implementation, const OpforgeTensor *x,
                                      const OpforgeTensor *y,
                                      const OpforgeTensor *out, int64_t *bytes)
{
    const OpforgeTensor *const of_given[] = {x, y, out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_workspace_with(&operation, implementation, of_given, NULL, &of_values, bytes);
}

int demo_add_implementations(const OpforgeImplementation **list)
{
    return of_implementations(&operation, list);
}
