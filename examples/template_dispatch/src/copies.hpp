// The same tensor on the CPU and on the GPU.
#pragma once

#include <cmath>

#include "memory.hpp"
#include "tensor.hpp"

namespace lab {

inline double number_at(const Tensor &tensor, std::int64_t i)
{
    switch (tensor.type) {
    case Type::bfloat16: return static_cast<float>(static_cast<const bfloat16 *>(tensor.data)[i]);
    case Type::float32: return static_cast<const float *>(tensor.data)[i];
    default: return static_cast<const std::int32_t *>(tensor.data)[i];
    }
}

inline void set_number(Tensor &tensor, std::size_t i, float number)
{
    switch (tensor.type) {
    case Type::bfloat16: static_cast<bfloat16 *>(tensor.data)[i] = bfloat16(number); break;
    case Type::float32: static_cast<float *>(tensor.data)[i] = number; break;
    default: static_cast<std::int32_t *>(tensor.data)[i] = static_cast<std::int32_t>(100 * number);
    }
}

class Copies {
  public:
    Copies(Type type, const std::vector<std::int64_t> &shape,
           const std::vector<std::int64_t> &strides)
        : cpu{nullptr, type, shape, strides}, bytes_(size_of(type) * elements()),
          memory_(bytes_.size())
    {
        cpu.data = bytes_.data();
        gpu = cpu;
        gpu.data = memory_.get();
    }
    // What strides leave out is filled as well.
    template <typename Function> void fill(Function number)
    {
        for (std::size_t i = 0; i < elements(); i++) {
            set_number(cpu, i, number(i));
        }
        memory_.write(bytes_.data());
    }
    // The largest difference between the two, as a share of the numbers' size.
    double difference() const
    {
        std::vector<unsigned char> read(bytes_.size());
        memory_.read(read.data());
        Tensor there = cpu;
        there.data = read.data();
        double worst = 0;
        for (std::int64_t i = 0; i < cpu.numel(); i++) {
            const double expected = number_at(cpu, cpu.offset(i));
            const double apart = std::fabs(number_at(there, cpu.offset(i)) - expected);
            worst = std::fmax(worst, std::isnan(apart) ? INFINITY : apart / size(expected));
        }
        return worst;
    }
    // Of the GPU's.
    float first() const
    {
        std::vector<unsigned char> read(bytes_.size());
        memory_.read(read.data());
        Tensor there = cpu;
        there.data = read.data();
        return static_cast<float>(number_at(there, 0));
    }

    Tensor cpu;
    Tensor gpu;

  private:
    static double size(double number) { return std::fmax(1, std::fabs(number)); }
    // From the first to the last, at least one.
    std::size_t elements() const
    {
        return cpu.numel() > 0 ? static_cast<std::size_t>(cpu.offset(cpu.numel() - 1)) + 1 : 1;
    }
    std::vector<unsigned char> bytes_;
    Memory memory_;
};

} // namespace lab
