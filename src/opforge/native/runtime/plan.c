/* Plans the steps of a path before any is taken: their numbers, variants and images, and the bytes
 * of workspace that they will allocate. */
#include "runtime.h"

/* The largest dimensions of a grid, on every architecture. */
#define MAX_GRID_X INT64_C(0x7fffffff)
#define MAX_GRID_YZ 65535

/* Finds the image of a kernel for a device. A call loads it, too. */
typedef OpforgeStatus (*Find)(Device *device, int kernel, Chosen *chosen);

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
        if (type == OF_POINTER || type > OF_DESCRIPTOR) {
            of_more("at 0x%llx", (unsigned long long)values[refused]);
        } else {
            of_more("%lld", (long long)values[refused]);
        }
        if (fits(values[refused], variant->arguments[refused])) {
            of_more(type > OF_DESCRIPTOR ? "; a tensor descriptor needs a multiple of 16"
                                         : ", not a multiple of 16");
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

static OpforgeStatus choose(const Launch *launch, const int64_t *n, Device *device, Find find,
                            Chosen *chosen)
{
    OpforgeStatus status = check_grid(launch, n, 1);
    int without_image = 0;
    int i;
    chosen->image = NULL;
    if (status != OPFORGE_OK || n[0] == 0 || n[1] == 0 || n[2] == 0) {
        return status;
    }
    for (i = 0; i < launch->variant_count; i++) {
        const Variant *variant = &launch->variants[i];
        if (refused_argument(launch, variant, n + 3) >= 0) {
            continue;
        }
        status = find(device, variant->kernel, chosen);
        if (status == OPFORGE_OK) {
            chosen->arguments = variant->arguments;
            return check_grid(launch, n, chosen->image->num_ctas);
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
                             Device *device, Find find, int64_t *n, Chosen *chosen)
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
    return step->kind == OF_LAUNCH ? choose(step->launch, n, device, find, chosen) : OPFORGE_OK;
}

/* Where only empty grids would leave an output as it is. */
OpforgeStatus of_refuse_nothing(const Launch *launch, const char *written)
{
    return of_fail(OPFORGE_UNCOVERED, "%s (%s): its grid is empty, so nothing would write to %s",
                   launch->kernel, launch->location, written);
}

static OpforgeStatus plan(const Path *path, const void *values, const uint64_t *at, Device *device,
                          Find find, Chosen *chosen, const char *written)
{
    int64_t n[OF_MAX_NUMBERS];
    const Launch *empty = NULL;
    OpforgeStatus status = OPFORGE_OK;
    int writes = 0;
    int i;
    for (i = 0; status == OPFORGE_OK && i < path->step_count; i++) {
        const Step *step = &path->steps[i];
        status = prepare(step, i, values, at, device, find, n, chosen);
        if (step->kind == OF_LAUNCH) {
            writes |= chosen->image != NULL;
            empty = step->launch;
            chosen++;
        }
        writes |= step->kind == OF_FILL;
    }
    if (status == OPFORGE_OK && !writes && empty != NULL && written != NULL) {
        return of_refuse_nothing(empty, written);
    }
    return status;
}

static OpforgeStatus load_image(Device *device, int kernel, Chosen *chosen)
{
    const Loaded *loaded;
    const OpforgeStatus status = of_kernel(device, kernel, &loaded);
    if (status == OPFORGE_OK) {
        chosen->image = loaded->image;
        chosen->function = loaded->function;
    }
    return status;
}

OpforgeStatus of_prepare(const Step *step, int position, const void *values, const uint64_t *at,
                         Device *device, int64_t *n, Chosen *chosen)
{
    return prepare(step, position, values, at, device, load_image, n, chosen);
}

OpforgeStatus of_plan(const Path *path, const void *values, const uint64_t *at, Device *device,
                      Chosen *chosen, const char *written)
{
    return plan(path, values, at, device, load_image, chosen, written);
}

/* The bytes of scratch memory that the kernel's image asks for, per program. */
OpforgeStatus of_scratch(const Launch *launch, const Image *image, const int64_t *grid,
                         int64_t *global, int64_t *profile)
{
    int overflow = 0;
    int64_t programs = of_mul(grid[0], of_mul(grid[1], grid[2], &overflow), &overflow);
    programs = of_mul(programs, image->num_ctas, &overflow);
    *global = of_mul(programs, image->global_scratch, &overflow);
    *profile = of_mul(programs, image->profile_scratch, &overflow);
    if (overflow) {
        return of_fail(OPFORGE_OUT_OF_MEMORY,
                       "%s (%s): the size of its scratch memory overflows 64 bits", launch->kernel,
                       launch->location);
    }
    return OPFORGE_OK;
}

void of_locate(const Operation *op, const Path *path, const View *views, uint64_t *at)
{
    const int count = op->input_count + op->output_count;
    int i;
    for (i = 0; i < count; i++) {
        at[i] = views[i].address;
    }
    /* Until it is allocated, workspace is taken to be at 0: only its alignment matters. */
    for (i = 0; i < path->workspace_count; i++) {
        at[count + i] = 0;
    }
}

static OpforgeStatus find_image(Device *device, int kernel, Chosen *chosen)
{
    return of_image(device, kernel, &chosen->image);
}

/* Where no image asks for scratch memory, any of them will do, and no device is needed. */
static OpforgeStatus take_any_image(Device *device, int kernel, Chosen *chosen)
{
    (void)device;
    chosen->image = &of_kernels[kernel].images[0];
    return OPFORGE_OK;
}

static int needs_device(const Kernel *kernel)
{
    int i;
    for (i = 0; i < kernel->image_count; i++) {
        if (kernel->images[i].global_scratch > 0 || kernel->images[i].profile_scratch > 0) {
            return 1;
        }
    }
    return kernel->image_count == 0;
}

/* Whether the workspace of a path depends on the images for the device. */
static int depends_on_device(const Path *path)
{
    int i;
    int v;
    for (i = 0; i < path->step_count; i++) {
        const Launch *launch = path->steps[i].launch;
        for (v = 0; launch != NULL && v < launch->variant_count; v++) {
            if (needs_device(&of_kernels[launch->variants[v].kernel])) {
                return 1;
            }
        }
    }
    return 0;
}

static OpforgeStatus add_up(const Path *path, const void *values, const uint64_t *at,
                            const Chosen *chosen, int64_t *bytes)
{
    int64_t n[OF_MAX_NUMBERS];
    OpforgeStatus status = OPFORGE_OK;
    int64_t sum = 0;
    int overflow = 0;
    int i;
    for (i = 0; status == OPFORGE_OK && i < path->step_count; i++) {
        const Step *step = &path->steps[i];
        int64_t global = 0;
        int64_t profile = 0;
        step->numbers(values, at, n, &overflow);
        if (step->kind == OF_ALLOCATE) {
            sum = of_add(sum, n[0], &overflow);
        } else if (step->kind == OF_LAUNCH) {
            if (chosen->image != NULL) {
                status = of_scratch(step->launch, chosen->image, n, &global, &profile);
            }
            sum = of_add(sum, of_add(global, profile, &overflow), &overflow);
            chosen++;
        }
    }
    if (status == OPFORGE_OK && overflow) {
        status = of_fail(OPFORGE_OUT_OF_MEMORY, "the bytes of its workspace overflow 64 bits");
    }
    if (status == OPFORGE_OK) {
        *bytes = sum;
    }
    return status;
}

OpforgeStatus of_measure(const Operation *op, const Path *path, const View *views,
                         const void *values, Place place, const char *written, int64_t *bytes)
{
    uint64_t at[OF_MAX_BUFFERS];
    Chosen chosen[OF_MAX_LAUNCHES];
    Device *device = NULL;
    Find find = take_any_image;
    OpforgeStatus status = OPFORGE_OK;
    if (depends_on_device(path)) {
        find = find_image;
        status = of_device(place, &device);
    }
    of_locate(op, path, views, at);
    if (status == OPFORGE_OK) {
        status = plan(path, values, at, device, find, chosen, written);
    }
    return status == OPFORGE_OK ? add_up(path, values, at, chosen, bytes) : status;
}
