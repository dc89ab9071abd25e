/* Tensors in memory of exactly their size, and what is valid about them. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 Wide;

#define ELEMENTS_TO_WALK 100000

/* The strides that DLPack means, what is valid about them, and how far they reach. */
static int measure(const Spec *spec, Given *given)
{
    const Wide most = INT64_MAX;
    const int width = spec->bits / 8;
    Wide product = 1;
    Wide last = 0;
    int is_empty = 0;
    int d;
    given->is_compact = 1;
    for (d = spec->ndim - 1; d >= 0; d--) {
        const int64_t size = spec->shape[d];
        const Wide stride = spec->has_strides ? (Wide)spec->strides[d] : product;
        if (size < 0 || stride < 0) {
            return 0;
        }
        given->strides[d] = (int64_t)stride;
        given->is_compact &= size == 1 || stride == product;
        if (size == 0) {
            is_empty = 1;
            continue;
        }
        product *= size;
        last += (size - 1) * stride;
        if (product > most || last > most) {
            return 0;
        }
    }
    if (product * width > most || (last + 1) * width > most) {
        return 0;
    }
    given->is_compact |= is_empty;
    given->elements = is_empty ? 0 : (int64_t)product;
    given->bytes = is_empty ? 0 : (uint64_t)((last + 1) * width);
    return 1;
}

/* Calls `mark` with the position of each element, in elements. */
static void walk(const Given *given, void (*mark)(int64_t at, void *context), void *context)
{
    int64_t index[MAX_RANK] = {0};
    int64_t at = 0;
    int64_t i;
    for (i = 0; i < given->elements; i++) {
        int d = given->spec.ndim - 1;
        mark(at, context);
        for (; d >= 0 && ++index[d] == given->spec.shape[d]; d--) {
            at -= given->strides[d] * (given->spec.shape[d] - 1);
            index[d] = 0;
        }
        at += d >= 0 ? given->strides[d] : 0;
    }
}

typedef struct {
    unsigned char *seen;
    int64_t start;
    int width;
    int only_looks;
    int meets;
} Marks;

static void mark(int64_t at, void *context)
{
    Marks *marks = (Marks *)context;
    int i;
    for (i = 0; i < marks->width; i++) {
        unsigned char *seen = &marks->seen[marks->start + at * marks->width + i];
        marks->meets |= *seen;
        *seen |= !marks->only_looks;
    }
}

static int repeats_itself(const Given *given)
{
    Marks marks = {NULL, 0, given->spec.bits / 8, 0, 0};
    if (given->elements * (int64_t)marks.width > (int64_t)given->bytes) {
        return 1;
    }
    marks.seen = (unsigned char *)calloc(1, given->bytes + 1);
    walk(given, mark, &marks);
    free(marks.seen);
    return marks.meets;
}

static int is_walkable(const Given *given)
{
    int d;
    /* An empty tensor may have a size that is too large to count to. */
    for (d = 0; d < given->spec.ndim && d < MAX_RANK; d++) {
        if (given->spec.shape[d] > ELEMENTS_TO_WALK) {
            return 0;
        }
    }
    return given->bytes <= MOST_BYTES && given->elements <= ELEMENTS_TO_WALK;
}

