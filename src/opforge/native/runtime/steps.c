/* Runs the steps of a path: everything is decided first, then allocated, filled and launched. */
#include "runtime.h"

#include <string.h>

/* In bytes: what cuMemAllocAsync gives, and what an allocator is asked for. */
#define WORKSPACE_ALIGNMENT 256

/* The largest dimensions of a grid, on every architecture. */
#define MAX_GRID_X INT64_C(0x7fffffff)
#define MAX_GRID_YZ 65535

/* A launch with a variant chosen; no kernel where the grid is empty. */
typedef struct {
    const Loaded *kernel;
    const uint8_t *arguments;
} Chosen;

static const char *const type_names[] = {
    "a pointer", "i1",  "i8",   "i16",  "i32",  "i64",  "u8", "u16",
    "u32",       "u64", "fp16", "bf16", "fp32", "fp64", "1",
};

static int fits(int64_t value, int argument)
{
    if ((argument & OF_UNSIGNED) && value < 0 && (argument & OF_TYPE) != OF_U64) {
        return 0;
    }
    switch (argument & OF_TYPE) {
    case OF_I1: return value == 0 || value == 1;
    case OF_I8: return value >= INT8_MIN && value <= INT8_MAX;
    case OF_I16: return value >= INT16_MIN && value <= INT16_MAX;
    case OF_I32: return value >= INT32_MIN && value <= INT32_MAX;
    case OF_U8: return value >= 0 && value <= UINT8_MAX;
    case OF_U16: return value >= 0 && value <= UINT16_MAX;
    case OF_U32: return value >= 0 && value <= (int64_t)UINT32_MAX;
    case OF_U64: return value >= 0 || (argument & OF_UNSIGNED);
    case OF_ONE: return value == 1;
    default: return 1;
    }
}

/* The first argument that a variant does not take, or -1. */
static int refused_argument(const Launch *launch, const Variant *variant, const int64_t *values)
{
    int i;
    for (i = 0; i < launch->argument_count; i++) {
        const int argument = variant->arguments[i];
        if (((argument & OF_BY_16) && (values[i] & 15)) || !fits(values[i], argument)) {
            return i;
        }
    }
    return -1;
}

static OpforgeStatus refuse_launch(const Launch *launch, const int64_t *values)
{
    int i;
    of_fail(OPFORGE_UNCOVERED, "%s (%s): nothing was built for its arguments:", launch->kernel,
            launch->location);
    for (i = 0; i < launch->variant_count; i++) {
        const Variant *variant = &launch->variants[i];
        const int refused = refused_argument(launch, variant, values);
        const int type = variant->arguments[refused] & OF_TYPE;
        of_more("\n  %s: %s is ", of_kernels[variant->kernel].key, launch->argument_names[refused]);
        if (type == OF_POINTER) {
            of_more("at 0x%llx", (unsigned long long)values[refused]);
        } else {
            of_more("%lld", (long long)values[refused]);
        }
        if (fits(values[refused], variant->arguments[refused])) {
            of_more(", not a multiple of 16");
        } else if (type == OF_ONE) {
            of_more(", not 1");
        } else {
            of_more(", which does not fit into %s", type_names[type]);
        }
    }
    return OPFORGE_UNCOVERED;
}

static OpforgeStatus check_grid(const Launch *launch, const int64_t *grid, int num_ctas)
{
    if (grid[0] >= 0 && grid[1] >= 0 && grid[2] >= 0 && grid[0] <= MAX_GRID_X / num_ctas &&
        grid[1] <= MAX_GRID_YZ && grid[2] <= MAX_GRID_YZ) {
        return OPFORGE_OK;
    }
    return of_fail(OPFORGE_UNCOVERED,
                   "%s (%s): its grid is %lld x %lld x %lld, but the largest is %lld x %d x %d",
                   launch->kernel, launch->location, (long long)grid[0], (long long)grid[1],
                   (long long)grid[2], (long long)(MAX_GRID_X / num_ctas), MAX_GRID_YZ,
                   MAX_GRID_YZ);
}

