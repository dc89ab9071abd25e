/* What the stand-ins for two drivers know of the machine that they share, gpu.c. */
#ifndef STANDIN_GPU_H
#define STANDIN_GPU_H

#include <stdint.h>

#include "standin.h"

/* CUresult and hipError_t number these alike. */
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719
};

#define MAX_DEVICES 8
#define MAX_ATTRIBUTES 160

typedef struct Context {
    int device;
    int is_primary;
} Context;

typedef struct {
    int retained;
    Context primary;
    char arch[64];
    int attributes[MAX_ATTRIBUTES];
} Device;

typedef struct Module {
    Context *context;
    void *image;
} Module;

typedef struct Function {
    Module *module;
    char name[256];
    int max_shared;
    unsigned int max_threads;
    int non_portable;
    struct Function *next;
} Function;

typedef struct Stream {
    Context *context;
} Stream;

extern Device standin_device[MAX_DEVICES];
extern int standin_device_count;
void standin_set_up(void);

/* The face's: the context that is current in the thread, or NULL. */
Context *standin_current(void);

int standin_initialize(void);
void *standin_load(Context *context, const void *image);
void standin_unload(Module *module);
int standin_find(void **function, Module *module, const char *name, int max_shared);
LaunchRecord standin_record(const unsigned int *grid, const unsigned int *block,
                            unsigned int shared, void *stream, void **parameters);
int standin_pointer(void *value, int attribute, uint64_t address);
int standin_allocate(uint64_t *address, size_t bytes);
int standin_release(uint64_t address);
int standin_fill(const char *name, uint64_t address, const void *value, size_t width, size_t pitch,
                 size_t count);

#endif
