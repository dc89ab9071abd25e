/* Which of the library's images suits a device. */
#include "runtime.h"

/* 3: this architecture; 2: an earlier minor of the same major; 1: PTX; 0: not at all. From
 * OF_FIRST_ARCH_SPECIFIC on, Triton compiles with the features of that very architecture (sm_90a),
 * and such an image runs nowhere else. */
static int nvidia_fitness(int built_for, int is_ptx, int arch)
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

/* What was compiled for an AMD GPU runs on that architecture alone. */
static int fitness(int vendor, int built_for, int is_ptx, int arch)
{
    return vendor == OF_AMD ? 3 * (built_for == arch) : nvidia_fitness(built_for, is_ptx, arch);
}

/* The architecture that host code is told for a device: the one whose images it runs, because only
 * that one's decisions were traced. */
int of_counts_as(int vendor, int arch)
{
    int best = arch;
    int best_fitness = 0;
    int i;
    for (i = 0; i < of_arch_count; i++) {
        const int built_for = of_arch_list[i].arch;
        int fits = 0;
        if (of_arch_list[i].vendor != vendor) {
            continue;
        }
        fits = fitness(vendor, built_for, 0, arch);
        if (fits == 0 && of_arch_list[i].has_ptx) {
            fits = fitness(vendor, built_for, 1, arch);
        }
        if (fits > best_fitness || (fits > 0 && fits == best_fitness && built_for > best)) {
            best = built_for;
            best_fitness = fits;
        }
    }
    return best;
}

int of_is_built_for(int vendor)
{
    int i;
    for (i = 0; i < of_arch_count; i++) {
        if (of_arch_list[i].vendor == vendor) {
            return 1;
        }
    }
    return 0;
}

const Image *of_choose_image(const Kernel *kernel, int vendor, int arch)
{
    const Image *best = NULL;
    int best_fitness = 0;
    int i;
    for (i = 0; i < kernel->image_count; i++) {
        const Image *image = &kernel->images[i];
        const int fits = image->vendor == vendor ? fitness(vendor, image->arch, image->is_ptx, arch)
                                                 : 0;
        if (fits > best_fitness || (fits > 0 && fits == best_fitness && image->arch > best->arch)) {
            best = image;
            best_fitness = fits;
        }
    }
    return best;
}

/* As people write it: "sm_90", "gfx942". */
void of_describe_arch(int vendor, int arch)
{
    if (vendor == OF_AMD) {
        of_more("gfx%x", (unsigned int)arch);
    } else {
        of_more("sm_%d", arch);
    }
}

/* What it runs on: "sm_90a", "PTX for sm_80", "gfx942". */
void of_describe_image(const Image *image)
{
    of_more("%s", image->is_ptx ? "PTX for " : "");
    of_describe_arch(image->vendor, image->arch);
    of_more("%s", image->vendor == OF_NVIDIA && image->arch >= OF_FIRST_ARCH_SPECIFIC ? "a" : "");
}