static OpforgeStatus choose(const Launch *launch, const int64_t *n, Device *device, Chosen *chosen)
{
    OpforgeStatus status = check_grid(launch, n, 1);
    int without_image = 0;
    int i;
    chosen->kernel = NULL;
    if (status != OPFORGE_OK || n[0] == 0 || n[1] == 0 || n[2] == 0) {
        return status;
    }
    for (i = 0; i < launch->variant_count; i++) {
        const Variant *variant = &launch->variants[i];
        if (refused_argument(launch, variant, n + 3) >= 0) {
            continue;
        }
        status = of_kernel(device, variant->kernel, &chosen->kernel);
        if (status == OPFORGE_OK) {
            chosen->arguments = variant->arguments;
            return check_grid(launch, n, chosen->kernel->image->num_ctas);
        }
        /* A less specialized variant may have an image for this device. */
        if (status != OPFORGE_NO_IMAGE) {
            return status;
        }
        without_image = 1;
    }
    return without_image ? OPFORGE_NO_IMAGE : refuse_launch(launch, n + 3);
}

/* Computes and checks the numbers of a step before anything is done, and chooses its kernel. */
static OpforgeStatus prepare(const Step *step, int position, const void *values, const uint64_t *at,
                             Device *device, int64_t *n, Chosen *chosen)
{
    int overflow = 0;
    step->numbers(values, at, n, &overflow);
    if (step->kind == OF_ALLOCATE) {
        overflow |= n[0] < 0;
    } else if (step->kind == OF_FILL) {
        overflow |= n[0] < 0 || n[1] < 0;
    }
    if (overflow) {
        return of_fail(OPFORGE_INVALID_ARGUMENT, "step %d: %s do not fit into 64 bits",
                       position + 1,
                       step->kind == OF_LAUNCH ? "the kernel's arguments" : "sizes of workspace");
    }
    return step->kind == OF_LAUNCH ? choose(step->launch, n, device, chosen) : OPFORGE_OK;
}

/* Where only empty grids would leave an output as it is. */
static OpforgeStatus refuse_nothing(const Launch *launch, const char *written)
{
    return of_fail(OPFORGE_UNCOVERED, "%s (%s): its grid is empty, so nothing would write to %s",
                   launch->kernel, launch->location, written);
}

static OpforgeStatus plan(const Path *path, const void *values, const uint64_t *at, Device *device,
                          Chosen *chosen, const char *written)
{
    int64_t n[OF_MAX_NUMBERS];
    const Launch *empty = NULL;
    OpforgeStatus status = OPFORGE_OK;
    int writes = 0;
    int i;
    for (i = 0; status == OPFORGE_OK && i < path->step_count; i++) {
        const Step *step = &path->steps[i];
        status = prepare(step, i, values, at, device, n, chosen);
        if (step->kind == OF_LAUNCH) {
            writes |= chosen->kernel != NULL;
            empty = step->launch;
            chosen++;
        }
        writes |= step->kind == OF_FILL;
    }
    if (status == OPFORGE_OK && !writes && empty != NULL && written != NULL) {
        return refuse_nothing(empty, written);
    }
    return status;
}

/* A double to the bits of a narrower float, rounded once, to nearest and ties to even. */
static int64_t narrow(double value, int exponent_bits, int fraction_bits)
{
    const uint64_t bits = (uint64_t)of_float_bits(value);
    const uint64_t sign = bits >> 63 << (exponent_bits + fraction_bits);
    const uint64_t infinity = (((uint64_t)1 << exponent_bits) - 1) << fraction_bits;
    const int stored = (int)(bits >> 52 & 0x7ff);
    uint64_t fraction = bits & (((uint64_t)1 << 52) - 1);
    int exponent = stored - 1023 + (1 << (exponent_bits - 1)) - 1;
    int shift = 52 - fraction_bits;
    uint64_t kept;
    uint64_t rest;
    uint64_t half;
    if (stored == 0x7ff) {
        return (int64_t)(sign | infinity | (fraction ? (uint64_t)1 << (fraction_bits - 1) : 0));
    }
    fraction |= (uint64_t)1 << 52;
    if (exponent <= 0) {
        shift += 1 - exponent;
        exponent = 1;
    }
    if (stored == 0 || shift > 54) {
        return (int64_t)sign;
    }
    kept = fraction >> shift;
    rest = fraction & (((uint64_t)1 << shift) - 1);
    half = (uint64_t)1 << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1));
    /* The leading bit of a normal number counts as one more in the exponent. */
    kept += (uint64_t)(exponent - 1) << fraction_bits;
    return (int64_t)(sign | (kept < infinity ? kept : infinity));
}

