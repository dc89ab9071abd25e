/* calls SEED FIRST COUNT: makes as many calls, valid, at the boundaries and mutated. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    uint64_t seed;
    uint64_t first;
    uint64_t count;
    uint64_t i;
    if (argc != 4) {
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    first = strtoull(argv[2], NULL, 10);
    count = strtoull(argv[3], NULL, 10);
    say_where_at_death();
    set_up_devices();
    for (i = 0; i < count; i++) {
        check_round(seed, first + i, 1);
    }
    alarm(0);
    if (demo_unload(0) != OPFORGE_OK || demo_unload(1) != OPFORGE_OK ||
        standin_live_modules() != 0 || standin_live_contexts() != 0) {
        printf("found: unload left something: %s\n", demo_last_error());
        return 1;
    }
    printf("%llu calls\n", (unsigned long long)count);
    return 0;
}
