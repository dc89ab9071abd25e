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
    const Driver *driver;
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

static int has_functions(const Driver *driver)
{
    return driver->create_graph != NULL && driver->destroy_graph != NULL &&
           driver->add_node != NULL && driver->instantiate_graph != NULL &&
           driver->set_node != NULL && driver->launch_graph != NULL &&
           driver->destroy_executable != NULL && driver->is_capturing != NULL &&
           driver->exchange_capture_mode != NULL;
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
            found->driver = device->driver;
            found->path = path;
            found->stream = stream;
            found->is_refused = !has_functions(device->driver) || !can_be_graph(path);
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
static int is_captured(const Driver *driver, void *stream)
{
    int captured = 0;
    return driver->is_capturing(stream, &captured) != OF_DRIVER_SUCCESS || captured;
}

static void give_back(Graph *graph)
{
    __atomic_store_n(&graph->is_busy, 0, __ATOMIC_RELEASE);
}

Graph *of_take_graph(const Path *path, const Chosen *chosen, const Scope *scope)
{
    const Driver *driver = scope->device->driver;
    Graph *graph = find_or_add(scope->device, path, scope->stream);
    if (graph == NULL || __atomic_exchange_n(&graph->is_busy, 1, __ATOMIC_ACQUIRE)) {
        return NULL;
    }
    if (graph->is_refused || (graph->executable == NULL && ++graph->calls <= CALLS_BEFORE) ||
        !are_plain(path, chosen) || is_captured(driver, scope->stream)) {
        give_back(graph);
        return NULL;
    }
    if (graph->executable == NULL && driver->create_graph(&graph->graph, 0) != OF_DRIVER_SUCCESS) {
        graph->is_refused = 1;
        give_back(graph);
        return NULL;
    }
    graph->count = 0;
    return graph;
}

int of_add_launch(Graph *graph, const KernelNode *launch)
{
    const Driver *driver = graph->driver;
    void **node = &graph->nodes[graph->count++];
    if (graph->executable != NULL) {
        return driver->set_node(graph->executable, *node, launch);
    }
    return graph->count == 1 ? driver->add_node(node, graph->graph, NULL, 0, launch)
                             : driver->add_node(node, graph->graph, node - 1, 1, launch);
}

/* Another thread may be capturing a stream, which making a graph must not end. */
static int instantiate(Graph *graph)
{
    const Driver *driver = graph->driver;
    int mode = OF_CAPTURE_MODE_RELAXED;
    int error = driver->exchange_capture_mode(&mode);
    if (error == OF_DRIVER_SUCCESS) {
        error = driver->instantiate_graph(&graph->executable, graph->graph, 0);
        driver->exchange_capture_mode(&mode);
    }
    return error;
}

static int destroy(Graph *graph)
{
    const Driver *driver = graph->driver;
    int error = OF_DRIVER_SUCCESS;
    if (graph->executable != NULL) {
        error = driver->destroy_executable(graph->executable);
        graph->executable = error == OF_DRIVER_SUCCESS ? NULL : graph->executable;
    }
    if (graph->graph != NULL && error == OF_DRIVER_SUCCESS) {
        error = driver->destroy_graph(graph->graph);
        graph->graph = error == OF_DRIVER_SUCCESS ? NULL : graph->graph;
    }
    return error;
}

void of_abandon_graph(Graph *graph)
{
    if (graph->executable == NULL && destroy(graph) != OF_DRIVER_SUCCESS) {
        graph->is_refused = 1;
    }
    give_back(graph);
}

int of_launch_graph(Graph *graph, int error)
{
    if (error == OF_DRIVER_SUCCESS && graph->executable == NULL) {
        error = instantiate(graph);
    }
    if (error == OF_DRIVER_SUCCESS) {
        error = graph->driver->launch_graph(graph->executable, graph->stream);
    }
    if (error != OF_DRIVER_SUCCESS) {
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
            if (error != OF_DRIVER_SUCCESS) {
                return of_driver_failed(device->driver, error, &device->driver->destroy_graph);
            }
            device->graphs[i] = graph->next;
            free(graph);
        }
    }
    return OPFORGE_OK;
}
