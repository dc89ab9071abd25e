// Slots of GPUs from the generated library: 8 leaves the choice of an implementation to it,
// 9 + i is its implementation i. An operator that comes to ops/ is here without an edit.
#pragma once

#include <lab_ops.hpp>

#include <stdexcept>

#include "memory.hpp"
#include "operator.hpp"

namespace lab::op {
#define OPFORGE_OPERATOR(op_, implementations, tensors, values, outputs, function) struct op_;
#include <lab_ops_dispatch.inc>
} // namespace lab::op

namespace lab {
namespace detail {

inline opforge::Tensor lowered(const Tensor &tensor)
{
    static constexpr opforge::DType types[] = {opforge::bfloat16, opforge::float32, opforge::int32};
    const opforge::DType type = types[static_cast<int>(tensor.type)];
    const opforge::Device device = Memory::is_nvidias() ? opforge::Device::cuda(0)
                                                        : opforge::Device::rocm(0);
    return opforge::Tensor(tensor.data, type, tensor.shape, tensor.strides, device);
}
template <typename Number> Number lowered(Number number)
{
    return number;
}
inline OpforgeTensor *raw(opforge::Tensor &&tensor)
{
    return tensor.raw();
}
template <typename Number> Number raw(Number number)
{
    return number;
}
inline void check(OpforgeStatus status)
{
    if (status != OPFORGE_OK) {
        throw opforge::Error(status, lab_ops_last_error());
    }
}

} // namespace detail

template <auto function> struct Generated {
    template <typename... Arguments> static void call(const Arguments &...arguments)
    {
        detail::check(function(detail::raw(detail::lowered(arguments))..., nullptr));
    }
};

template <auto function, int index> struct GeneratedBy {
    template <typename... Arguments> static void call(const Arguments &...arguments)
    {
        detail::check(function(index, detail::raw(detail::lowered(arguments))..., nullptr));
    }
};

#define OPFORGE_OPERATOR(op_, implementations, tensors, values, outputs, function) \
    template <> struct Operator<op::op_, Device::gpu, 8> : Generated<&function> {};
#define OPFORGE_IMPLEMENTATION(op_, index, name, tensors, values, outputs, function) \
    template <> \
    struct Operator<op::op_, Device::gpu, 9 + index> : GeneratedBy<&function##_with, index> {};
#include <lab_ops_dispatch.inc>

} // namespace lab
