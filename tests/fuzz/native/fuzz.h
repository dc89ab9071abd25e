/* What the parts of the fuzzer know of each other.
 *
 *     rounds     one call of a seed and a round: made, and compared with what must happen
 *     judge      what a call must answer
 *     *_ops      the operators: calls that they take, and what they compute
 *     kernels    what their kernels do, on the memory that a launch is given
 *     given      tensors in memory of exactly their size
 *     specs      how they are described, and mutated
 *
 * The programs are calls.c, faults.c, threads.c and memory.c. Nothing here reads the runtime's
 * headers: what is expected is written down a second time.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <demo.h>
#include <stddef.h>
#include <stdint.h>

#include "standin.h"

void standin_devices(int count);
void standin_attribute(int device, int attribute, int value);
void standin_fail(int nth, const char *name, int result);
void standin_fail_from(int nth, int result);
int standin_call_count(void);
const char *standin_call(int index);
void standin_forget_calls(void);
int standin_live_modules(void);
int standin_live_allocations(void);
uint64_t standin_allocated(void);
int standin_live_contexts(void);
int standin_depth(void);
void *standin_stream(int device, int is_primary);
/* Of AMD's alone. */
void standin_arch(int device, const char *name) __attribute__((weak));
int standin_last_error(void) __attribute__((weak));

/* Whose stand-in the program is linked with. */
int is_amd(void);

#define MAX_RANK OPFORGE_MAX_RANK
#define MAX_TENSORS 5
#define MAX_OUTPUTS 2
#define DEVICES 2
/* Memory that is allocated for a tensor; larger ones have an address and nothing behind it. */
#define MOST_BYTES 65536

typedef struct {
    uint64_t state;
} Random;

uint64_t random_bits(Random *random);
int below(Random *random, int limit);
int chance(Random *random, int percent);
int64_t any_number(Random *random);

/* How a tensor is described, before there is memory for it. */
typedef struct {
    int is_present;
    int has_shape;
    int has_strides;
    int has_data;
    int code;
    int bits;
    int lanes;
    int device_type;
    int device;
    int ndim;
    int64_t shape[MAX_RANK];
    int64_t strides[MAX_RANK];
    /* Bytes of its memory before the first element; in byte_offset or in data. */
    int shift;
    int shift_in_offset;
    /* Added to byte_offset; it leaves the address space. */
    uint64_t astray;
    /* Another tensor whose memory it shares, or -1, and how many bytes behind that one it begins.
     */
    int shares;
    int distance;
} Spec;

/* Memory, and what must be in it after the call. */
typedef struct {
    unsigned char *memory;
    unsigned char *initial;
    unsigned char *expected;
    size_t bytes;
} Block;

typedef struct {
    Spec spec;
    OpforgeTensor *tensor; /* NULL if it is missing */
    Block *block;          /* NULL if there is no memory behind it */
    int64_t start;         /* of the first element in the block */
    /* What `look` finds out. */
    int is_valid;      /* as DLPack, apart from its data */
    int is_valid_data; /* and with it */
    int is_compact;
    int64_t strides[MAX_RANK];
    int64_t elements;
    uint64_t bytes; /* from the first element to the end of the last */
} Given;

typedef enum { REFUSED, EITHER, ACCEPTED } Verdict;

/* What an output must be. */
typedef struct {
    int is_absent;
    int code;
    int bits;
    int ndim;
    int is_free; /* any strides */
    int64_t shape[MAX_RANK];
    int64_t strides[MAX_RANK];
} Wanted;

typedef struct {
    float fp16, bf16, fp32;
    double fp64;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    uint8_t i1;
} Scalars;

struct Op;

typedef struct {
    uint64_t seed;
    uint64_t round;
    const struct Op *op;
    Given given[MAX_TENSORS];
    Block blocks[MAX_TENSORS];
    int choice;
    int implementation; /* -1 for the first that covers the call */
    Scalars scalars;
    void *stream;
    int stream_device; /* -1 for a stream of every device, -2 for one of another context */
    /* What is expected of it. */
    Wanted wanted[MAX_OUTPUTS];
    int launches; /* how many are to be made */
    int is_huge;  /* too large to be computed */
    int64_t common[MAX_RANK];
    int launched;
} Call;

/* `judge` says whether a call with such inputs is described, and `*called` whether it may then be
 * made; it fills in `wanted`, `common` and `launches`. `compute` works on the expected memory. */
typedef struct Op {
    const char *name;
    int inputs;
    int outputs;
    unsigned written; /* a bit per input */
    unsigned optional;
    int choices;
    int implementations;
    int asks_device;
    void (*make)(Random *random, Call *call);
    Verdict (*judge)(Call *call, Verdict *called);
    void (*compute)(Call *call);
    OpforgeStatus (*call)(Call *call);
    OpforgeStatus (*measure)(Call *call, int64_t *bytes);
    OpforgeStatus (*describe)(Call *call, OpforgeTensor *const *outputs);
} Op;

extern const Op add_op, matmul_op, everything_op, special_op, pick_op, copy_op;
extern const Op blend_op, add_to_op, turned_op, either_op, cube_op, rotate_op, window_op;
extern const int op_count;

/* specs.c */
void describe_tensor(Spec *spec, int code, int bits, int ndim, const int64_t *shape);
void compact_strides(const int64_t *shape, int ndim, int64_t *strides);
void vary_compact(Random *random, Spec *spec);
void vary_strides(Random *random, Spec *spec, int may_repeat);
void mutate(Random *random, Call *call);

/* given.c */
void lay_out(Random *random, Call *call);
void reset_memory(Call *call);
void release(Call *call);
int share_elements(const Given *a, const Given *b);
int ranges_meet(const Given *a, const Given *b);

/* judge.c */
Verdict judge_call(Call *call, OpforgeStatus *status);
Verdict judge_outputs(Call *call);
int fits(const int64_t *shape, const int64_t *strides, int ndim, int width);
unsigned char *element(const Call *call, int tensor, int64_t index);

/* kernels.c */
int run_kernel(const LaunchRecord *launch);
void now_calls(Call *call);
/* As found() does, but from within a launch. */
const char *kernel_problem(void);

/* rounds.c; a round that goes wrong ends the program */
void prepare(Call *call, uint64_t seed, uint64_t round, int op, int is_mutated);
void check_result(Call *call, OpforgeStatus status);
void check_round(uint64_t seed, uint64_t round, int is_alone);
void found(const Call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
void set_up_devices(void);
void say_where_at_death(void);

#endif
