// Says what the engine was built with; with --gpu it compares the GPU's results with the CPU's.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "engine.hpp"

namespace {

int compare()
{
#ifdef ENGINE_WITH_TRITON
    const std::size_t n = 100003;
    std::vector<float> x(n), expected_sum(n), expected(n);
    for (std::size_t i = 0; i < n; i++) {
        x[i] = std::sin(static_cast<float>(i)) * 4;
    }
    engine::cpu::add(x.data(), x.data(), expected_sum.data(), n);
    engine::cpu::silu(x.data(), expected.data(), n);

    float *on_gpu = engine::gpu::allocate(n);
    float *out = engine::gpu::allocate(n);
    engine::gpu::copy_in(on_gpu, x);
    engine::gpu::add(on_gpu, on_gpu, out, n);
    const std::vector<float> sum = engine::gpu::copy_out(out, n);
    engine::gpu::silu(on_gpu, out, n);
    const std::vector<float> activated = engine::gpu::copy_out(out, n);

    float worst = 0;
    for (std::size_t i = 0; i < n; i++) {
        worst = std::fmax(worst, std::fabs(sum[i] - expected_sum[i]));
        worst = std::fmax(worst, std::fabs(activated[i] - expected[i]));
    }
    std::printf("%zu numbers, largest difference %g\n", n, worst);
    return worst < 1e-5f ? 0 : 1;
#else
    std::printf("built without a GPU's operators: cmake -DWITH_NVIDIA=ON -DWITH_TRITON=ON\n");
    return 1;
#endif
}

} // namespace

int main(int count, char **arguments)
{
    if (count == 2 && std::strcmp(arguments[1], "--gpu") == 0) {
        try {
            return compare();
        } catch (const std::exception &error) {
            std::printf("%s\n", error.what());
            return 1;
        }
    }
#ifdef ENGINE_WITH_TRITON
    std::printf("cpu triton\n");
#else
    std::printf("cpu\n");
#endif
    return 0;
}
