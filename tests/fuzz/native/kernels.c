/* What the kernels do, on the memory and with the arguments that a launch is given.
 *
 * Memory is read and written as a GPU would, so that a sanitizer sees every place that a wrong
 * argument leads to.
 */
#include "fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread Call *now;
static __thread char problem[512];

void now_calls(Call *call)
{
    now = call;
    problem[0] = 0;
}

const char *kernel_problem(void)
{
    return problem;
}

#define EXPECT(condition) \
    do { \
        if (!(condition) && problem[0] == 0) { \
            snprintf(problem, sizeof problem, "%s: not %s", launch->function, #condition); \
        } \
    } while (0)

static int64_t integer(const LaunchRecord *launch, int at, int bits)
{
    int64_t wide;
    int32_t narrow;
    memcpy(&wide, launch->parameters[at], sizeof wide);
    memcpy(&narrow, launch->parameters[at], sizeof narrow);
    return bits == 64 ? wide : narrow;
}

static unsigned char *pointer(const LaunchRecord *launch, int at)
{
    return (unsigned char *)(uintptr_t)integer(launch, at, 64);
}

static uint32_t word(const unsigned char *memory, int64_t index)
{
    return ((const uint32_t *)(const void *)memory)[index];
}

static void set_word(unsigned char *memory, int64_t index, uint32_t value)
{
    ((uint32_t *)(void *)memory)[index] = value;
}

static void add(const LaunchRecord *launch, const char *key)
{
    const int bits = strstr(key, "fp16") != NULL ? 16 : 32;
    const int64_t n = integer(launch, 3, strstr(key, "wide") != NULL ? 64 : 32);
    int64_t i;
    if (strstr(key, "aligned") != NULL) {
        EXPECT(n % 16 == 0);
        for (i = 0; i < 3; i++) {
            EXPECT((uintptr_t)pointer(launch, (int)i) % 16 == 0);
        }
    }
    for (i = 0; i < (int64_t)launch->grid[0] * 128 && i < n; i++) {
        if (bits == 16) {
            uint16_t *const x = (uint16_t *)(void *)pointer(launch, 0);
            uint16_t *const y = (uint16_t *)(void *)pointer(launch, 1);
            uint16_t *const out = (uint16_t *)(void *)pointer(launch, 2);
            out[i] = (uint16_t)(x[i] + y[i]);
        } else {
            set_word(pointer(launch, 2), i,
                     word(pointer(launch, 0), i) + word(pointer(launch, 1), i));
        }
    }
}

static void matmul(const LaunchRecord *launch, const char *key)
{
    const int bits = strstr(key, "wide") != NULL ? 64 : 32;
    const int has_ones = strstr(key, "ones") != NULL;
    const int64_t m = integer(launch, 3, bits);
    const int64_t n = integer(launch, 4, bits);
    const int64_t k = integer(launch, 5, bits);
    const int64_t a0 = integer(launch, 6, bits);
    const int64_t a1 = has_ones ? 1 : integer(launch, 7, bits);
    const int64_t b0 = integer(launch, has_ones ? 7 : 8, bits);
    const int64_t b1 = has_ones ? 1 : integer(launch, 9, bits);
    int64_t i;
    int64_t j;
    int64_t l;
    for (i = 0; i < m && i < (int64_t)launch->grid[0] * 16; i++) {
        for (j = 0; j < n && j < (int64_t)launch->grid[1] * 16; j++) {
            uint32_t sum = 0;
            for (l = 0; l < k; l++) {
                sum += word(pointer(launch, 0), i * a0 + l * a1) *
                       word(pointer(launch, 1), l * b0 + j * b1);
            }
            set_word(pointer(launch, 2), i * n + j, sum);
        }
    }
}

static uint16_t half(float value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double size = fabs((double)value);
    int exponent;
    if (size >= 65520) {
        return sign | 0x7c00;
    }
    if (size < ldexp(1, -14)) {
        return (uint16_t)(sign | (int)nearbyint(ldexp(size, 24)));
    }
    frexp(size, &exponent);
    return (uint16_t)(sign |
                      (((exponent + 13) << 10) + (int)nearbyint(ldexp(size, 11 - exponent))));
}

static uint16_t bfloat(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static int same(const LaunchRecord *launch, int at, const void *value, size_t bytes)
{
    return memcmp(launch->parameters[at], value, bytes) == 0;
}

static void everything(const LaunchRecord *launch)
{
    const Scalars *s = &now->scalars;
    const int64_t rows = now->given[0].spec.shape[0];
    const uint16_t small = half(s->fp16);
    const uint16_t brain = bfloat(s->bf16);
    const uint8_t is_set = s->i1 != 0;
    uint64_t *const partial = (uint64_t *)(void *)pointer(launch, 2);
    int64_t r;
    int c;
    EXPECT(same(launch, 4, &small, 2) || s->fp16 != s->fp16);
    EXPECT(same(launch, 5, &brain, 2) || s->bf16 != s->bf16);
    EXPECT(same(launch, 6, &s->fp32, 4));
    EXPECT(same(launch, 7, &s->fp64, 8));
    EXPECT(same(launch, 8, &s->i8, 1));
    EXPECT(same(launch, 9, &s->i16, 2));
    EXPECT(same(launch, 10, &s->i32, 4));
    EXPECT(same(launch, 11, &s->i64, 8));
    EXPECT(same(launch, 12, &s->u8, 1));
    EXPECT(same(launch, 13, &s->u16, 2));
    EXPECT(same(launch, 14, &s->u32, 4));
    EXPECT(same(launch, 15, &s->u64, 8));
    EXPECT(same(launch, 16, &is_set, 1));
    EXPECT(launch->grid[0] == (unsigned)(rows < 108 ? rows : 108));
    for (r = 0; r < rows; r++) {
        for (c = 0; c < 8; c++) {
            set_word(pointer(launch, 3), r * 8 + c,
                     word(pointer(launch, 0), r * 8 + c) + word(pointer(launch, 1), c));
        }
        partial[r] += (uint64_t)r;
    }
}

static void second(const LaunchRecord *launch)
{
    const uint64_t *const partial = (const uint64_t *)(void *)pointer(launch, 0);
    uint64_t *const stats = (uint64_t *)(void *)pointer(launch, 1);
    unsigned int r;
    EXPECT(integer(launch, 2, 32) == 2 * now->given[0].spec.shape[0]);
    EXPECT(launch->grid[0] == 1 && launch->grid[2] == 2);
    for (r = 0; r < launch->grid[1]; r++) {
        stats[r] = partial[r] * 3;
    }
}

static void special(const LaunchRecord *launch, const char *key)
{
    const int is_sixteen = strstr(key, "cluster16") != NULL;
    const int64_t n = launch->grid[0] / launch->cluster;
    const int64_t programs = (int64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    const unsigned int cluster = is_sixteen ? 16 : strstr(key, "cluster") != NULL ? 2 : 1;
    int64_t i;
    EXPECT(launch->cluster == cluster);
    EXPECT(launch->grid[1] == 3 && launch->grid[2] == 2);
    EXPECT(launch->cooperative == (strstr(key, "cooperative") != NULL));
    EXPECT(launch->programmatic == (!is_amd() && strstr(key, "pdl") != NULL));
    EXPECT((integer(launch, 1, 64) != 0) == (strstr(key, "scratch") != NULL));
    EXPECT((integer(launch, 2, 64) != 0) == (strstr(key, "profile") != NULL));
    EXPECT(integer(launch, 1, 64) % 128 == 0);
    if (integer(launch, 1, 64) != 0) {
        memset(pointer(launch, 1), 0x77, (size_t)(programs * 64));
    }
    if (integer(launch, 2, 64) != 0) {
        memset(pointer(launch, 2), 0x77, (size_t)(programs * 32));
    }
    for (i = 0; i < n; i++) {
        set_word(pointer(launch, 0), i, word(pointer(launch, 0), i) + 6);
    }
}

static void pick(const LaunchRecord *launch, int with)
{
    unsigned int i;
    for (i = 0; i < launch->grid[0]; i++) {
        pointer(launch, 1)[i] = (unsigned char)(pointer(launch, 0)[i] ^ with);
    }
}

static void copy_rows(const LaunchRecord *launch)
{
    int64_t i;
    for (i = 0; i < integer(launch, 2, 32); i++) {
        set_word(pointer(launch, 1), i, word(pointer(launch, 0), i));
    }
}

static void copy_strided(const LaunchRecord *launch)
{
    const int64_t *shape = now->given[0].spec.shape;
    int64_t i;
    int64_t j;
    for (i = 0; i < shape[0]; i++) {
        for (j = 0; j < shape[1]; j++) {
            set_word(
                pointer(launch, 1), i + j * shape[0],
                word(pointer(launch, 0), i * integer(launch, 2, 32) + j * integer(launch, 3, 32)));
        }
    }
}

/* blend_COUNT_RANK */
static void blend(const LaunchRecord *launch, const char *key)
{
    const int count = key[6] - '0';
    const int rank = key[8] - '0';
    const int64_t *shape = now->given[3].spec.shape;
    int64_t index[MAX_RANK] = {0};
    int64_t i = 0;
    int d;
    for (d = 0; d < rank; d++) {
        if (shape[d] == 0) {
            return;
        }
    }
    do {
        uint32_t sum = 0;
        int t;
        for (t = 0; t < count; t++) {
            int64_t at = 0;
            for (d = 0; d < rank; d++) {
                at += index[d] * integer(launch, count + 1 + t * rank + d, 64);
            }
            sum += (uint32_t)(2 * t + 1) * word(pointer(launch, t), at);
        }
        set_word(pointer(launch, count), i++, sum);
        for (d = rank - 1; d >= 0 && ++index[d] == shape[d]; d--) {
            index[d] = 0;
        }
    } while (d >= 0);
}

static void add_to(const LaunchRecord *launch)
{
    const int64_t *shape = now->given[0].spec.shape;
    int64_t i;
    for (i = 0; i < shape[0] * shape[1]; i++) {
        const int64_t at = i / shape[1] * integer(launch, 2, 64) +
                           i % shape[1] * integer(launch, 3, 64);
        set_word(pointer(launch, 0), i, word(pointer(launch, 0), i) + word(pointer(launch, 1), at));
    }
}

static void turned(const LaunchRecord *launch, int has_both)
{
    const int64_t *shape = now->given[0].spec.shape;
    const int64_t rows = integer(launch, 2, 64);
    const int64_t columns = has_both ? integer(launch, 3, 64) : 1;
    int64_t i;
    int64_t j;
    for (i = 0; i < shape[0]; i++) {
        for (j = 0; j < shape[1]; j++) {
            set_word(pointer(launch, 1), j * rows + i * columns,
                     word(pointer(launch, 0), i * shape[1] + j));
        }
    }
}

/* It gets no strides; the call's own are used. */
static void cube(const LaunchRecord *launch)
{
    const int64_t *strides = now->given[1].strides;
    int i;
    for (i = 0; i < 24; i++) {
        set_word(pointer(launch, 1),
                 i / 12 * strides[0] + i / 4 % 3 * strides[1] + i % 4 * strides[2],
                 word(pointer(launch, 0), i));
    }
}

static void rotate(const LaunchRecord *launch)
{
    const int64_t *shape = now->given[0].spec.shape;
    int64_t i;
    int64_t j;
    int t;
    for (t = 0; t < 2; t++) {
        for (i = 0; i < shape[0]; i++) {
            for (j = 0; j < shape[1]; j++) {
                const int64_t at = i * integer(launch, 2 + 2 * t, 64) +
                                   j * integer(launch, 3 + 2 * t, 64);
                set_word(pointer(launch, t), at, word(pointer(launch, t), at) * 3 + (uint32_t)t);
            }
        }
    }
}

static void window(const LaunchRecord *launch)
{
    static const unsigned char tail[] = {
        0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34,
        0x12, 0x34, 0x12, 0x34, 0x12, 0x78, 0x56, 0x34, 0x12, 0x78, 0x56,
        0x34, 0x12, 0xfe, 0xca, 0xad, 0x0b, 0xfe, 0xca, 0xad, 0x0b,
    };
    const int64_t s = integer(launch, 5, 64);
    const int64_t w = integer(launch, 6, 64);
    int64_t r;
    int64_t c;
    EXPECT(memcmp(pointer(launch, 3), tail, sizeof tail) == 0);
    for (r = 0; r < (int64_t)launch->grid[0]; r++) {
        for (c = 0; c < w; c++) {
            const int64_t at = (integer(launch, 7, 64) + r * integer(launch, 8, 64)) * s + c;
            pointer(launch, 4)[r * w + c] = (unsigned char)(pointer(launch, 0)[at] +
                                                            pointer(launch, 1)[at] +
                                                            pointer(launch, 2)[r * w + c]);
        }
    }
}

/* Hand-made images have the key of the kernel behind their header. */
int run_kernel(const LaunchRecord *launch)
{
    const char *image = (const char *)launch->image;
    char key[64] = "";
    int device = -1;
    int i;
    for (i = 0; i < 63 && image[64 + i] != ' '; i++) {
        key[i] = image[64 + i];
    }
    now->launched++;
    for (i = 0; i < MAX_TENSORS && device < 0; i++) {
        device = now->given[i].tensor != NULL ? now->given[i].spec.device : -1;
    }
    EXPECT(launch->device == device);
    EXPECT(launch->stream == now->stream);
    EXPECT(launch->block[0] == (is_amd() ? 256 : 128));
    EXPECT(launch->block[1] == 1 && launch->block[2] == 1);
    EXPECT(now->launched <= now->launches);
    if (now->is_huge || problem[0] != 0) {
        return 0;
    }
    if (strncmp(key, "add_fp", 6) == 0) {
        add(launch, key);
    } else if (strncmp(key, "matmul", 6) == 0) {
        matmul(launch, key);
    } else if (strncmp(key, "everything_first", 16) == 0) {
        everything(launch);
    } else if (strncmp(key, "everything_second", 17) == 0) {
        second(launch);
    } else if (strncmp(key, "special", 7) == 0) {
        special(launch, key);
    } else if (strncmp(key, "fixed", 5) == 0 || strncmp(key, "small", 5) == 0) {
        pick(launch, key[0] == 'f' ? 0x11 : 0x22);
    } else if (strncmp(key, "flat", 4) == 0) {
        copy_rows(launch);
    } else if (strncmp(key, "strided", 7) == 0) {
        copy_strided(launch);
    } else if (strncmp(key, "blend", 5) == 0) {
        blend(launch, key);
    } else if (strncmp(key, "add_to", 6) == 0) {
        add_to(launch);
    } else if (strncmp(key, "dense", 5) == 0 || strncmp(key, "any", 3) == 0) {
        turned(launch, key[0] == 'a');
    } else if (strncmp(key, "cube", 4) == 0) {
        cube(launch);
    } else if (strncmp(key, "rotate", 6) == 0) {
        rotate(launch);
    } else if (strncmp(key, "window", 6) == 0) {
        window(launch);
    } else {
        EXPECT(key[0] == 0);
    }
    return 0;
}
