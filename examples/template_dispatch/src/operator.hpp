// Operators by type: Operator<op::add, Device::cpu, 0>::call(x, y, out).
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "tensor.hpp"

namespace lab {

// One way to compute an operator on a device. A slot that nobody defines is empty.
template <typename Op, Device device, int slot> struct Operator;

inline constexpr int slots = 16;

template <typename Op, Device device, int slot, typename = void>
struct has_slot : std::false_type {};
template <typename Op, Device device, int slot>
struct has_slot<Op, device, slot, std::void_t<decltype(sizeof(Operator<Op, device, slot>))>>
    : std::true_type {};

namespace detail {

template <typename Op, Device device, int slot, typename... Arguments>
bool call_if_there(Arguments &...arguments)
{
    if constexpr (has_slot<Op, device, slot>::value) {
        Operator<Op, device, slot>::call(arguments...);
        return true;
    }
    return false;
}

template <typename Op, Device device, int... every, typename... Arguments>
bool call(std::integer_sequence<int, every...>, int slot, Arguments &...arguments)
{
    return ((every == slot && call_if_there<Op, device, every>(arguments...)) || ...);
}

} // namespace detail

// By a slot that is known when the program runs.
template <typename Op, Device device, typename... Arguments>
void call(int slot, Arguments &...arguments)
{
    if (!detail::call<Op, device>(std::make_integer_sequence<int, slots>(), slot, arguments...)) {
        throw std::out_of_range("slot " + std::to_string(slot) + " is empty");
    }
}

} // namespace lab
