/* Which of the library's images suits a device. */
#include "runtime.h"

/* 3: this architecture; 2: an earlier minor of the same major; 1: PTX; 0: not at all. From
 * OF_FIRST_ARCH_SPECIFIC on, Triton compiles with the features of that very architecture (sm_90a),
 * and such an image runs nowhere else. */
static int fitness(int built_for, int is_ptx, int arch)
{
    if (is_ptx) {
        return built_for <= arch && built_for < OF_FIRST_ARCH_SPECIFIC;
    }
    if (built_for == arch) {
        return 3;
    }
    if (built_for < OF_FIRST_ARCH_SPECIFIC && built_for < arch && built_for / 10 == arch / 10) {
        return 2;
    }
    return 0;
}

/* The architecture that host code is told for a device: the one whose images it runs, because only
 * that one's decisions were traced. */
int of_counts_as(int arch)
{
    int best = arch;
    int best_fitness = 0;
    int i;
    for (i = 0; i < of_arch_count; i++) {
        const int built_for = of_arch_list[i].arch;
        int fits = fitness(built_for, 0, arch);
        if (fits == 0 && of_arch_list[i].has_ptx) {
            fits = fitness(built_for, 1, arch);
        }
        if (fits > best_fitness || (fits > 0 && fits == best_fitness && built_for > best)) {
            best = built_for;
            best_fitness = fits;
        }
    }
    return best;
}

const Image *of_choose_image(const Kernel *kernel, int arch)
{
    const Image *best = NULL;
    int best_fitness = 0;
    int i;
    for (i = 0; i < kernel->image_count; i++) {
        const Image *image = &kernel->images[i];
        const int fits = fitness(image->arch, image->is_ptx, arch);
        if (fits > best_fitness || (fits > 0 && fits == best_fitness && image->arch > best->arch)) {
            best = image;
            best_fitness = fits;
        }
    }
    return best;
}
