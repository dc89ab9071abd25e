/* demo_matmul: demo::matmul (ops.py:40). Written by opforge. */

#include "runtime.h"

#include "api.h"
#include "kernels.h"

#include <string.h>

/* The sizes and scalars of a call. */
typedef struct {
    int64_t m;
    int64_t k;
    int64_t a_stride_0; /* a.stride[0] */
    int64_t a_stride_1; /* a.stride[1] */
    int64_t n;
    int64_t b_stride_0; /* b.stride[0] */
    int64_t b_stride_1; /* b.stride[1] */
} Values;

/* matmul_kernel, grid ((m + 15) // 16, (n + 15) // 16, 1) */
static void numbers_0(const void *values, const uint64_t *at, int64_t *n, int *overflow)
{
    const Values *v = (const Values *)values;
    n[0] = of_floordiv(of_add(v->m, 15, overflow), 16, overflow);
    n[1] = of_floordiv(of_add(v->n, 15, overflow), 16, overflow);
    n[2] = 1;
    n[3] = (int64_t)at[0]; /* a_ptr */
    n[4] = (int64_t)at[1]; /* b_ptr */
    n[5] = (int64_t)at[2]; /* out_ptr */
    n[6] = v->m; /* m */
    n[7] = v->n; /* n */
    n[8] = v->k; /* k */
    n[9] = v->a_stride_0; /* a_stride[0] */
    n[10] = v->a_stride_1; /* a_stride[1] */
    n[11] = v->b_stride_0; /* b_stride[0] */
    n[12] = v->b_stride_1; /* b_stride[1] */
}

static const char *const arguments_of_0[] = {
    "a (a_ptr of the kernel)",
    "b (b_ptr of the kernel)",
    "out (out_ptr of the kernel)",
    "m",
    "n",
    "k",
    "a_stride[0]",
    "a_stride[1]",
    "b_stride[0]",
    "b_stride[1]",
};

static const uint8_t types_0[] = {
    OF_POINTER | OF_BY_16,
    OF_POINTER | OF_BY_16,
    OF_POINTER | OF_BY_16,
    OF_I32,
    OF_I32,
    OF_I32,
    OF_I32,
    OF_ONE,
    OF_I32,
    OF_ONE,
};

static const uint8_t types_1[] = {
    OF_POINTER,
    OF_POINTER,
    OF_POINTER,
    OF_I32,
    OF_I32,
    OF_I32,
    OF_I32,
    OF_I32,
    OF_I32,
    OF_I32,
};

static const uint8_t types_2[] = {
    OF_POINTER,
    OF_POINTER,
    OF_POINTER,
    OF_I64,
    OF_I64,
    OF_I64,
    OF_I64,
    OF_I64,
    OF_I64,
    OF_I64,
};

static const Variant variants_0[] = {
    {KERNEL_matmul_ones, types_0},
    {KERNEL_matmul_plain, types_1},
    {KERNEL_matmul_wide, types_2},
};

static const Launch launch_0[] = {
    {"matmul_kernel", "kernels.py:30", 10, arguments_of_0, 3, variants_0},
};

static const uint32_t outputs_0[] = {OF_KEY(2, 32, 2)};

/* out [m, n] */
static void layouts_0(const void *values, Layout *layouts, int *overflow)
{
    const Values *v = (const Values *)values;
    (void)overflow;
    layouts[0].sizes[0] = v->m;
    layouts[0].strides[0] = v->n;
    layouts[0].sizes[1] = v->n;
    layouts[0].strides[1] = 1;
}

static const Step steps_0[] = {
    {OF_LAUNCH, 0, 0, 0, &launch_0[0], numbers_0},
};

static const uint32_t keys_0[] = {OF_KEY(2, 32, 2), OF_KEY(2, 32, 2)};

static void bind_0(const View *views, void *values)
{
    Values *v = (Values *)values;
    v->m = views[0].shape[0];
    v->k = views[0].shape[1];
    v->a_stride_0 = views[0].strides[0];
    v->a_stride_1 = views[0].strides[1];
    v->n = views[1].shape[1];
    v->b_stride_0 = views[1].strides[0];
    v->b_stride_1 = views[1].strides[1];
}

