// Slot 0 of the CPU: written by hand, for any strides.
#pragma once

#include <cmath>
#include <stdexcept>
#include <type_traits>

#include "operator.hpp"

namespace lab::op {
struct add;
struct silu;
} // namespace lab::op

namespace lab {
namespace detail {

template <typename T, typename Number, typename Function, typename... Inputs>
void elementwise(Function function, Tensor &out, const Inputs &...inputs)
{
    for (std::int64_t i = 0; i < out.numel(); i++) {
        const Number made =
            function(static_cast<Number>(static_cast<const T *>(inputs.data)[inputs.offset(i)])...);
        static_cast<T *>(out.data)[out.offset(i)] = static_cast<T>(made);
    }
}

template <typename Function, typename... Inputs>
void of_floats(Function function, Tensor &out, const Inputs &...inputs)
{
    if (out.type == Type::float32) {
        elementwise<float, float>(function, out, inputs...);
    } else if (out.type == Type::bfloat16) {
        elementwise<bfloat16, float>(function, out, inputs...);
    } else {
        throw std::invalid_argument("not of this type");
    }
}

} // namespace detail

template <> struct Operator<op::add, Device::cpu, 0> {
    static void call(const Tensor &x, const Tensor &y, Tensor &out)
    {
        const auto sum = [](auto a, auto b) { return a + b; };
        if (out.type == Type::int32) {
            detail::elementwise<std::int32_t, std::int32_t>(sum, out, x, y);
        } else if (out.type == Type::float32) {
            detail::elementwise<float, float>(sum, out, x, y);
        } else {
            throw std::invalid_argument("not of this type");
        }
    }
};

template <> struct Operator<op::silu, Device::cpu, 0> {
    static void call(const Tensor &x, Tensor &out)
    {
        detail::of_floats([](float a) { return a / (1 + std::exp(-a)); }, out, x);
    }
};

} // namespace lab
