/* Runs the steps of a path, once they are planned: allocates, fills and launches. */
#include "runtime.h"

#include <string.h>

/* In bytes: what the drivers' allocators give, and what an allocator is asked for. */
#define WORKSPACE_ALIGNMENT 256

/* A double to the bits of a narrower float, rounded once, to nearest and ties to even. */
static int64_t narrow_float(double value, int exponent_bits, int fraction_bits)
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
    case OF_FP16: *slot = narrow_float(value, 5, 10); break;
    case OF_BF16: *slot = narrow_float(value, 8, 7); break;
    case OF_FP32:
        single = (float)value;
        *slot = 0;
        memcpy(slot, &single, sizeof single);
        break;
    default: break;
    }
}

static OpforgeStatus allocate_scratch(Workspace *workspace, const Launch *launch,
                                      const Image *image, const int64_t *grid,
                                      uint64_t *global_scratch, uint64_t *profile_scratch)
{
    int64_t global;
    int64_t profile;
    OpforgeStatus status = of_scratch(launch, image, grid, &global, &profile);
    if (status != OPFORGE_OK) {
        return status;
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

static int add_to_graph(Graph *graph, const Image *image, void *function, const int64_t *grid,
                        void **parameters)
{
    KernelNode node;
    memset(&node, 0, sizeof node);
    node.function = function;
    node.grid[0] = (unsigned int)grid[0];
    node.grid[1] = (unsigned int)grid[1];
    node.grid[2] = (unsigned int)grid[2];
    node.block[0] = (unsigned int)(image->num_warps * image->warp_size);
    node.block[1] = 1;
    node.block[2] = 1;
    node.shared = image->shared;
    node.parameters = parameters;
    return of_add_launch(graph, &node);
}

/* Into a graph if there is one; then `refused` gets what its driver says. */
static OpforgeStatus launch_kernel(const Launch *launch, const Chosen *chosen, int64_t *n,
                                   Workspace *workspace, Graph *graph, int *refused)
{
    const Image *image = chosen->image;
    void *function = chosen->function;
    void *stream = workspace->scope->stream;
    uint64_t global_scratch = 0;
    uint64_t profile_scratch = 0;
    void *parameters[OF_MAX_PARAMETERS];
    TensorMap maps[OF_MAX_DESCRIPTORS];
    OpforgeStatus status;
    int descriptor_count = 0;
    int count = 0;
    int i;
    for (i = 0; i < launch->argument_count; i++) {
        const int type = chosen->arguments[i] & OF_TYPE;
        if (type == OF_ONE) {
            continue;
        }
        if (type > OF_DESCRIPTOR) {
            status = of_pass_descriptor(image, descriptor_count, chosen->arguments[i], launch,
                                        launch->argument_names[i], &n[3 + i],
                                        &maps[descriptor_count], parameters, &count);
            if (status != OPFORGE_OK) {
                return status;
            }
            descriptor_count++;
            continue;
        }
        if (type >= OF_FP16) {
            pack(&n[3 + i], type);
        }
        parameters[count++] = &n[3 + i];
    }
    parameters[count++] = &global_scratch;
    parameters[count++] = &profile_scratch;
    /* Only for whoever counts them. */
    parameters[count] = NULL;
    if (image->global_scratch > 0 || image->profile_scratch > 0) {
        status = allocate_scratch(workspace, launch, image, n, &global_scratch, &profile_scratch);
        if (status != OPFORGE_OK) {
            return status;
        }
    }
    if (graph != NULL) {
        *refused = *refused ? *refused : add_to_graph(graph, image, function, n, parameters);
        return OPFORGE_OK;
    }
    status = of_launch(workspace->scope->device->driver, image, function, n, stream, parameters);
    if (status != OPFORGE_OK) {
        of_more(" (%s, %s)", launch->kernel, launch->location);
    }
    return status;
}

static OpforgeStatus launch_all(const Path *path, const void *values, const uint64_t *at,
                                const Chosen *chosen, Workspace *workspace)
{
    int64_t n[OF_MAX_NUMBERS];
    OpforgeStatus status = OPFORGE_OK;
    int i;
    for (i = 0; status == OPFORGE_OK && i < path->step_count; i++) {
        const Step *step = &path->steps[i];
        int overflow = 0;
        if (step->kind == OF_LAUNCH) {
            step->numbers(values, at, n, &overflow);
            status = launch_kernel(step->launch, chosen++, n, workspace, NULL, NULL);
        }
    }
    return status;
}

static OpforgeStatus take_steps(const Path *path, const void *values, uint64_t *at,
                                const Chosen *chosen, Workspace *workspace)
{
    Graph *graph = of_take_graph(path, chosen, workspace->scope);
    const Chosen *first = chosen;
    int64_t n[OF_MAX_NUMBERS];
    OpforgeStatus status = OPFORGE_OK;
    int refused = OF_DRIVER_SUCCESS;
    int i;
    for (i = 0; status == OPFORGE_OK && i < path->step_count; i++) {
        const Step *step = &path->steps[i];
        int overflow = 0;
        step->numbers(values, at, n, &overflow);
        if (step->kind == OF_ALLOCATE) {
            status = of_allocate(workspace, n[0], WORKSPACE_ALIGNMENT, &at[step->buffer]);
        } else if (step->kind == OF_FILL) {
            status = of_fill(workspace->scope, at[step->buffer] + (uint64_t)n[0], n[1], step->width,
                             step->pattern);
        } else {
            if (chosen->image != NULL) {
                status = launch_kernel(step->launch, chosen, n, workspace, graph, &refused);
            }
            chosen++;
        }
    }
    if (graph != NULL && status != OPFORGE_OK) {
        of_abandon_graph(graph);
    } else if (graph != NULL && of_launch_graph(graph, refused) != OF_DRIVER_SUCCESS) {
        /* What is wrong with a kernel, its own launch says. */
        status = launch_all(path, values, at, first, workspace);
    }
    return status;
}

/* Most paths. The numbers that the kernel was chosen by are launched as they are. */
static OpforgeStatus run_one_launch(const Step *step, const void *values, const uint64_t *at,
                                    Workspace *workspace, const char *written)
{
    int64_t n[OF_MAX_NUMBERS];
    Chosen chosen;
    OpforgeStatus status = of_prepare(step, 0, values, at, workspace->scope->device, n, &chosen);
    if (status == OPFORGE_OK && chosen.image != NULL) {
        status = launch_kernel(step->launch, &chosen, n, workspace, NULL, NULL);
    } else if (status == OPFORGE_OK && written != NULL) {
        status = of_refuse_nothing(step->launch, written);
    }
    return status;
}

OpforgeStatus of_run(const Operation *op, const Path *path, const View *views, const void *values,
                     Place place, void *stream, const char *written)
{
    Scope scope;
    Workspace workspace;
    uint64_t at[OF_MAX_BUFFERS];
    Chosen chosen[OF_MAX_LAUNCHES];
    OpforgeStatus status = of_enter(place, stream, &scope);
    if (status != OPFORGE_OK) {
        return status;
    }
    workspace.function = op->name;
    workspace.scope = &scope;
    workspace.has_allocator = 0;
    workspace.release = NULL;
    workspace.count = 0;
    of_locate(op, path, views, at);
    if (path->step_count == 1 && path->steps[0].kind == OF_LAUNCH) {
        status = run_one_launch(&path->steps[0], values, at, &workspace, written);
    } else {
        status = of_plan(path, values, at, scope.device, chosen, written);
        if (status == OPFORGE_OK) {
            status = take_steps(path, values, at, chosen, &workspace);
        }
    }
    return of_leave(&scope, of_release_all(&workspace, status));
}
