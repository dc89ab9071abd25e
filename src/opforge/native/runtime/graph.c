/* Launches the kernels of a path as one CUDA graph.
 *
 * To launch a graph takes as long as to launch one kernel, or less. Its nodes get the functions,
 * grids and arguments of each call. There is one per stream, because launches of the same graph
 * wait for each other.
 */
#include "runtime.h"

#include <stdlib.h>

/* A graph is made in a call that takes as long as many others; most programs call rarely or often.
 */
#define CALLS_BEFORE 16
#define MAX_STREAMS 8

struct Graph {
    const Path *path;
    void *stream;
    Graph *next;
    int is_busy;
    int is_refused;
    int calls;
    int count;
    void *graph;
    void *executable; /* NULL while its nodes are added */
    void *nodes[OF_MAX_LAUNCHES];
};

static Graph **bucket_of(Device *device, const Path *path)
{
    return &device->graphs[((uintptr_t)path >> 4) % OF_GRAPH_BUCKETS];
}

static Graph *find(Graph *first, const Path *path, const void *stream, int *streams)
{
    for (*streams = 0; first != NULL; first = first->next) {
        if (first->path == path) {
            if (first->stream == stream) {
                return first;
            }
            ++*streams;
        }
    }
    return NULL;
}

/* What is filled between two launches would be filled before both. */
static int can_be_graph(const Path *path)
{
    int launches = 0;
    int i;
    for (i = 0; i < path->step_count; i++) {
        if (path->steps[i].kind == OF_FILL && launches > 0) {
            return 0;
        }
        launches += path->steps[i].kind == OF_LAUNCH;
    }
    return launches > 1;
}

static int has_functions(void)
{
    return of_driver.cuGraphCreate != NULL && of_driver.cuGraphDestroy != NULL &&
           of_driver.cuGraphAddKernelNode != NULL && of_driver.cuGraphInstantiate != NULL &&
           of_driver.cuGraphExecKernelNodeSetParams != NULL && of_driver.cuGraphLaunch != NULL &&
           of_driver.cuGraphExecDestroy != NULL && of_driver.cuStreamIsCapturing != NULL &&
           of_driver.cuThreadExchangeStreamCaptureMode != NULL;
}

static Graph *find_or_add(Device *device, const Path *path, void *stream)
{
    Graph **bucket = bucket_of(device, path);
    int streams;
    Graph *found = find(__atomic_load_n(bucket, __ATOMIC_ACQUIRE), path, stream, &streams);
    if (found != NULL || streams >= MAX_STREAMS) {
        return found;
    }
    of_lock();
    /* Another thread may have been faster. */
    found = find(*bucket, path, stream, &streams);
    if (found == NULL) {
        found = (Graph *)calloc(1, sizeof *found);
        if (found != NULL) {
            found->path = path;
            found->stream = stream;
            found->is_refused = !has_functions() || !can_be_graph(path);
            found->next = *bucket;
            __atomic_store_n(bucket, found, __ATOMIC_RELEASE);
        }
    }
    of_unlock();
    return found;
}

/* Whether all its kernels are launched, and without attributes. */
static int are_plain(const Path *path, const Chosen *chosen)
{
    int i;
    for (i = 0; i < path->step_count; i++) {
        if (path->steps[i].kind == OF_LAUNCH) {
            const Image *image = chosen++->image;
            if (image == NULL || image->num_ctas > 1 || image->cooperative || image->programmatic) {
                return 0;
            }
        }
    }
    return 1;
}

/* A captured stream takes kernels, but not graphs. */
static int is_captured(void *stream)
{
    int captured = 0;
    return of_driver.cuStreamIsCapturing(stream, &captured) != OF_CUDA_SUCCESS || captured;
}

static void give_back(Graph *graph)
{
    __atomic_store_n(&graph->is_busy, 0, __ATOMIC_RELEASE);
}

Graph *of_take_graph(const Path *path, const Chosen *chosen, const Scope *scope)
{
    Graph *graph = find_or_add(scope->device, path, scope->stream);
    if (graph == NULL || __atomic_exchange_n(&graph->is_busy, 1, __ATOMIC_ACQUIRE)) {
        return NULL;
    }
    if (graph->is_refused || (graph->executable == NULL && ++graph->calls <= CALLS_BEFORE) ||
        !are_plain(path, chosen) || is_captured(scope->stream)) {
        give_back(graph);
        return NULL;
    }
    if (graph->executable == NULL && of_driver.cuGraphCreate(&graph->graph, 0) != OF_CUDA_SUCCESS) {
        graph->is_refused = 1;
        give_back(graph);
        return NULL;
    }
    graph->count = 0;
    return graph;
}

int of_add_launch(Graph *graph, const KernelNode *launch)
{
    void **node = &graph->nodes[graph->count++];
    if (graph->executable != NULL) {
        return of_driver.cuGraphExecKernelNodeSetParams(graph->executable, *node, launch);
    }
    return graph->count == 1
               ? of_driver.cuGraphAddKernelNode(node, graph->graph, NULL, 0, launch)
               : of_driver.cuGraphAddKernelNode(node, graph->graph, node - 1, 1, launch);
}

/* Another thread may be capturing a stream, which making a graph must not end. */
static int instantiate(Graph *graph)
{
    int mode = OF_CAPTURE_MODE_RELAXED;
    int error = of_driver.cuThreadExchangeStreamCaptureMode(&mode);
    if (error == OF_CUDA_SUCCESS) {
        error = of_driver.cuGraphInstantiate(&graph->executable, graph->graph, 0);
        of_driver.cuThreadExchangeStreamCaptureMode(&mode);
    }
    return error;
}

static int destroy(Graph *graph)
{
    int error = OF_CUDA_SUCCESS;
    if (graph->executable != NULL) {
        error = of_driver.cuGraphExecDestroy(graph->executable);
        graph->executable = error == OF_CUDA_SUCCESS ? NULL : graph->executable;
    }
    if (graph->graph != NULL && error == OF_CUDA_SUCCESS) {
        error = of_driver.cuGraphDestroy(graph->graph);
        graph->graph = error == OF_CUDA_SUCCESS ? NULL : graph->graph;
    }
    return error;
}

void of_abandon_graph(Graph *graph)
{
    if (graph->executable == NULL && destroy(graph) != OF_CUDA_SUCCESS) {
        graph->is_refused = 1;
    }
    give_back(graph);
}

int of_launch_graph(Graph *graph, int error)
{
    if (error == OF_CUDA_SUCCESS && graph->executable == NULL) {
        error = instantiate(graph);
    }
    if (error == OF_CUDA_SUCCESS) {
        error = of_driver.cuGraphLaunch(graph->executable, graph->stream);
    }
    if (error != OF_CUDA_SUCCESS) {
        graph->is_refused = 1;
    }
    give_back(graph);
    return error;
}

OpforgeStatus of_drop_graphs(Device *device)
{
    int i;
    for (i = 0; i < OF_GRAPH_BUCKETS; i++) {
        Graph *graph;
        while ((graph = device->graphs[i]) != NULL) {
            const int error = destroy(graph);
            if (error != OF_CUDA_SUCCESS) {
                return of_cuda_failed(error, "cuGraphDestroy");
            }
            device->graphs[i] = graph->next;
            free(graph);
        }
    }
    return OPFORGE_OK;
}
