/* Encodes the tensor maps by which kernels address tensors through the TMA unit. Only NVIDIA's
 * GPUs have one. */
#include "runtime.h"

#include <string.h>

#define KEPT 16
#define MAX_BYTES_BETWEEN (UINT64_C(1) << 40)

/* A map of this thread: most calls come with the tensors of an earlier one. */
typedef struct {
    MapInfo info; /* a copy: what it was at may be something else by now */
    int argument; /* 0 where nothing is kept */
    int64_t numbers[1 + 2 * OF_MAX_MAP_RANK];
    TensorMap map;
} Kept;

/* By address first: those of all that is kept are in two cache lines. */
static __thread int64_t addresses[KEPT];
static __thread Kept kept[KEPT];
static __thread int oldest;

static const Kept *find_kept(const MapInfo *info, int argument, const int64_t *numbers,
                             size_t bytes)
{
    int i;
    for (i = 0; i < KEPT; i++) {
        if (addresses[i] == numbers[0] && kept[i].argument == argument &&
            memcmp(&kept[i].info, info, sizeof *info) == 0 &&
            memcmp(kept[i].numbers, numbers, bytes) == 0) {
            return &kept[i];
        }
    }
    return NULL;
}

static void keep(const MapInfo *info, int argument, const int64_t *numbers, size_t bytes,
                 const TensorMap *map)
{
    Kept *place = &kept[oldest];
    addresses[oldest] = numbers[0];
    place->info = *info;
    place->argument = argument;
    memcpy(place->numbers, numbers, bytes);
    place->map = *map;
    oldest = (oldest + 1) % KEPT;
}

static OpforgeStatus check(const MapInfo *info, const Launch *launch, const char *name,
                           const int64_t *numbers, int rank)
{
    const int64_t *sizes = numbers + 1;
    const int64_t *strides = sizes + rank;
    int d;
    if (numbers[0] & 15) {
        return of_fail(OPFORGE_INVALID_ARGUMENT,
                       "%s (%s): %s is at 0x%llx; TMA needs a multiple of 16", launch->kernel,
                       launch->location, name, (unsigned long long)numbers[0]);
    }
    for (d = 0; d < rank; d++) {
        /* A stride that is too large may wrap around here, and is refused by itself. */
        const uint64_t bytes = (uint64_t)strides[d] * (uint64_t)info->element_size;
        const int is_last = d == rank - 1;
        if (sizes[d] < 1) {
            return of_fail(OPFORGE_INVALID_ARGUMENT,
                           "%s (%s): %s has size %lld in dimension %d; TMA needs at least 1",
                           launch->kernel, launch->location, name, (long long)sizes[d], d);
        }
        if (is_last ? strides[d] != 1
                    : strides[d] < 0 || (uint64_t)strides[d] >= MAX_BYTES_BETWEEN ||
                          bytes % 16 != 0 || bytes >= MAX_BYTES_BETWEEN) {
            return of_fail(OPFORGE_INVALID_ARGUMENT,
                           "%s (%s): %s has stride %lld in dimension %d; TMA needs %s",
                           launch->kernel, launch->location, name, (long long)strides[d], d,
                           is_last ? "1 in the last one" : "a multiple of 16 bytes below 2^40");
        }
    }
    return OPFORGE_OK;
}

/* CUDA counts dimensions from the innermost one on. */
static OpforgeStatus encode(const MapInfo *info, int argument, const Launch *launch,
                            const char *name, const int64_t *numbers, TensorMap *map)
{
    const int rank = (argument & OF_TYPE) - OF_DESCRIPTOR;
    const int64_t *sizes = numbers + 1;
    const int64_t *strides = sizes + rank;
    uint64_t extents[OF_MAX_MAP_RANK];
    uint64_t between[OF_MAX_MAP_RANK];
    uint32_t box[OF_MAX_MAP_RANK];
    uint32_t steps[OF_MAX_MAP_RANK];
    OpforgeStatus status = check(info, launch, name, numbers, rank);
    int error;
    int d;
    if (status != OPFORGE_OK) {
        return status;
    }
    for (d = 0; d < rank; d++) {
        const int inner = rank - 1 - d;
        extents[inner] = (uint64_t)sizes[d];
        box[inner] = info->block[d];
        steps[d] = 1;
        if (inner > 0) {
            between[inner - 1] = (uint64_t)(strides[d] * info->element_size);
        }
    }
    if (info->is_padded_fp4) {
        extents[0] *= 2;
    }
    error = of_cuda.encode_map(map, argument & OF_TF32 ? OF_MAP_TF32 : info->element,
                               (uint32_t)rank, (void *)(uintptr_t)numbers[0], extents, between, box,
                               steps, OF_MAP_INTERLEAVE_NONE, info->swizzle,
                               OF_MAP_L2_PROMOTION_128B, argument & OF_NAN ? OF_MAP_FILL_NAN : 0);
    if (error != OF_DRIVER_SUCCESS) {
        status = of_driver_failed(&of_cuda, error, &of_cuda.encode_map);
        of_more(" (%s, for %s, %s: at 0x%llx, sizes ", name, launch->kernel, launch->location,
                (unsigned long long)numbers[0]);
        of_describe_sizes(sizes, rank);
        of_more(", strides ");
        of_describe_sizes(strides, rank);
        of_more(")");
    }
    return status;
}

static OpforgeStatus find_map(const MapInfo *info, int argument, const Launch *launch,
                              const char *name, const int64_t *numbers, TensorMap *map)
{
    const int count = 1 + 2 * ((argument & OF_TYPE) - OF_DESCRIPTOR);
    const size_t bytes = (size_t)count * sizeof *numbers;
    const Kept *found = find_kept(info, argument, numbers, bytes);
    OpforgeStatus status = OPFORGE_OK;
    if (of_cuda.encode_map == NULL) {
        return of_fail(OPFORGE_NO_DRIVER,
                       "%s (%s): the driver has no cuTensorMapEncodeTiled; install a newer one",
                       launch->kernel, launch->location);
    }
    if (found != NULL) {
        *map = found->map;
        return OPFORGE_OK;
    }
    status = encode(info, argument, launch, name, numbers, map);
    if (status == OPFORGE_OK) {
        keep(info, argument, numbers, bytes, map);
    }
    return status;
}

/* For a kernel without tensor maps: address, sizes, strides, and flags. */
static int pass_parts(int argument, int flag_count, int64_t *numbers, void **parameters)
{
    static int64_t flags[] = {0, 1};
    const int count = 1 + 2 * ((argument & OF_TYPE) - OF_DESCRIPTOR);
    int i;
    for (i = 0; i < count; i++) {
        parameters[i] = &numbers[i];
    }
    parameters[count] = &flags[(argument & OF_NAN) != 0];
    parameters[count + 1] = &flags[(argument & OF_TF32) != 0];
    return count + flag_count;
}

OpforgeStatus of_pass_descriptor(const Image *image, int at, int argument, const Launch *launch,
                                 const char *name, int64_t *numbers, TensorMap *map,
                                 void **parameters, int *count)
{
    if (image->maps == NULL) {
        *count += pass_parts(argument, image->descriptor_flags, numbers, parameters + *count);
        return OPFORGE_OK;
    }
    parameters[(*count)++] = map;
    return find_map(&image->maps[at], argument, launch, name, numbers, map);
}
