// A view of memory on one of the devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace lab {

enum class Device { cpu, gpu };
enum class Type { bfloat16, float32, int32 };

inline std::size_t size_of(Type type)
{
    return type == Type::bfloat16 ? 2 : 4;
}

struct bfloat16 {
    std::uint16_t bits = 0;
    bfloat16() = default;
    explicit bfloat16(float number)
    {
        std::uint32_t whole;
        std::memcpy(&whole, &number, sizeof whole);
        // To the nearest, and to an even one of two.
        bits = static_cast<std::uint16_t>((whole + 0x7fff + (whole >> 16 & 1)) >> 16);
    }
    explicit operator float() const
    {
        const std::uint32_t whole = static_cast<std::uint32_t>(bits) << 16;
        float number;
        std::memcpy(&number, &whole, sizeof number);
        return number;
    }
};

// Strides count elements.
struct Tensor {
    void *data = nullptr;
    Type type = Type::float32;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;

    std::int64_t numel() const
    {
        std::int64_t count = 1;
        for (const std::int64_t size : shape) {
            count *= size;
        }
        return count;
    }
    // Of an element by its number, the last dimension counted fastest.
    std::int64_t offset(std::int64_t number) const
    {
        std::int64_t found = 0;
        for (std::size_t i = shape.size(); i-- > 0;) {
            found += number % shape[i] * strides[i];
            number /= shape[i];
        }
        return found;
    }
};

} // namespace lab
