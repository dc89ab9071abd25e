/* Tensor maps of the stand-in: what the driver was told, in the bytes that a kernel is passed. */
#include "standin.h"

#include <stdint.h>
#include <string.h>

enum { INVALID_VALUE = 1 };

/* 128 bytes, as CUtensorMap. */
typedef struct {
    uint32_t magic;
    uint8_t element;
    uint8_t rank;
    uint8_t swizzle;
    uint8_t fill;
    uint64_t address;
    uint64_t extents[5];
    uint64_t between[4];
    uint32_t box[5];
    uint32_t interleave;
    uint32_t promotion;
    uint32_t rest[3];
} StandInMap;

typedef char fits[sizeof(StandInMap) == 128 ? 1 : -1];

/* Bytes of an element, by CUDA's number for its type. */
static const int widths[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

int cuTensorMapEncodeTiled(void *map, int element, uint32_t rank, void *address,
                           const uint64_t *extents, const uint64_t *between, const uint32_t *box,
                           const uint32_t *steps, int interleave, int swizzle, int promotion,
                           int fill)
{
    const int failure = standin_enter("cuTensorMapEncodeTiled");
    StandInMap made;
    uint32_t d;
    if (failure) {
        return failure;
    }
    /* The rules of cuda.h. */
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || rank < 1 || rank > 5 || element < 0 ||
        element > 12 || (fill && (element < 6 || element > 12))) {
        return INVALID_VALUE;
    }
    memset(&made, 0, sizeof made);
    for (d = 0; d < rank; d++) {
        if (extents[d] < 1 || extents[d] > (uint64_t)1 << 32 || box[d] < 1 || box[d] > 256 ||
            steps[d] != 1) {
            return INVALID_VALUE;
        }
        made.extents[d] = extents[d];
        made.box[d] = box[d];
        if (d + 1 < rank) {
            if (between[d] % 16 || between[d] >= (uint64_t)1 << 40) {
                return INVALID_VALUE;
            }
            made.between[d] = between[d];
        }
    }
    /* A swizzled row is at most as long as the swizzle. */
    if (box[0] * (uint32_t)widths[element] % 16 ||
        (swizzle && box[0] * (uint32_t)widths[element] > 16u << swizzle)) {
        return INVALID_VALUE;
    }
    made.magic = STANDIN_MAP;
    made.element = (uint8_t)element;
    made.rank = (uint8_t)rank;
    made.swizzle = (uint8_t)swizzle;
    made.fill = (uint8_t)fill;
    made.address = (uint64_t)(uintptr_t)address;
    made.interleave = (uint32_t)interleave;
    made.promotion = (uint32_t)promotion;
    memcpy(map, &made, sizeof made);
    return 0;
}
