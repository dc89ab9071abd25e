/* One call: made of a seed and a round, judged, made, and compared with what must have happened. */
#include "fuzz.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A tensor that is too large for this machine asks for workspace that is, too; the driver has then
 * no memory left. */
#define LIMITS "allocator_may_return_null=1:max_allocation_size_mb=16"
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return LIMITS;
}

/* It does not call what AddressSanitizer calls before the program ends. */
const char *__ubsan_default_options(void)
{
    return "abort_on_error=1:print_stacktrace=1";
}

const char *__tsan_default_options(void)
{
    return LIMITS;
}

static const Op *const ops[] = {
    &add_op,    &matmul_op, &everything_op, &special_op, &pick_op,   &copy_op,   &blend_op,
    &add_to_op, &turned_op, &either_op,     &cube_op,    &rotate_op, &window_op,
};
const int op_count = (int)(sizeof ops / sizeof ops[0]);

/* Of every sanitizer; there is no header that all compilers have. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static __thread const Call *where;
static void *streams[DEVICES];
static void *stream_of_another_context;

int is_amd(void)
{
    return standin_arch != NULL;
}

void set_up_devices(void)
{
    int i;
    standin_devices(DEVICES);
    if (is_amd()) {
        standin_arch(0, "gfx942");
        standin_arch(1, "gfx950");
    }
    /* Device 0 is an sm_80 or a gfx942; some kernels need the sm_90 or gfx950 beside it. */
    standin_attribute(1, 75, 9);
    standin_attribute(1, 97, 232448);
    standin_on_launch(run_kernel);
    for (i = 0; i < DEVICES; i++) {
        streams[i] = standin_stream(i, 1);
    }
    /* HIP's belong to devices, and to no context. */
    stream_of_another_context = is_amd() ? streams[0] : standin_stream(0, 0);
}

static void say_where(void)
{
    if (where != NULL) {
        printf("found %llu %llu %s: a sanitizer's report\n", (unsigned long long)where->seed,
               (unsigned long long)where->round, where->op->name);
        fflush(stdout);
    }
}

static void aborted(int signal_number)
{
    say_where();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void too_long(int signal_number)
{
    (void)signal_number;
    found(where, "it takes too long");
}

/* Before a sanitizer ends the program, or a call that does not end itself. */
void say_where_at_death(void)
{
    signal(SIGALRM, too_long);
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(say_where);
    }
    signal(SIGABRT, aborted);
}

void found(const Call *call, const char *format, ...)
{
    const int count = call->op->inputs + call->op->outputs;
    va_list arguments;
    int i;
    int d;
    printf("found %llu %llu %s: ", (unsigned long long)call->seed, (unsigned long long)call->round,
           call->op->name);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n  implementation %d, choice %d, i64 %lld, u64 %llu, stream of %d\n",
           call->implementation, call->choice, (long long)call->scalars.i64,
           (unsigned long long)call->scalars.u64, call->stream_device);
    for (i = 0; i < count; i++) {
        const Spec *spec = &call->given[i].spec;
        printf(
            "  %d: %s type %d/%d/%d device %d/%d data %p + %llu", i,
            spec->is_present ? "given" : "missing", spec->code, spec->bits, spec->lanes,
            spec->device_type, spec->device,
            call->given[i].tensor != NULL ? call->given[i].tensor->data : NULL,
            (unsigned long long)(call->given[i].tensor ? call->given[i].tensor->byte_offset : 0));
        for (d = 0; d < spec->ndim && d < MAX_RANK; d++) {
            printf("%s%lld", d ? ", " : " shape ", (long long)spec->shape[d]);
        }
        for (d = 0; spec->has_strides && d < spec->ndim && d < MAX_RANK; d++) {
            printf("%s%lld", d ? ", " : " strides ", (long long)spec->strides[d]);
        }
        printf("\n");
    }
    fflush(stdout);
    _exit(1);
}

