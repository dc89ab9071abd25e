// The engine's operators, on each device that it was built for.
#pragma once

#include <cstddef>
#include <vector>

namespace engine {

namespace cpu {
void add(const float *x, const float *y, float *out, std::size_t n);
void silu(const float *x, float *out, std::size_t n);
} // namespace cpu

#ifdef ENGINE_WITH_TRITON
namespace gpu {
// Pointers are to memory of the GPU; all throw std::runtime_error.
void add(const float *x, const float *y, float *out, std::size_t n);
void silu(const float *x, float *out, std::size_t n);

// Memory of the GPU, for as long as the program runs.
float *allocate(std::size_t n);
void copy_in(float *to, const std::vector<float> &from);
// Waits for what writes there.
std::vector<float> copy_out(const float *from, std::size_t n);
} // namespace gpu
#endif

} // namespace engine