/* Floats come as doubles; everything else is in its slot as the kernel reads it. */
static void pack(int64_t *slot, int type)
{
    double value;
    float single;
    memcpy(&value, slot, sizeof value);
    switch (type) {
    case OF_FP16: *slot = narrow(value, 5, 10); break;
    case OF_BF16: *slot = narrow(value, 8, 7); break;
    case OF_FP32:
        single = (float)value;
        *slot = 0;
        memcpy(slot, &single, sizeof single);
        break;
    default: break;
    }
}

static int launch_with_attributes(const Image *image, void *function, const int64_t *grid,
                                  void *stream, void **parameters)
{
    LaunchAttribute attributes[4];
    LaunchConfig config;
    unsigned int count = 0;
    memset(attributes, 0, sizeof attributes);
    memset(&config, 0, sizeof config);
    if (image->programmatic) {
        attributes[count].id = OF_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count++].value.number = 1;
    }
    if (image->cooperative) {
        attributes[count].id = OF_LAUNCH_COOPERATIVE;
        attributes[count++].value.number = 1;
    }
    if (image->num_ctas > 1) {
        attributes[count].id = OF_LAUNCH_CLUSTER_DIMENSION;
        attributes[count].value.dimensions[0] = (uint32_t)image->num_ctas;
        attributes[count].value.dimensions[1] = 1;
        attributes[count++].value.dimensions[2] = 1;
        attributes[count].id = OF_LAUNCH_CLUSTER_SCHEDULING_POLICY;
        attributes[count++].value.number = OF_CLUSTER_SCHEDULING_POLICY_SPREAD;
    }
    config.grid[0] = (unsigned int)(grid[0] * image->num_ctas);
    config.grid[1] = (unsigned int)grid[1];
    config.grid[2] = (unsigned int)grid[2];
    config.block[0] = (unsigned int)image->num_warps * 32;
    config.block[1] = 1;
    config.block[2] = 1;
    config.shared = image->shared;
    config.stream = stream;
    config.attributes = attributes;
    config.attribute_count = count;
    return of_driver.cuLaunchKernelEx(&config, function, parameters, NULL);
}

/* Scratch memory that the kernel's image asks for, per program. */
static OpforgeStatus allocate_scratch(Workspace *workspace, const Launch *launch,
                                      const Image *image, const int64_t *grid,
                                      uint64_t *global_scratch, uint64_t *profile_scratch)
{
    OpforgeStatus status;
    int overflow = 0;
    int64_t programs = of_mul(grid[0], of_mul(grid[1], grid[2], &overflow), &overflow);
    int64_t global;
    int64_t profile;
    programs = of_mul(programs, image->num_ctas, &overflow);
    global = of_mul(programs, image->global_scratch, &overflow);
    profile = of_mul(programs, image->profile_scratch, &overflow);
    if (overflow) {
        return of_fail(OPFORGE_OUT_OF_MEMORY,
                       "%s (%s): the size of its scratch memory overflows 64 bits", launch->kernel,
                       launch->location);
    }
    status = of_allocate(workspace, global,
                         image->global_scratch_align > WORKSPACE_ALIGNMENT
                             ? image->global_scratch_align
                             : WORKSPACE_ALIGNMENT,
                         global_scratch);
    if (status != OPFORGE_OK) {
        return status;
    }
    return of_allocate(workspace, profile, WORKSPACE_ALIGNMENT, profile_scratch);
}