static void choose_scalars(Random *random, Scalars *s)
{
    s->fp16 = (float)below(random, 100000) / 7 - 5000;
    s->bf16 = (float)any_number(random) / 3;
    s->fp32 = (float)any_number(random) / 3;
    s->fp64 = (double)any_number(random) / 3;
    s->i8 = (int8_t)any_number(random);
    s->i16 = (int16_t)any_number(random);
    s->i64 = any_number(random);
    s->u16 = (uint16_t)any_number(random);
    s->u32 = (uint32_t)any_number(random);
    s->u64 = (uint64_t)any_number(random);
}

static void choose_stream(Random *random, Call *call, int device)
{
    const int what = below(random, 100);
    call->stream = NULL;
    call->stream_device = -1;
    if (what < 30) {
        call->stream = streams[device];
        call->stream_device = device;
    } else if (what < 40) {
        const uintptr_t special = 1 + (uintptr_t)below(random, 2);
        memcpy(&call->stream, &special, sizeof special);
    }
}

static void mistake_stream(Random *random, Call *call)
{
    call->stream_device = below(random, DEVICES + 1) - 1;
    call->stream = call->stream_device < 0 ? stream_of_another_context
                                           : streams[call->stream_device];
    call->stream_device = call->stream_device >= 0 ? call->stream_device : is_amd() ? 0 : -2;
}

/* With -1 any operator, and a mutation half of the time. */
void prepare(Call *call, uint64_t seed, uint64_t round, int op, int is_mutated)
{
    Random random;
    int count;
    int device;
    int i;
    memset(call, 0, sizeof *call);
    call->seed = seed;
    call->round = round;
    random.state = seed * UINT64_C(0xd1342543de82ef95) + round * UINT64_C(0x2545f4914f6cdd1d);
    i = below(&random, op_count);
    call->op = ops[op < 0 ? i : op];
    where = call;
    count = call->op->inputs + call->op->outputs;
    call->implementation = chance(&random, 15) ? 0 : -1;
    choose_scalars(&random, &call->scalars);
    call->op->make(&random, call);
    device = below(&random, DEVICES);
    choose_stream(&random, call, device);
    for (i = 0; i < count; i++) {
        Spec *spec = &call->given[i].spec;
        spec->device = device;
        spec->device_type = chance(&random, 10) ? 13 : 2;
        spec->device_type = is_amd() ? 10 : spec->device_type;
        spec->shift = chance(&random, 40) ? spec->bits / 8 * below(&random, 6) : 0;
        spec->shift_in_offset = chance(&random, 50);
    }
    if (is_mutated < 0 ? chance(&random, 60) : is_mutated) {
        mutate(&random, call);
        if (chance(&random, 3)) {
            mistake_stream(&random, call);
        }
    }
    lay_out(&random, call);
}

static void check_text(const Call *call, const char *function, OpforgeStatus status)
{
    char start[64];
    const char *text = demo_last_error();
    snprintf(start, sizeof start, "demo_%s: ", call->op->name);
    if (status < OPFORGE_INVALID_ARGUMENT || status > OPFORGE_OUT_OF_MEMORY) {
        found(call, "%s: an unknown status, %d", function, (int)status);
    }
    if (strncmp(text, start, strlen(start)) != 0 || strlen(text) == strlen(start)) {
        found(call, "%s: a text that says nothing: %s", function, text);
    }
    if (strstr(text, "(null)") != NULL) {
        found(call, "%s: a text with a hole: %s", function, text);
    }
}

static void compare(const Call *call, const char *when)
{
    size_t i;
    int b;
    for (b = 0; b < MAX_TENSORS; b++) {
        const Block *block = &call->blocks[b];
        if (block->memory == NULL || memcmp(block->memory, block->expected, block->bytes) == 0) {
            continue;
        }
        for (i = 0; block->memory[i] == block->expected[i]; i++) {
        }
        found(call, "%s: the memory of tensor %d has %d, expected %d, in byte %llu of %llu", when,
              b, block->memory[i], block->expected[i], (unsigned long long)i,
              (unsigned long long)block->bytes);
    }
}

