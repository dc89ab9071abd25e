#include <cmath>

#include "engine.hpp"

namespace engine::cpu {

void add(const float *x, const float *y, float *out, std::size_t n)
{
    for (std::size_t i = 0; i < n; i++) {
        out[i] = x[i] + y[i];
    }
}

void silu(const float *x, float *out, std::size_t n)
{
    for (std::size_t i = 0; i < n; i++) {
        out[i] = x[i] / (1 + std::exp(-x[i]));
    }
}

} // namespace engine::cpu