static OpforgeStatus launch_kernel(const Launch *launch, const Chosen *chosen, int64_t *n,
                                   Workspace *workspace)
{
    const Image *image = chosen->kernel->image;
    void *function = chosen->kernel->function;
    void *stream = workspace->scope->stream;
    uint64_t global_scratch = 0;
    uint64_t profile_scratch = 0;
    void *parameters[OF_MAX_NUMBERS];
    const char *name = "cuLaunchKernel";
    int count = 0;
    int error;
    int i;
    for (i = 0; i < launch->argument_count; i++) {
        const int type = chosen->arguments[i] & OF_TYPE;
        if (type == OF_ONE) {
            continue;
        }
        if (type >= OF_FP16) {
            pack(&n[3 + i], type);
        }
        parameters[count++] = &n[3 + i];
    }
    parameters[count++] = &global_scratch;
    parameters[count] = &profile_scratch;
    if (image->global_scratch > 0 || image->profile_scratch > 0) {
        const OpforgeStatus status =
            allocate_scratch(workspace, launch, image, n, &global_scratch, &profile_scratch);
        if (status != OPFORGE_OK) {
            return status;
        }
    }
    if (image->num_ctas == 1 && !image->cooperative && !image->programmatic) {
        error = of_driver.cuLaunchKernel(function, (unsigned int)n[0], (unsigned int)n[1],
                                         (unsigned int)n[2], (unsigned int)image->num_warps * 32, 1,
                                         1, image->shared, stream, parameters, NULL);
    } else if (of_driver.cuLaunchKernelEx == NULL) {
        return of_fail(OPFORGE_NO_DRIVER,
                       "%s (%s): the driver has no cuLaunchKernelEx; install a newer one",
                       launch->kernel, launch->location);
    } else {
        name = "cuLaunchKernelEx";
        error = launch_with_attributes(image, function, n, stream, parameters);
    }
    if (error != OF_CUDA_SUCCESS) {
        const OpforgeStatus status = of_cuda_failed(error, name);
        of_more(" (%s, %s)", launch->kernel, launch->location);
        return status;
    }
    return OPFORGE_OK;
}

static OpforgeStatus take_steps(const Path *path, const void *values, uint64_t *at,
                                const Chosen *chosen, Workspace *workspace)
{
    int64_t n[OF_MAX_NUMBERS];
    OpforgeStatus status = OPFORGE_OK;
    int i;
    for (i = 0; status == OPFORGE_OK && i < path->step_count; i++) {
        const Step *step = &path->steps[i];
        int overflow = 0;
        step->numbers(values, at, n, &overflow);
        if (step->kind == OF_ALLOCATE) {
            status = of_allocate(workspace, n[0], WORKSPACE_ALIGNMENT, &at[step->buffer]);
        } else if (step->kind == OF_FILL) {
            status = of_fill(workspace->scope->stream, at[step->buffer] + (uint64_t)n[0], n[1],
                             step->width, step->pattern);
        } else {
            if (chosen->kernel != NULL) {
                status = launch_kernel(step->launch, chosen, n, workspace);
            }
            chosen++;
        }
    }
    return status;
}

/* Most paths. The numbers that the kernel was chosen by are launched as they are. */
static OpforgeStatus run_one_launch(const Step *step, const void *values, const uint64_t *at,
                                    Workspace *workspace, const char *written)
{
    int64_t n[OF_MAX_NUMBERS];
    Chosen chosen;
    OpforgeStatus status = prepare(step, 0, values, at, workspace->scope->device, n, &chosen);
    if (status == OPFORGE_OK && chosen.kernel != NULL) {
        status = launch_kernel(step->launch, &chosen, n, workspace);
    } else if (status == OPFORGE_OK && written != NULL) {
        status = refuse_nothing(step->launch, written);
    }
    return status;
}

OpforgeStatus of_run(const Path *path, const View *views, int view_count, const void *values,
                     int ordinal, void *stream, const char *written)
{
    Scope scope;
    Workspace workspace;
    uint64_t at[OF_MAX_BUFFERS];
    Chosen chosen[OF_MAX_LAUNCHES];
    OpforgeStatus status = of_enter(ordinal, stream, &scope);
    int i;
    if (status != OPFORGE_OK) {
        return status;
    }
    workspace.scope = &scope;
    workspace.has_allocator = 0;
    workspace.release = NULL;
    workspace.count = 0;
    for (i = 0; i < view_count; i++) {
        at[i] = views[i].address;
    }
    /* Until it is allocated, workspace is taken to be at 0: only its alignment matters. */
    for (i = 0; i < path->workspace_count; i++) {
        at[view_count + i] = 0;
    }
    if (path->step_count == 1 && path->steps[0].kind == OF_LAUNCH) {
        status = run_one_launch(&path->steps[0], values, at, &workspace, written);
    } else {
        status = plan(path, values, at, scope.device, chosen, written);
        if (status == OPFORGE_OK) {
            status = take_steps(path, values, at, chosen, &workspace);
        }
    }
    return of_leave(&scope, of_release_all(&workspace, status));
}