static const Check checks_0[] = {
    OF_CHECK_SIZE_LIKE(1, 0, 0, 1, "k"),
    OF_CHECK_RANGE(0, "k", offsetof(Values, k), 1, 4096),
};

static const Field fields_0[] = {
    {"m", offsetof(Values, m), 0},
    {"k", offsetof(Values, k), 0},
    {"a.stride[0]", offsetof(Values, a_stride_0), 0},
    {"a.stride[1]", offsetof(Values, a_stride_1), 0},
    {"n", offsetof(Values, n), 0},
    {"b.stride[0]", offsetof(Values, b_stride_0), 0},
    {"b.stride[1]", offsetof(Values, b_stride_1), 0},
};

static const Path paths_0[] = {
    {NULL, NULL, NULL, outputs_0, layouts_0, 0, 1, steps_0},
};

static const OpforgeImplementation implementations_0[] = {
    {"matmul",
     "demo::matmul (ops.py:40)",
     "a: fp32, [m, k], any strides\nb: fp32, [k, n], any strides\nk: 1 to 4096"},
};

static const int first_cases_0[] = {0, 1};

static const TensorInfo tensors_0[] = {
    {"a", 0},
    {"b", 0},
    {"out", OF_OUTPUT | OF_OPTIONAL},
};

static const Case cases_0[] = {
    {"a fp32 [m, k] strides [a.stride[0], a.stride[1]], b fp32 [k, n] strides [b.stride[0], b.stride[1]]",
     keys_0, bind_0, 2, checks_0, 7, fields_0, 1, paths_0},
};

static const Operation operation = {
    "demo_matmul",
    1, implementations_0, first_cases_0,
    2, 1, tensors_0,
    0, NULL,
    0, NULL,
    0, NULL, NULL,
    1, cases_0,
};

OpforgeStatus demo_matmul(const OpforgeTensor *a, const OpforgeTensor *b,
                          OpforgeTensor *out, void *stream)
{
    const OpforgeTensor *const of_given[] = {a, b, out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_call(&operation, of_given, NULL, &of_values, stream);
}

OpforgeStatus demo_matmul_with(int implementation, const OpforgeTensor *a,
                               const OpforgeTensor *b, OpforgeTensor *out,
                               void *stream)
{
    const OpforgeTensor *const of_given[] = {a, b, out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_call_with(&operation, implementation, of_given, NULL, &of_values, stream);
}

OpforgeStatus demo_matmul_outputs(const OpforgeTensor *a, const OpforgeTensor *b,
                                  OpforgeTensor *out)
{
    const OpforgeTensor *const of_inputs[] = {a, b};
    OpforgeTensor *const of_filled[] = {out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_outputs(&operation, of_inputs, of_filled, NULL, &of_values);
}

OpforgeStatus demo_matmul_outputs_with(int implementation, const OpforgeTensor *a,
                                       const OpforgeTensor *b, OpforgeTensor *out)
{
    const OpforgeTensor *const of_inputs[] = {a, b};
    OpforgeTensor *const of_filled[] = {out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_outputs_with(&operation, implementation, of_inputs, of_filled, NULL, &of_values);
}

OpforgeStatus demo_matmul_workspace(const OpforgeTensor *a, const OpforgeTensor *b,
                                    const OpforgeTensor *out, int64_t *bytes)
{
    const OpforgeTensor *const of_given[] = {a, b, out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_workspace(&operation, of_given, NULL, &of_values, bytes);
}

OpforgeStatus demo_matmul_workspace_with(int implementation, const OpforgeTensor *a,
                                         const OpforgeTensor *b,
                                         const OpforgeTensor *out, int64_t *bytes)
{
    const OpforgeTensor *const of_given[] = {a, b, out};
    Values of_values;
    memset(&of_values, 0, sizeof of_values);
    return of_workspace_with(&operation, implementation, of_given, NULL, &of_values, bytes);
}

int demo_matmul_implementations(const OpforgeImplementation **list)
{
    return of_implementations(&operation, list);
}
