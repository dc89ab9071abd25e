/* What the headers of all opforge libraries share: statuses, tensors and allocators.
 *
 * Every library brings this file; those of one ABI bring the same.
 */
#ifndef OPFORGE_ABI_VERSION
#define OPFORGE_ABI_VERSION 1

#include <stddef.h>
#include <stdint.h>

/* The most sizes and strides that a tensor can have. */
#define OPFORGE_MAX_RANK 8

#ifdef __cplusplus
#define OPFORGE_API extern "C" __attribute__((visibility("default")))
#else
#define OPFORGE_API extern __attribute__((visibility("default")))
#endif

typedef enum {
    OPFORGE_OK = 0,
    /* An argument is not what the function takes; nothing was launched. */
    OPFORGE_INVALID_ARGUMENT = 1,
    /* The arguments are valid, but nothing was built for them; the text says what was. */
    OPFORGE_UNCOVERED = 2,
    /* libcuda or libamdhip64 is missing or too old, or there is no GPU. */
    OPFORGE_NO_DRIVER = 3,
    /* No kernel image fits the GPU; the text lists the images in the library. */
    OPFORGE_NO_IMAGE = 4,
    /* A call of the CUDA or HIP driver failed; the text names it. */
    OPFORGE_CUDA_ERROR = 5,
    /* An allocator or the driver had no memory left. */
    OPFORGE_OUT_OF_MEMORY = 6
} OpforgeStatus;

/* DLPack's DLDevice: type 2 is CUDA memory, 13 managed CUDA memory, 10 ROCm memory. */
typedef struct {
    int32_t device_type;
    int32_t device_id;
} OpforgeDevice;

/* DLPack's DLDataType; lanes is 1. */
typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} OpforgeDType;

/* DLPack's DLTensor: a pointer to one may be cast. Strides count elements; NULL means compact. */
typedef struct {
    void *data;
    OpforgeDevice device;
    int32_t ndim;
    OpforgeDType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} OpforgeTensor;

/* One of the implementations of an operator. */
typedef struct {
    const char *name;
    /* The Python op and its source: "mylib::add_flat (ops/add/op.py:30)". */
    const char *op;
    /* What it covers, in words; several lines. */
    const char *guards;
} OpforgeImplementation;

/* Returns memory of the device at a multiple of `alignment`, to be used in the stream's order. */
typedef void *(*OpforgeAllocate)(void *context, size_t bytes, size_t alignment, int device,
                                 void *stream);
/* Called once the work that uses the memory is on the stream, not when it is done. */
typedef void (*OpforgeRelease)(void *context, void *pointer, size_t bytes, int device,
                               void *stream);
#endif

#if !defined(DLPACK_DLPACK_H_) && defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#endif
#if defined(DLPACK_DLPACK_H_) && !defined(OPFORGE_CHECKED_DLPACK)
#define OPFORGE_CHECKED_DLPACK
/* An array of negative size where the two differ. */
#define OPFORGE_SAME_OFFSET(field, name) \
    typedef char opforge_dlpack_##name[1 - 2 * (offsetof(OpforgeTensor, field) != \
                                                offsetof(DLTensor, field))]
typedef char opforge_dlpack_size[sizeof(OpforgeTensor) == sizeof(DLTensor) ? 1 : -1];
OPFORGE_SAME_OFFSET(data, data);
OPFORGE_SAME_OFFSET(device.device_type, device_type);
OPFORGE_SAME_OFFSET(device.device_id, device_id);
OPFORGE_SAME_OFFSET(ndim, ndim);
OPFORGE_SAME_OFFSET(dtype.code, dtype_code);
OPFORGE_SAME_OFFSET(dtype.bits, dtype_bits);
OPFORGE_SAME_OFFSET(dtype.lanes, dtype_lanes);
OPFORGE_SAME_OFFSET(shape, shape);
OPFORGE_SAME_OFFSET(strides, strides);
OPFORGE_SAME_OFFSET(byte_offset, byte_offset);
#endif
