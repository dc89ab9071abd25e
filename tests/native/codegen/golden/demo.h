/* demo: 5 operators for sm_80, sm_90a.
 *
 * Every function returns a status; if it is not OPFORGE_OK, demo_last_error() explains it. Work
 * is put on the given stream of the tensors' device, a CUstream (or cudaStream_t) or a hipStream_t,
 * NULL for the legacy default stream. No function waits for the work.
 *
 * Written by opforge.
 */
#ifndef DEMO_H
#define DEMO_H

#include "opforge/abi.h"

#if OPFORGE_ABI_VERSION != 1
#error "this header and that of another opforge library have different ABIs"
#endif

typedef enum {
    DEMO_EVERYTHING_MODE_RELU = 0, /* 'relu' */
    DEMO_EVERYTHING_MODE_NONE = 1 /* None */
} demo_everything_mode;

typedef enum {
    DEMO_SPECIAL_WHAT_SHARED = 0, /* 'shared' */
    DEMO_SPECIAL_WHAT_CLUSTER = 1, /* 'cluster' */
    DEMO_SPECIAL_WHAT_CLUSTER16 = 2, /* 'cluster16' */
    DEMO_SPECIAL_WHAT_COOPERATIVE = 3, /* 'cooperative' */
    DEMO_SPECIAL_WHAT_PDL = 4, /* 'pdl' */
    DEMO_SPECIAL_WHAT_SCRATCH = 5, /* 'scratch' */
    DEMO_SPECIAL_WHAT_PROFILE = 6, /* 'profile' */
    DEMO_SPECIAL_WHAT_HUGE = 7, /* 'huge' */
    DEMO_SPECIAL_WHAT_LATE = 8 /* 'late' */
} demo_special_what;

/* Linking fails if library and header have different ABIs. A program that opens the library
 * with dlopen defines OPFORGE_NO_LINK_CHECK and compares demo_abi_version(). */
OPFORGE_API const int demo_abi_1;
OPFORGE_API int demo_abi_version(void);
#ifndef OPFORGE_NO_LINK_CHECK
static const int *const demo_abi_check __attribute__((used)) = &demo_abi_1;
#endif

/* Loads every kernel on a device, for graphs and for a fast first call. Otherwise a kernel is
 * loaded when it is first launched. */
OPFORGE_API OpforgeStatus demo_load(int device);

/* Unloads the kernels of a device and releases its context. No call may be running. */
OPFORGE_API OpforgeStatus demo_unload(int device);

/* Sets the source of workspace; NULL, NULL for the driver's (cuMemAllocAsync, hipMallocAsync). */
OPFORGE_API OpforgeStatus demo_set_allocator(OpforgeAllocate allocate, OpforgeRelease release,
                                                void *context);

/* Explains the last failure of this thread; valid until its next one. */
OPFORGE_API const char *demo_last_error(void);

/* The contents as JSON: operators, cases, guards, kernels, architectures, versions. */
OPFORGE_API const char *demo_manifest(void);

/* The sum of two tensors.
 * demo::add (ops.py:10)
 *   x: fp16 or fp32, [m], compact or [m, n], compact
 *   y: fp16 or fp32, [m], compact or [m, n], compact
 *   out: fp16 [m] or fp16 [m, n] or fp32 [m] or fp32 [m, n]
 */
OPFORGE_API OpforgeStatus demo_add(const OpforgeTensor *x, const OpforgeTensor *y,
                                   OpforgeTensor *out, void *stream);

/* Fills in type, shape, strides and device of the outputs of the call above. Shape and strides
 * have room for OPFORGE_MAX_RANK (8) numbers each.
 */
OPFORGE_API OpforgeStatus demo_add_outputs(const OpforgeTensor *x, const OpforgeTensor *y,
                                           OpforgeTensor *out);

/* Tells how many bytes of workspace the call above would allocate, and refuses what it would
 * refuse. The data of a tensor may be NULL. An output may be NULL; it is then taken to be as
 * demo_add_outputs describes it.
 */
OPFORGE_API OpforgeStatus demo_add_workspace(const OpforgeTensor *x, const OpforgeTensor *y,
                                             const OpforgeTensor *out, int64_t *bytes);

/* The same with a given implementation, where the call above uses the first that covers it. An
 * index out of range is OPFORGE_INVALID_ARGUMENT.
 */
OPFORGE_API OpforgeStatus demo_add_with(int implementation, const OpforgeTensor *x,
                                        const OpforgeTensor *y, OpforgeTensor *out,
                                        void *stream);
OPFORGE_API OpforgeStatus demo_add_outputs_with(int implementation, const OpforgeTensor *x,
                                                const OpforgeTensor *y, OpforgeTensor *out);
OPFORGE_API OpforgeStatus demo_add_workspace_with(int implementation, const OpforgeTensor *x,
                                                  const OpforgeTensor *y,
                                                  const OpforgeTensor *out, int64_t *bytes);

/* Returns the number of implementations; if list is not NULL, also their names, sources and
 * guards, in the order in which they are tried. They live as long as the library is loaded.
 */
