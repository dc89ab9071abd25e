/* What the parts of the stand-in know of each other. */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>

/* What a launch was given; `parameters` is as the driver gets it. */
typedef struct {
    int device;
    void *stream;
    const void *image;
    const char *function;
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared;
    unsigned int cluster;
    int cooperative;
    int programmatic;
    int spread;
    int has_attributes;
    int in_graph;
    void **parameters;
} LaunchRecord;

typedef int (*LaunchHook)(const LaunchRecord *launch);

/* Called for every launch; what it answers is the launch's result. */
void standin_on_launch(LaunchHook to_call);

/* How a tensor map begins. */
#define STANDIN_MAP 0x544d4150

/* Begins every call of the driver: what it has to fail with, or 0. */
int standin_enter(const char *name);

/* Checks a launch, and hands it to the test. */
int standin_launch(LaunchRecord *record, void *function);

/* The bytes of a cubin, or of PTX without its final zero. */
size_t standin_image_size(const void *image);

/* Where device memory comes from, if not from malloc; such memory is never freed. */
typedef void *(*Allocator)(size_t bytes);
void standin_allocate_with(Allocator to_call);

#endif