/* Whether a tensor is one, read from what the library gets. */
static void look(Given *given, int is_written)
{
    const Spec *spec = &given->spec;
    const OpforgeTensor *tensor = given->tensor;
    const int64_t width = spec->bits / 8;
    uint64_t address;
    given->is_valid = 0;
    given->is_valid_data = 0;
    given->elements = 0;
    given->bytes = 0;
    if (tensor == NULL || spec->ndim < 0 || spec->ndim > MAX_RANK ||
        (spec->ndim > 0 && !spec->has_shape) || spec->lanes != 1 ||
        (is_amd() ? spec->device_type != 10 : spec->device_type != 2 && spec->device_type != 13) ||
        !measure(spec, given)) {
        return;
    }
    /* Larger ones are not walked: if they are not compact, the call may answer either way. */
    if (is_written && !given->is_compact && is_walkable(given) && repeats_itself(given)) {
        return;
    }
    given->is_valid = 1;
    address = (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
    if ((tensor->data == NULL && given->elements > 0) || address < tensor->byte_offset ||
        address + given->bytes < address ||
        (given->elements > 0 && width > 0 && address % (uint64_t)width != 0)) {
        return;
    }
    given->is_valid_data = 1;
}

static uint64_t address_of(const Given *given)
{
    return (uint64_t)(uintptr_t)given->tensor->data + given->tensor->byte_offset;
}

int ranges_meet(const Given *a, const Given *b)
{
    return a->bytes > 0 && b->bytes > 0 && address_of(a) < address_of(b) + b->bytes &&
           address_of(b) < address_of(a) + a->bytes;
}

/* Of two tensors that can be walked and are in one block. */
int share_elements(const Given *a, const Given *b)
{
    Marks marks = {NULL, a->start, a->spec.bits / 8, 0, 0};
    if (a->block == NULL || a->block != b->block || !is_walkable(a) || !is_walkable(b)) {
        return 0;
    }
    marks.seen = (unsigned char *)calloc(1, a->block->bytes + 1);
    walk(a, mark, &marks);
    marks.start = b->start;
    marks.width = b->spec.bits / 8;
    marks.only_looks = 1;
    marks.meets = 0;
    walk(b, mark, &marks);
    free(marks.seen);
    return marks.meets;
}

static void allocate(Random *random, Block *block, size_t bytes)
{
    uint64_t bits = 0;
    size_t i;
    block->bytes = bytes;
    block->memory = (unsigned char *)malloc(bytes);
    block->initial = (unsigned char *)malloc(bytes);
    block->expected = (unsigned char *)malloc(bytes);
    for (i = 0; i < bytes; i++) {
        bits = i % 8 == 0 ? random_bits(random) : bits >> 8;
        block->initial[i] = (unsigned char)bits;
    }
}

/* A copy on the heap, without room behind it. */
static int64_t *numbers(const int64_t *values, int ndim)
{
    const int count = ndim < 0 || ndim > MAX_RANK ? 1 : ndim;
    int64_t *made = (int64_t *)malloc((size_t)count * sizeof *made);
    memcpy(made, values, (size_t)count * sizeof *made);
    return made;
}

/* One that is refused anyway has some memory. */
static uint64_t needed(Given *given)
{
    const int ndim = given->spec.ndim;
    return ndim >= 0 && ndim <= MAX_RANK && measure(&given->spec, given) ? given->bytes : 16;
}

/* The room that tensors need behind the start of one that they share memory with. */
static uint64_t needed_by_others(Call *call, int at)
{
    uint64_t most = 0;
    int i;
    for (i = at + 1; i < call->op->inputs + call->op->outputs; i++) {
        Given *given = &call->given[i];
        if (given->spec.is_present && given->spec.shares == at && needed(given) <= MOST_BYTES / 2) {
            const uint64_t bytes = needed(given) + (uint64_t)given->spec.distance;
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

/* The block that a tensor is in, its own or the one it shares. */
static void place(Random *random, Call *call, int at)
{
    Given *given = &call->given[at];
    const Spec *spec = &given->spec;
    const Given *host = spec->shares >= 0 && spec->shares < at ? &call->given[spec->shares] : NULL;
    const uint64_t others = needed_by_others(call, at);
    uint64_t bytes = needed(given);
    given->block = NULL;
    if (host != NULL && host->block != NULL && bytes <= MOST_BYTES &&
        host->start + spec->distance + (int64_t)bytes <= (int64_t)host->block->bytes) {
        given->block = host->block;
        given->start = host->start + spec->distance;
        return;
    }
    given->start = spec->shift;
    bytes = others > bytes ? others : bytes;
    if (bytes <= MOST_BYTES) {
        given->block = &call->blocks[at];
        allocate(random, given->block, (size_t)bytes + (size_t)spec->shift);
    }
}

static OpforgeTensor *tensor_of(const Given *given, int at)
{
    const Spec *spec = &given->spec;
    OpforgeTensor *made = (OpforgeTensor *)malloc(sizeof *made);
    /* Where nothing is mapped, and far from the others. */
    uintptr_t first = (uintptr_t)(at + 1) << 44;
    memset(made, 0, sizeof *made);
    if (given->block != NULL) {
        first = (uintptr_t)given->block->memory + (uintptr_t)given->start;
    }
    if (spec->shift_in_offset && spec->has_data) {
        made->byte_offset = (uint64_t)spec->shift;
        first -= (uintptr_t)spec->shift;
    }
    made->byte_offset += spec->astray;
    memcpy(&made->data, &first, sizeof first);
    if (!spec->has_data) {
        made->data = NULL;
    }
    made->device.device_type = spec->device_type;
    made->device.device_id = spec->device;
    made->ndim = spec->ndim;
    made->dtype.code = (uint8_t)spec->code;
    made->dtype.bits = (uint8_t)spec->bits;
    made->dtype.lanes = (uint16_t)spec->lanes;
    made->shape = spec->has_shape ? numbers(spec->shape, spec->ndim) : NULL;
    made->strides = spec->has_strides ? numbers(spec->strides, spec->ndim) : NULL;
    return made;
}

/* Gives every tensor its memory, and makes what the library gets. */
void lay_out(Random *random, Call *call)
{
    const Op *op = call->op;
    const int count = op->inputs + op->outputs;
    int i;
    call->is_huge = 0;
    for (i = 0; i < count; i++) {
        Given *given = &call->given[i];
        if (!given->spec.is_present) {
            given->tensor = NULL;
            given->block = NULL;
            continue;
        }
        place(random, call, i);
        given->tensor = tensor_of(given, i);
        look(given, i >= op->inputs || (op->written >> i & 1));
        /* Where its elements are is then not what the memory was made for. */
        call->is_huge |= given->spec.astray != 0 || !is_walkable(given) || given->block == NULL;
    }
    reset_memory(call);
}

void reset_memory(Call *call)
{
    int i;
    for (i = 0; i < MAX_TENSORS; i++) {
        Block *block = &call->blocks[i];
        if (block->memory != NULL) {
            memcpy(block->memory, block->initial, block->bytes);
            memcpy(block->expected, block->initial, block->bytes);
        }
    }
}

void release(Call *call)
{
    int i;
    for (i = 0; i < MAX_TENSORS; i++) {
        OpforgeTensor *tensor = call->given[i].tensor;
        if (tensor != NULL) {
            free(tensor->shape);
            free(tensor->strides);
            free(tensor);
            call->given[i].tensor = NULL;
        }
        free(call->blocks[i].memory);
        free(call->blocks[i].initial);
        free(call->blocks[i].expected);
        memset(&call->blocks[i], 0, sizeof call->blocks[i]);
    }
}
