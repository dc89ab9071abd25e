/* Calls tiny_add, and says what it would have launched. */
#include <stdio.h>
#include <string.h>
#include <tiny.h>

int main(void)
{
    float x[4] = {1, 2, 3, 4};
    float out[4] = {0, 0, 0, 0};
    int64_t shape[OPFORGE_MAX_RANK] = {4};
    OpforgeTensor a = {x, {2, 0}, 1, {2, 32, 1}, shape, NULL, 0};
    OpforgeTensor b = a;
    OpforgeTensor c = a;
    c.data = out;
    if (tiny_add(&a, &b, &c, NULL) != OPFORGE_OK) {
        printf("%s\n", tiny_last_error());
        return 1;
    }
    printf("%s\n", strstr(tiny_manifest(), "tiny::add") ? "tiny::add" : "");
    return tiny_unload(0);
}
