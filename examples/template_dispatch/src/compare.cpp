// Goes through the operators by the list that is generated, and names none of them.
#include "compare.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <list>

#include "copies.hpp"
#include "cpu.hpp"
#include "triton.hpp"

namespace lab {
namespace {

using Sizes = std::vector<std::int64_t>;

Sizes compact(const Sizes &shape)
{
    Sizes strides(shape.size());
    std::int64_t step = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
        strides[i] = step;
        step *= shape[i];
    }
    return strides;
}

// The layouts that an input is tried in, by name.
const std::vector<std::string> layouts = {"compact", "columns", "every second", "one row"};

Sizes strides_of(const std::string &layout, const Sizes &shape)
{
    Sizes strides = compact(shape);
    if (layout == "columns") {
        std::int64_t step = 1;
        for (std::size_t i = 0; i < shape.size(); i++) {
            strides[i] = step;
            step *= shape[i];
        }
    } else if (layout == "every second") {
        for (std::int64_t &step : strides) {
            step *= 2;
        }
    } else if (layout == "one row") {
        strides[0] = 0;
    }
    return strides;
}

float sample(std::size_t i)
{
    return std::sin(static_cast<float>(i) + 1) * 4;
}

// Inputs of one type and shape, and an output of the same.
template <std::size_t count> struct Call {
    std::list<Copies> tensors;
    Call(Type type, const Sizes &shape, const std::string &layout)
    {
        for (std::size_t i = 0; i < count; i++) {
            // The second one is compact, so that layouts meet.
            const Sizes strides = strides_of(i == 1 ? "compact" : layout, shape);
            tensors.emplace_back(type, shape, strides);
            tensors.back().fill([i](std::size_t n) { return sample(n + 31 * i); });
        }
        tensors.emplace_back(type, shape, compact(shape));
        tensors.back().fill([](std::size_t) { return 77.0f; });
    }
    template <typename Op, Device device> void run(int slot)
    {
        std::array<Tensor *, count + 1> given{};
        std::size_t i = 0;
        for (Copies &each : tensors) {
            given[i++] = device == Device::cpu ? &each.cpu : &each.gpu;
        }
        run_with<Op, device>(slot, given, std::make_index_sequence<count + 1>());
    }
    template <typename Op, Device device, std::size_t... index>
    void run_with(int slot, const std::array<Tensor *, count + 1> &given,
                  std::index_sequence<index...>)
    {
        lab::call<Op, device>(slot, *given[index]...);
    }
};

struct Counted {
    int computed = 0;
    int refused = 0;
    int wrong = 0;
};

// Slot 8 covers what slot 0 does; one implementation alone may refuse a call.
template <typename Op, std::size_t inputs>
void compare_one(const char *name, int slot, Type type, const Sizes &shape,
                 const std::string &layout, Counted &counted)
{
    Call<inputs> call(type, shape, layout);
    try {
        call.template run<Op, Device::cpu>(0);
    } catch (const std::invalid_argument &) {
        return;
    }
    try {
        call.template run<Op, Device::gpu>(slot);
    } catch (const opforge::Error &error) {
        if (slot == 8 || error.status() == OPFORGE_CUDA_ERROR) {
            throw;
        }
        counted.refused++;
        return;
    }
    counted.computed++;
    const double limit = type == Type::bfloat16 ? 0.01 : type == Type::float32 ? 1e-5 : 0;
    const double apart = call.tensors.back().difference();
    if (!(apart <= limit)) {
        std::printf("%s, slot %d, %s of type %d: off by %g\n", name, slot, layout.c_str(),
                    static_cast<int>(type), apart);
        counted.wrong++;
    }
}

template <typename Op, std::size_t inputs> int compare_all(const char *name, int slot)
{
    Counted counted;
    for (const Type type : {Type::bfloat16, Type::float32, Type::int32}) {
        for (const Sizes &shape : std::vector<Sizes>{{1}, {1027}, {0}, {7, 5}, {33, 64}, {4, 0}}) {
            for (const std::string &layout : layouts) {
                compare_one<Op, inputs>(name, slot, type, shape, layout, counted);
            }
        }
    }
    std::printf("%s, slot %d: %d computed, %d refused, %d wrong\n", name, slot, counted.computed,
                counted.refused, counted.wrong);
    return counted.wrong + (counted.computed == 0);
}

// Numbers and choices have no place in a call of tensors alone.
template <typename Op, int inputs, int values, int outputs>
inline constexpr bool is_plain = values == 0 && outputs == 1 && inputs > 0;

template <typename Op, int inputs, int values, int outputs>
int compare_slots(const char *name, int implementations)
{
    int wrong = 0;
    if constexpr (is_plain<Op, inputs, values, outputs> && has_slot<Op, Device::cpu, 0>::value) {
        for (int slot = 8; slot <= 8 + implementations; slot++) {
            wrong += compare_all<Op, inputs>(name, slot);
        }
    } else {
        std::printf("%s: nothing to compare with\n", name);
    }
    return wrong;
}

template <typename Op, int inputs, int values, int outputs>
bool call_one(int slot, const std::vector<float> &numbers, float &result)
{
    if constexpr (is_plain<Op, inputs, values, outputs>) {
        if (numbers.size() != inputs) {
            throw std::invalid_argument(std::to_string(inputs) + " numbers are expected");
        }
        Call<inputs> call(Type::float32, {4}, "compact");
        std::size_t i = 0;
        for (Copies &each : call.tensors) {
            if (i < numbers.size()) {
                each.fill([&](std::size_t) { return numbers[i]; });
            }
            i++;
        }
        call.template run<Op, Device::gpu>(slot);
        result = call.tensors.back().first();
        return true;
    }
    return false;
}

} // namespace

void list()
{
#define OPFORGE_OPERATOR(op_, implementations, tensors, values, outputs, function) \
    if (has_slot<op::op_, Device::cpu, 0>::value) { \
        std::printf("%s cpu 0\n", #op_); \
    } \
    std::printf("%s gpu 8 %s\n", #op_, #function);
#define OPFORGE_IMPLEMENTATION(op_, index, name, tensors, values, outputs, function) \
    std::printf("%s gpu %d %s\n", #op_, 9 + index, name);
#include <lab_ops_dispatch.inc>
}

int compare()
{
    int wrong = 0;
#define OPFORGE_OPERATOR(op_, implementations, tensors, values, outputs, function) \
    wrong += compare_slots<op::op_, tensors, values, outputs>(#op_, implementations);
#include <lab_ops_dispatch.inc>
    return wrong;
}

float call(const std::string &name, int slot, const std::vector<float> &numbers)
{
    float result = 0;
#define OPFORGE_OPERATOR(op_, implementations, tensors, values, outputs, function) \
    if (name == #op_ && call_one<op::op_, tensors, values, outputs>(slot, numbers, result)) { \
        return result; \
    }
#include <lab_ops_dispatch.inc>
    throw std::invalid_argument("there is no operator of tensors alone that is called " + name);
}

} // namespace lab