/* What a call has done that answered so. */
void check_result(Call *call, OpforgeStatus status)
{
    if (kernel_problem()[0] != 0) {
        found(call, "%s", kernel_problem());
    }
    if (standin_depth() != 0) {
        found(call, "%d contexts are left", standin_depth());
    }
    if (is_amd() && standin_last_error() != 0) {
        found(call, "error %d is left for others to find", standin_last_error());
    }
    if (status == OPFORGE_OK && call->launched != call->launches) {
        found(call, "%d launches, expected %d", call->launched, call->launches);
    }
    if (status != OPFORGE_OK) {
        compare(call, "refused");
    } else if (!call->is_huge) {
        call->op->compute(call);
        compare(call, "called");
    }
}

static void check_description(const Call *call, const OpforgeTensor *output, int at,
                              int has_strides)
{
    const Wanted *wanted = &call->wanted[at];
    int first = 0;
    int d;
    if (wanted->is_absent) {
        if (output->dtype.bits != 0) {
            found(call, "described: output %d has %d bits, expected none", at, output->dtype.bits);
        }
        return;
    }
    while (call->given[first].tensor == NULL) {
        first++;
    }
    if (output->ndim != wanted->ndim || output->dtype.code != wanted->code ||
        output->dtype.bits != wanted->bits || output->dtype.lanes != 1 ||
        output->byte_offset != 0 || output->device.device_id != call->given[first].spec.device ||
        output->device.device_type != call->given[first].spec.device_type) {
        found(call, "described: output %d has rank %d and type %d/%d", at, output->ndim,
              output->dtype.code, output->dtype.bits);
    }
    for (d = 0; d < wanted->ndim; d++) {
        if (output->shape[d] != wanted->shape[d] ||
            (has_strides && output->strides[d] != wanted->strides[d])) {
            found(call, "described: output %d, dimension %d: %lld/%lld, expected %lld/%lld", at, d,
                  (long long)output->shape[d], (long long)(has_strides ? output->strides[d] : 0),
                  (long long)wanted->shape[d], (long long)wanted->strides[d]);
        }
    }
}

/* Without room for strides, only compact outputs can be described; all empty ones are. */
static int needs_strides(const Wanted *wanted)
{
    int64_t compact = 1;
    int is_compact = 1;
    int d;
    for (d = wanted->ndim - 1; d >= 0; d--) {
        if (wanted->shape[d] == 0) {
            return 0;
        }
        is_compact &= wanted->shape[d] == 1 || wanted->strides[d] == compact;
        compact *= wanted->shape[d];
    }
    return !is_compact;
}

static void check_outputs(Call *call, int has_strides)
{
    OpforgeTensor *outputs[MAX_OUTPUTS];
    Verdict verdict = judge_outputs(call);
    OpforgeStatus status;
    int i;
    for (i = 0; i < call->op->outputs; i++) {
        outputs[i] = (OpforgeTensor *)calloc(1, sizeof *outputs[i]);
        outputs[i]->shape = (int64_t *)malloc(MAX_RANK * sizeof(int64_t));
        if (has_strides) {
            outputs[i]->strides = (int64_t *)malloc(MAX_RANK * sizeof(int64_t));
        } else if (verdict != REFUSED && !call->wanted[i].is_absent &&
                   needs_strides(&call->wanted[i])) {
            verdict = REFUSED;
        }
    }
    status = call->op->describe(call, outputs);
    if (status != OPFORGE_OK) {
        check_text(call, "described", status);
    }
    if ((status == OPFORGE_OK && verdict == REFUSED) ||
        (status != OPFORGE_OK && verdict == ACCEPTED)) {
        found(call, "described: status %d: %s", (int)status, status ? demo_last_error() : "");
    }
    for (i = 0; i < call->op->outputs; i++) {
        if (status == OPFORGE_OK) {
            check_description(call, outputs[i], i, has_strides);
        }
        free(outputs[i]->shape);
        free(outputs[i]->strides);
        free(outputs[i]);
    }
    if (call->launched != 0) {
        found(call, "described: something was launched");
    }
    compare(call, "described");
}