OPFORGE_API int demo_add_implementations(const OpforgeImplementation **list);

/* demo::matmul (ops.py:40)
 *   a: fp32, [m, k], any strides
 *   b: fp32, [k, n], any strides
 *   out: fp32 [m, n]
 */
OPFORGE_API OpforgeStatus demo_matmul(const OpforgeTensor *a, const OpforgeTensor *b,
                                      OpforgeTensor *out, void *stream);

/* Fills in type, shape, strides and device of the outputs of the call above. Shape and strides
 * have room for OPFORGE_MAX_RANK (8) numbers each.
 */
OPFORGE_API OpforgeStatus demo_matmul_outputs(const OpforgeTensor *a, const OpforgeTensor *b,
                                              OpforgeTensor *out);

/* Tells how many bytes of workspace the call above would allocate, and refuses what it would
 * refuse. The data of a tensor may be NULL. An output may be NULL; it is then taken to be as
 * demo_matmul_outputs describes it.
 */
OPFORGE_API OpforgeStatus demo_matmul_workspace(const OpforgeTensor *a, const OpforgeTensor *b,
                                                const OpforgeTensor *out, int64_t *bytes);

/* The same with a given implementation, where the call above uses the first that covers it. An
 * index out of range is OPFORGE_INVALID_ARGUMENT.
 */
OPFORGE_API OpforgeStatus demo_matmul_with(int implementation, const OpforgeTensor *a,
                                           const OpforgeTensor *b, OpforgeTensor *out,
                                           void *stream);
OPFORGE_API OpforgeStatus demo_matmul_outputs_with(int implementation, const OpforgeTensor *a,
                                                   const OpforgeTensor *b, OpforgeTensor *out);
OPFORGE_API OpforgeStatus demo_matmul_workspace_with(int implementation, const OpforgeTensor *a,
                                                     const OpforgeTensor *b,
                                                     const OpforgeTensor *out, int64_t *bytes);

/* Returns the number of implementations; if list is not NULL, also their names, sources and
 * guards, in the order in which they are tried. They live as long as the library is loaded.
 */
OPFORGE_API int demo_matmul_implementations(const OpforgeImplementation **list);

/* demo::everything (ops.py:50)
 *   x: The rows.
 *   bias: fp32, [8], compact, may be NULL
 *   state: fp32, [rows], compact, written to
 *   s_fp16: fp16 (rounded to it)
 *   s_bf16: bf16 (rounded to it)
 *   s_fp32: fp32
 *   s_fp64: fp64
 *   s_i8: i8
 *   s_i16: i16
 *   s_i32: i32
 *   s_i64: i64
 *   s_u8: u8
 *   s_u16: u16
 *   s_u32: u32
 *   s_u64: u64
 *   s_i1: i1
 *   mode: DEMO_EVERYTHING_MODE_RELU or DEMO_EVERYTHING_MODE_NONE
 *   out: fp32 [rows, 8]
 *   stats: fp64 [rows] or none
 */
OPFORGE_API OpforgeStatus demo_everything(const OpforgeTensor *x, const OpforgeTensor *bias,
                                          OpforgeTensor *state, float s_fp16, float s_bf16,
                                          float s_fp32, double s_fp64, int8_t s_i8,
                                          int16_t s_i16, int32_t s_i32, int64_t s_i64,
                                          uint8_t s_u8, uint16_t s_u16, uint32_t s_u32,
                                          uint64_t s_u64, uint8_t s_i1,
                                          demo_everything_mode mode, OpforgeTensor *out,
                                          OpforgeTensor *stats, void *stream);

/* Fills in type, shape, strides and device of the outputs of the call above. One that the call
 * does not have gets dtype.bits 0, and may be NULL in that call. Shape and strides have room for
 * OPFORGE_MAX_RANK (8) numbers each.
 */
OPFORGE_API OpforgeStatus demo_everything_outputs(const OpforgeTensor *x,
                                                  const OpforgeTensor *bias,
                                                  const OpforgeTensor *state, float s_fp16,
                                                  float s_bf16, float s_fp32, double s_fp64,
                                                  int8_t s_i8, int16_t s_i16, int32_t s_i32,
                                                  int64_t s_i64, uint8_t s_u8, uint16_t s_u16,
                                                  uint32_t s_u32, uint64_t s_u64, uint8_t s_i1,
                                                  demo_everything_mode mode, OpforgeTensor *out,
                                                  OpforgeTensor *stats);

/* Tells how many bytes of workspace the call above would allocate, and refuses what it would
 * refuse. The data of a tensor may be NULL. An output may be NULL; it is then taken to be as
 * demo_everything_outputs describes it.
 */
OPFORGE_API OpforgeStatus demo_everything_workspace(const OpforgeTensor *x,
                                                    const OpforgeTensor *bias,
                                                    const OpforgeTensor *state, float s_fp16,
                                                    float s_bf16, float s_fp32, double s_fp64,
                                                    int8_t s_i8, int16_t s_i16, int32_t s_i32,
                                                    int64_t s_i64, uint8_t s_u8, uint16_t s_u16,
                                                    uint32_t s_u32, uint64_t s_u64,
                                                    uint8_t s_i1, demo_everything_mode mode,
                                                    const OpforgeTensor *out,
                                                    const OpforgeTensor *stats, int64_t *bytes);

