/* memory SEED CALLS: as many calls, taken and refused, and loads and unloads use no more memory.
 *
 * Run it with GLIBC_TUNABLES=glibc.malloc.tcache_count=0: what that cache holds counts as used. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KEPT 256

static long resident_pages(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1) {
        pages = -1;
    }
    if (file != NULL) {
        fclose(file);
    }
    return pages;
}

static long long heap_bytes(void)
{
#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 33)
    return (long long)mallinfo2().uordblks;
#endif
#endif
    return 0;
}

static void make(Call *calls, uint64_t count)
{
    uint64_t i;
    for (i = 0; i < count; i++) {
        Call *call = &calls[i % KEPT];
        call->op->call(call);
        if (i % 5000 == 0) {
            demo_load((int)(i / 5000 % DEVICES));
        }
        if (i % 10000 == 0) {
            demo_unload(0);
            demo_unload(1);
        }
    }
    demo_unload(0);
    demo_unload(1);
}

int main(int argc, char **argv)
{
    static Call calls[KEPT];
    long long heap;
    long pages;
    uint64_t count;
    int taken = 0;
    int i;
    if (argc != 3) {
        return 2;
    }
    count = strtoull(argv[2], NULL, 10);
    set_up_devices();
    standin_on_launch(NULL);
    for (i = 0; i < KEPT; i++) {
        prepare(&calls[i], strtoull(argv[1], NULL, 10), (uint64_t)i, -1, -1);
        taken += calls[i].op->call(&calls[i]) == OPFORGE_OK;
    }
    make(calls, 100000);
    heap = heap_bytes();
    pages = resident_pages();
    make(calls, count);
    heap = heap_bytes() - heap;
    pages = resident_pages() - pages;
    printf("%d of %d calls are taken; %lld bytes and %ld pages more after %llu calls\n", taken,
           KEPT, heap, pages, (unsigned long long)count);
    /* malloc keeps some pages for itself; a byte per call would be 244 after a million. */
    if (heap != 0 || pages > 64) {
        printf("found: memory grows\n");
        return 1;
    }
    for (i = 0; i < KEPT; i++) {
        release(&calls[i]);
    }
    return 0;
}