/* What was said of a call's workspace before it was made. */
typedef struct {
    OpforgeStatus status;
    int64_t bytes;
    uint64_t allocated; /* until then */
    char text[512];
} Measured;

static void measure_call(Call *call, Measured *measured)
{
    measured->bytes = -1;
    measured->allocated = standin_allocated();
    measured->status = call->op->measure(call, &measured->bytes);
    if (measured->status != OPFORGE_OK) {
        check_text(call, "measured", measured->status);
        snprintf(measured->text, sizeof measured->text, "%s", demo_last_error());
    }
    if (call->launched != 0) {
        found(call, "measured: something was launched");
    }
    compare(call, "measured");
}

/* Refused by the call alone: for what is not there yet, or for what only the driver knows. */
static int is_later(OpforgeStatus status, const char *text)
{
    return status == OPFORGE_NO_IMAGE || status == OPFORGE_OUT_OF_MEMORY ||
           strstr(text, "is NULL or has no type") != NULL || strstr(text, "data is NULL") != NULL ||
           strstr(text, ": stream: ") != NULL || strstr(text, " does not exist; ") != NULL;
}

static void check_measured(const Call *call, const Measured *measured, OpforgeStatus status,
                           int is_alone)
{
    const char *text = status == OPFORGE_OK ? "" : demo_last_error();
    int i;
    if (status == OPFORGE_OK) {
        const uint64_t asked = standin_allocated() - measured->allocated;
        if (measured->status != OPFORGE_OK) {
            found(call, "measured: status %d: %s", (int)measured->status, measured->text);
        }
        if (is_alone && (uint64_t)measured->bytes != asked) {
            found(call, "measured: %lld bytes, but %llu were allocated", (long long)measured->bytes,
                  (unsigned long long)asked);
        }
        return;
    }
    if (is_later(status, text)) {
        return;
    }
    for (i = 0; i < call->op->outputs; i++) {
        /* Without all outputs, other faults may be found first. */
        if (call->given[call->op->inputs + i].tensor == NULL) {
            return;
        }
    }
    if (measured->status != status ||
        strncmp(measured->text, text, sizeof measured->text - 1) != 0) {
        found(call, "measured: status %d: %s; called: status %d: %s", (int)measured->status,
              measured->status ? measured->text : "", (int)status, text);
    }
}

/* `is_alone` says that no other thread uses the library. */
void check_round(uint64_t seed, uint64_t round, int is_alone)
{
    Call call;
    OpforgeStatus expected;
    OpforgeStatus status;
    Verdict verdict;
    Measured measured;
    prepare(&call, seed, round, -1, -1);
    now_calls(&call);
    if (is_alone) {
        alarm(30);
    }
    if (call.op->describe != NULL && round % 2 == 0) {
        check_outputs(&call, round % 8 != 0);
    }
    verdict = judge_call(&call, &expected);
    measure_call(&call, &measured);
    status = call.op->call(&call);
    check_measured(&call, &measured, status, is_alone);
    if (status != OPFORGE_OK) {
        check_text(&call, "called", status);
        if (call.launched != 0) {
            found(&call, "refused after %d launches: %s", call.launched, demo_last_error());
        }
    }
    if (status == OPFORGE_OK ? verdict == REFUSED : verdict == ACCEPTED) {
        found(&call, "called: status %d: %s", (int)status, status ? demo_last_error() : "");
    }
    if (status == OPFORGE_NO_DRIVER || status == OPFORGE_CUDA_ERROR) {
        found(&call, "the driver was asked for what it refuses: %s", demo_last_error());
    }
    if (status != OPFORGE_OK && expected != OPFORGE_OK && status != expected) {
        found(&call, "called: status %d, expected %d: %s", (int)status, (int)expected,
              demo_last_error());
    }
    if (verdict != REFUSED || status != OPFORGE_OK) {
        check_result(&call, status);
    }
    if (is_alone && standin_live_allocations() != 0) {
        found(&call, "%d allocations are left", standin_live_allocations());
    }
    where = NULL;
    release(&call);
}