/* The same with a given implementation, where the call above uses the first that covers it. An
 * index out of range is OPFORGE_INVALID_ARGUMENT.
 */
OPFORGE_API OpforgeStatus demo_everything_with(int implementation, const OpforgeTensor *x,
                                               const OpforgeTensor *bias, OpforgeTensor *state,
                                               float s_fp16, float s_bf16, float s_fp32,
                                               double s_fp64, int8_t s_i8, int16_t s_i16,
                                               int32_t s_i32, int64_t s_i64, uint8_t s_u8,
                                               uint16_t s_u16, uint32_t s_u32, uint64_t s_u64,
                                               uint8_t s_i1, demo_everything_mode mode,
                                               OpforgeTensor *out, OpforgeTensor *stats,
                                               void *stream);
OPFORGE_API OpforgeStatus demo_everything_outputs_with(int implementation,
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
                                                       OpforgeTensor *out, OpforgeTensor *stats);
OPFORGE_API OpforgeStatus demo_everything_workspace_with(int implementation,
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
                                                         int64_t *bytes);

/* Returns the number of implementations; if list is not NULL, also their names, sources and
 * guards, in the order in which they are tried. They live as long as the library is loaded.
 */
OPFORGE_API int demo_everything_implementations(const OpforgeImplementation **list);

/* demo::special (ops.py:70)
 *   x: fp32, [n], compact, written to
 *   what: DEMO_SPECIAL_WHAT_SHARED or DEMO_SPECIAL_WHAT_CLUSTER or DEMO_SPECIAL_WHAT_CLUSTER16
 *     or DEMO_SPECIAL_WHAT_COOPERATIVE or DEMO_SPECIAL_WHAT_PDL or DEMO_SPECIAL_WHAT_SCRATCH or
 *     DEMO_SPECIAL_WHAT_PROFILE or DEMO_SPECIAL_WHAT_HUGE or DEMO_SPECIAL_WHAT_LATE
 */
OPFORGE_API OpforgeStatus demo_special(OpforgeTensor *x, demo_special_what what, void *stream);

/* Tells how many bytes of workspace the call above would allocate, and refuses what it would
 * refuse. The data of a tensor may be NULL.
 */
OPFORGE_API OpforgeStatus demo_special_workspace(const OpforgeTensor *x, demo_special_what what,
                                                 int64_t *bytes);

/* The same with a given implementation, where the call above uses the first that covers it. An
 * index out of range is OPFORGE_INVALID_ARGUMENT.
 */
OPFORGE_API OpforgeStatus demo_special_with(int implementation, OpforgeTensor *x,
                                            demo_special_what what, void *stream);
OPFORGE_API OpforgeStatus demo_special_workspace_with(int implementation,
                                                      const OpforgeTensor *x,
                                                      demo_special_what what, int64_t *bytes);

/* Returns the number of implementations; if list is not NULL, also their names, sources and
 * guards, in the order in which they are tried. They live as long as the library is loaded.
 */
OPFORGE_API int demo_special_implementations(const OpforgeImplementation **list);

/* demo::pick (ops.py:80)
 *   x: i8, [77], compact or [n], compact
 *   out: i8 [77] or i8 [n]
 */
OPFORGE_API OpforgeStatus demo_pick(const OpforgeTensor *x, OpforgeTensor *out, void *stream);

/* Fills in type, shape, strides and device of the outputs of the call above. Shape and strides
 * have room for OPFORGE_MAX_RANK (8) numbers each.
 */
OPFORGE_API OpforgeStatus demo_pick_outputs(const OpforgeTensor *x, OpforgeTensor *out);

/* Tells how many bytes of workspace the call above would allocate, and refuses what it would
 * refuse. The data of a tensor may be NULL. An output may be NULL; it is then taken to be as
 * demo_pick_outputs describes it.
 */
OPFORGE_API OpforgeStatus demo_pick_workspace(const OpforgeTensor *x, const OpforgeTensor *out,
                                              int64_t *bytes);

/* The same with a given implementation, where the call above uses the first that covers it. An
 * index out of range is OPFORGE_INVALID_ARGUMENT.
 */
OPFORGE_API OpforgeStatus demo_pick_with(int implementation, const OpforgeTensor *x,
                                         OpforgeTensor *out, void *stream);
OPFORGE_API OpforgeStatus demo_pick_outputs_with(int implementation, const OpforgeTensor *x,
                                                 OpforgeTensor *out);
OPFORGE_API OpforgeStatus demo_pick_workspace_with(int implementation, const OpforgeTensor *x,
                                                   const OpforgeTensor *out, int64_t *bytes);

/* Returns the number of implementations; if list is not NULL, also their names, sources and
 * guards, in the order in which they are tried. They live as long as the library is loaded.
 */
OPFORGE_API int demo_pick_implementations(const OpforgeImplementation **list);

#endif
