/* The stand-in's CUDA graphs: chains of kernels, which a launch runs one after the other. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

#define MAX_NODES 64
#define MAX_PARAMETERS 128
#define INVALID_VALUE 1
#define CAPTURE_UNSUPPORTED 900

/* As cuda.h lays it out; written apart from the library's own declaration. */
typedef struct {
    void *func;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    void **kernelParams;
    void **extra;
    void *kern;
    void *ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct Node {
    const struct Node *source; /* of an executable's: the graph's */
    void *function;
    LaunchRecord record;
    int count;
    uint64_t values[MAX_PARAMETERS][16]; /* a tensor map has 128 bytes */
} Node;

typedef struct {
    int count;
    int is_executable;
    Node *nodes[MAX_NODES];
} Graph;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int live;
static void *captured;
static __thread int mode;

/* For the tests. */

int standin_graphs(void)
{
    return live;
}

void standin_capture(void *stream)
{
    captured = stream;
}

static void count(int change)
{
    pthread_mutex_lock(&lock);
    live += change;
    pthread_mutex_unlock(&lock);
}

/* The driver knows how many parameters a kernel has; here a NULL ends them. */
static int keep(Node *node, const CUDA_KERNEL_NODE_PARAMS *launch)
{
    if (launch->extra != NULL || launch->kern != NULL) {
        return INVALID_VALUE;
    }
    node->function = launch->func;
    memset(&node->record, 0, sizeof node->record);
    node->record.grid[0] = launch->gridDimX;
    node->record.grid[1] = launch->gridDimY;
    node->record.grid[2] = launch->gridDimZ;
    node->record.block[0] = launch->blockDimX;
    node->record.block[1] = launch->blockDimY;
    node->record.block[2] = launch->blockDimZ;
    node->record.shared = launch->sharedMemBytes;
    node->record.cluster = 1;
    for (node->count = 0; launch->kernelParams[node->count] != NULL; node->count++) {
        if (node->count == MAX_PARAMETERS) {
            return INVALID_VALUE;
        }
        const void *given = launch->kernelParams[node->count];
        uint64_t *kept = node->values[node->count];
        uint32_t start;
        memcpy(&start, given, sizeof start);
        memcpy(kept, given, start == STANDIN_MAP ? sizeof node->values[0] : sizeof *kept);
    }
    return 0;
}

int cuGraphCreate(void **graph, unsigned int flags)
{
    const int failure = standin_enter("cuGraphCreate");
    if (failure || flags != 0) {
        return failure ? failure : INVALID_VALUE;
    }
    *graph = calloc(1, sizeof(Graph));
    count(1);
    return 0;
}

static int destroy(Graph *graph)
{
    int i;
    for (i = 0; i < graph->count; i++) {
        free(graph->nodes[i]);
    }
    free(graph);
    count(-1);
    return 0;
}

int cuGraphDestroy(void *graph)
{
    const int failure = standin_enter("cuGraphDestroy");
    return failure ? failure : destroy((Graph *)graph);
}

int cuGraphExecDestroy(void *executable)
{
    const int failure = standin_enter("cuGraphExecDestroy");
    return failure ? failure : destroy((Graph *)executable);
}

/* Each node comes after the one before: others are not used. */
int cuGraphAddKernelNode_v2(void **node, void *graph, void *const *after, size_t after_count,
                            const CUDA_KERNEL_NODE_PARAMS *launch)
{
    const int failure = standin_enter("cuGraphAddKernelNode");
    Graph *to = (Graph *)graph;
    Node *made;
    if (failure) {
        return failure;
    }
    if (to->is_executable || to->count == MAX_NODES || after_count != (to->count > 0) ||
        (after_count && after[0] != to->nodes[to->count - 1])) {
        return INVALID_VALUE;
    }
    made = (Node *)calloc(1, sizeof *made);
    *node = to->nodes[to->count++] = made;
    return keep(made, launch);
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags)
{
    const int failure = standin_enter("cuGraphInstantiate");
    const Graph *from = (const Graph *)graph;
    Graph *made;
    int i;
    if (failure || flags != 0) {
        return failure ? failure : INVALID_VALUE;
    }
    if (captured != NULL && mode != 2) {
        return CAPTURE_UNSUPPORTED;
    }
    made = (Graph *)calloc(1, sizeof *made);
    made->is_executable = 1;
    made->count = from->count;
    for (i = 0; i < from->count; i++) {
        made->nodes[i] = (Node *)malloc(sizeof(Node));
        *made->nodes[i] = *from->nodes[i];
        made->nodes[i]->source = from->nodes[i];
    }
    *executable = made;
    count(1);
    return 0;
}

/* The node is the graph's; its executable has a copy. */
int cuGraphExecKernelNodeSetParams_v2(void *executable, void *node,
                                      const CUDA_KERNEL_NODE_PARAMS *launch)
{
    const int failure = standin_enter("cuGraphExecKernelNodeSetParams");
    const Graph *graph = (const Graph *)executable;
    int i;
    if (failure) {
        return failure;
    }
    for (i = 0; i < graph->count; i++) {
        if (graph->nodes[i]->source == node) {
            return keep(graph->nodes[i], launch);
        }
    }
    return INVALID_VALUE;
}

int cuGraphLaunch(void *executable, void *stream)
{
    const int failure = standin_enter("cuGraphLaunch");
    const Graph *graph = (const Graph *)executable;
    int i;
    int j;
    if (failure) {
        return failure;
    }
    if (captured != NULL && stream == captured) {
        return CAPTURE_UNSUPPORTED;
    }
    for (i = 0; i < graph->count; i++) {
        Node *node = graph->nodes[i];
        void *parameters[MAX_PARAMETERS];
        LaunchRecord record = node->record;
        int error;
        for (j = 0; j < node->count; j++) {
            parameters[j] = node->values[j];
        }
        record.stream = stream;
        record.parameters = parameters;
        record.in_graph = 1;
        error = standin_launch(&record, node->function);
        if (error) {
            return error;
        }
    }
    return 0;
}

int cuStreamIsCapturing(void *stream, int *status)
{
    const int failure = standin_enter("cuStreamIsCapturing");
    if (failure) {
        return failure;
    }
    *status = captured != NULL && stream == captured;
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *given)
{
    const int failure = standin_enter("cuThreadExchangeStreamCaptureMode");
    const int before = mode;
    if (failure) {
        return failure;
    }
    mode = *given;
    *given = before;
    return 0;
}
