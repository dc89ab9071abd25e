/* What the C++ headers of all opforge libraries share: tensors, outputs, allocators and errors.
 *
 * Every library brings this file; those of one ABI bring the same.
 */
#ifndef OPFORGE_TENSOR_ABI_1
#define OPFORGE_TENSOR_ABI_1

#include "abi.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace opforge {
inline namespace abi_1 {

/* A status other than OPFORGE_OK; what() is the library's text. */
class Error : public std::runtime_error {
  public:
    Error(OpforgeStatus status, const std::string &text) : std::runtime_error(text), status_(status)
    {
    }
    OpforgeStatus status() const noexcept { return status_; }

  private:
    OpforgeStatus status_;
};

/* A CUstream, cudaStream_t or hipStream_t; without one, the legacy default stream. */
class Stream {
  public:
    Stream(void *handle = nullptr) noexcept : handle_(handle) {}
    void *get() const noexcept { return handle_; }

  private:
    void *handle_;
};

/* The device of a tensor; CUDA's 0 by default. */
class Device {
  public:
    Device() noexcept : raw_{2, 0} {}
    explicit Device(OpforgeDevice raw) noexcept : raw_(raw) {}
    static Device cuda(int index) noexcept { return Device(OpforgeDevice{2, index}); }
    static Device rocm(int index) noexcept { return Device(OpforgeDevice{10, index}); }
    OpforgeDevice raw() const noexcept { return raw_; }

  private:
    OpforgeDevice raw_;
};

using DType = OpforgeDType;
inline constexpr DType float16{2, 16, 1};
inline constexpr DType bfloat16{4, 16, 1};
inline constexpr DType float32{2, 32, 1};
inline constexpr DType float64{2, 64, 1};
inline constexpr DType float8_e4m3fn{10, 8, 1};
inline constexpr DType float8_e4m3fnuz{11, 8, 1};
inline constexpr DType float8_e5m2{12, 8, 1};
inline constexpr DType float8_e5m2fnuz{13, 8, 1};
inline constexpr DType int8{0, 8, 1};
inline constexpr DType int16{0, 16, 1};
inline constexpr DType int32{0, 32, 1};
inline constexpr DType int64{0, 64, 1};
inline constexpr DType uint8{1, 8, 1};
inline constexpr DType uint16{1, 16, 1};
inline constexpr DType uint32{1, 32, 1};
inline constexpr DType uint64{1, 64, 1};
inline constexpr DType bool_{6, 8, 1};

/* The type of C++ numbers: dtype_of<float>(). */
template <typename T> constexpr DType dtype_of() noexcept
{
    using Number = std::remove_cv_t<T>;
    static_assert(std::is_arithmetic_v<Number> && sizeof(Number) <= 8,
                  "opforge knows no element type for this pointer; pass a DType before the shape");
    constexpr auto bits = static_cast<std::uint8_t>(8 * sizeof(Number));
    constexpr int code = std::is_same_v<Number, bool>       ? 6
                         : std::is_floating_point_v<Number> ? 2
                         : std::is_unsigned_v<Number>       ? 1
                                                            : 0;
    return DType{static_cast<std::uint8_t>(code), bits, 1};
}

/* Sizes or strides: {2, 3}, or any range of numbers. */
class Sizes {
  public:
    Sizes() = default;
    Sizes(std::initializer_list<std::int64_t> values) { fill(values); }
    template <typename Range, typename = decltype(std::declval<const Range &>().begin()),
              typename = std::enable_if_t<!std::is_base_of_v<Sizes, Range>>>
    Sizes(const Range &values)
    {
        fill(values);
    }
    std::int32_t count() const noexcept { return count_; }
    const std::array<std::int64_t, OPFORGE_MAX_RANK> &values() const noexcept { return values_; }

  private:
    /* Values beyond OPFORGE_MAX_RANK are only counted; the call refuses them. */
    template <typename Range> void fill(const Range &values)
    {
        for (const auto &value : values) {
            if (count_ < OPFORGE_MAX_RANK) {
                values_[static_cast<std::size_t>(count_)] = static_cast<std::int64_t>(value);
            }
            count_++;
        }
    }
    std::array<std::int64_t, OPFORGE_MAX_RANK> values_{};
    std::int32_t count_ = 0;
};

/* A view of memory that it does not own; it owns its sizes and strides. */
class Tensor {
  public:
    Tensor() noexcept : raw_{} { point(true, true); }

    /* A float *, an int64_t *, ...: compact, or with strides in elements. */
    template <typename T, typename = std::enable_if_t<!std::is_void_v<T>>>
    Tensor(T *data, const Sizes &shape, Device device = Device())
        : Tensor(data, dtype_of<T>(), shape, device)
    {
    }
    template <typename T, typename = std::enable_if_t<!std::is_void_v<T>>>
    Tensor(T *data, const Sizes &shape, const Sizes &strides, Device device = Device())
        : Tensor(data, dtype_of<T>(), shape, strides, device)
    {
    }

    Tensor(const void *data, DType dtype, const Sizes &shape, Device device = Device())
        : raw_{const_cast<void *>(data), device.raw(), shape.count(), dtype, nullptr, nullptr, 0},
          shape_(shape.values())
    {
        point(true, false);
    }
    Tensor(const void *data, DType dtype, const Sizes &shape, const Sizes &strides,
           Device device = Device())
        : Tensor(data, dtype, shape, device)
    {
        if (strides.count() != shape.count()) {
            throw Error(OPFORGE_INVALID_ARGUMENT, "expected " + std::to_string(shape.count()) +
                                                      " strides, got " +
                                                      std::to_string(strides.count()));
        }
        strides_ = strides.values();
        point(true, true);
    }

    /* A DLTensor, an OpforgeTensor, or another struct with their members. */
    template <typename T, typename = decltype(std::declval<const T &>().device.device_type),
              typename = decltype(std::declval<const T &>().byte_offset)>
    Tensor(const T &given)
        : raw_{given.data,
               {static_cast<std::int32_t>(given.device.device_type), given.device.device_id},
               given.ndim,
               {given.dtype.code, given.dtype.bits, given.dtype.lanes},
               given.shape,
               given.strides,
               given.byte_offset}
    {
        /* The call refuses other ranks. */
        if (raw_.ndim >= 0 && raw_.ndim <= OPFORGE_MAX_RANK) {
            for (std::size_t i = 0; i < static_cast<std::size_t>(raw_.ndim); i++) {
                shape_[i] = given.shape != nullptr ? given.shape[i] : 0;
                strides_[i] = given.strides != nullptr ? given.strides[i] : 0;
            }
            point(given.shape != nullptr, given.strides != nullptr);
        }
    }

    Tensor(const Tensor &other) noexcept { *this = other; }
    Tensor &operator=(const Tensor &other) noexcept
    {
        const bool sized = other.raw_.shape == other.shape_.data();
        const bool strided = other.raw_.strides == other.strides_.data();
        raw_ = other.raw_;
        shape_ = other.shape_;
        strides_ = other.strides_;
        if (sized) {
            point(true, strided);
        }
        return *this;
    }
    ~Tensor() = default;

    void *data() const noexcept { return raw_.data; }
    void set_data(void *data) noexcept { raw_.data = data; }
    DType dtype() const noexcept { return raw_.dtype; }
    Device device() const noexcept { return Device(raw_.device); }
    int rank() const noexcept { return raw_.ndim; }
    std::int64_t size(int dimension) const
    {
        return shape_.at(static_cast<std::size_t>(dimension));
    }
    std::int64_t stride(int dimension) const
    {
        if (raw_.strides != nullptr) {
            return strides_.at(static_cast<std::size_t>(dimension));
        }
        std::int64_t compact = 1;
        for (int i = raw_.ndim - 1; i > dimension; i--) {
            compact *= size(i);
        }
        return compact;
    }
    std::int64_t numel() const
    {
        std::int64_t count = 1;
        for (int i = 0; i < raw_.ndim; i++) {
            count *= size(i);
        }
        return count;
    }
    /* From the first element to the last. */
    std::size_t bytes() const
    {
        if (numel() == 0) {
            return 0;
        }
        std::int64_t last = 0;
        for (int i = 0; i < raw_.ndim; i++) {
            last += (size(i) - 1) * stride(i);
        }
        return static_cast<std::size_t>(last + 1) * raw_.dtype.bits / 8;
    }

    /* For the functions of the C header. */
    const OpforgeTensor *raw() const noexcept { return &raw_; }
    OpforgeTensor *raw() noexcept { return &raw_; }

  private:
    void point(bool sized, bool strided) noexcept
    {
        raw_.shape = sized ? shape_.data() : nullptr;
        raw_.strides = strided ? strides_.data() : nullptr;
    }
    OpforgeTensor raw_;
    std::array<std::int64_t, OPFORGE_MAX_RANK> shape_{};
    std::array<std::int64_t, OPFORGE_MAX_RANK> strides_{};
};

/* The same memory repeated to a larger shape, by strides of 0: {3, 1} or {4} to {3, 4}. */
inline Tensor expand(const Tensor &tensor, const Sizes &shape)
{
    const int missing = shape.count() - tensor.rank();
    bool fits = missing >= 0 && tensor.rank() >= 0 && shape.count() <= OPFORGE_MAX_RANK;
    std::array<std::int64_t, OPFORGE_MAX_RANK> strides{};
    for (int i = 0; fits && i < tensor.rank(); i++) {
        const auto at = static_cast<std::size_t>(missing + i);
        const bool same = tensor.size(i) == shape.values()[at];
        strides[at] = same ? tensor.stride(i) : 0;
        fits = same || tensor.size(i) == 1;
    }
    if (!fits) {
        throw Error(
            OPFORGE_INVALID_ARGUMENT,
            "expand: from the last dimension on, each size must be that of the shape, or 1");
    }
    OpforgeTensor raw = *tensor.raw();
    auto sizes = shape.values();
    raw.ndim = shape.count();
    raw.shape = sizes.data();
    raw.strides = strides.data();
    return Tensor(raw);
}

/* Allocates and releases outputs: functions of your own, or the hooks of set_allocator. */
class Allocator {
  public:
    using Allocate = std::function<void *(std::size_t bytes, int device, Stream stream)>;
    using Release = std::function<void(void *data, std::size_t bytes, int device, Stream stream)>;

    /* Without `releaser` the memory stays the allocator's, as in an arena. */
    template <typename Function, typename = std::enable_if_t<std::is_invocable_r_v<
                                     void *, Function &, std::size_t, int, Stream>>>
    Allocator(Function taker, Release releaser = nullptr)
        : allocate_(std::move(taker)), release_(std::move(releaser))
    {
    }
    Allocator(OpforgeAllocate taker, OpforgeRelease releaser, void *context)
        : allocate_([=](std::size_t bytes, int device, Stream stream) {
              return taker(context, bytes, 256, device, stream.get());
          }),
          release_([=](void *data, std::size_t bytes, int device, Stream stream) {
              releaser(context, data, bytes, device, stream.get());
          })
    {
    }
    void *allocate(std::size_t bytes, int device, Stream stream) const
    {
        return allocate_(bytes, device, stream);
    }
    const Release &release() const noexcept { return release_; }

  private:
    Allocate allocate_;
    Release release_;
};

namespace detail {

struct Returned {
    Allocator::Release release;
    std::size_t bytes = 0;
    int device = 0;
    Stream stream = {};
    void operator()(void *data) const
    {
        if (release) {
            release(data, bytes, device, stream);
        }
    }
};

} // namespace detail

/* A tensor that owns its memory, released on the stream of the call that made it. */
class Output : public Tensor {
  public:
    /* What an _outputs function described, in new memory; `name` is for the error. */
    Output(const Tensor &described, const Allocator &allocator, Stream stream, const char *name)
        : Tensor(described)
    {
        const std::size_t size = bytes();
        const int index = raw()->device.device_id;
        if (size == 0) {
            return;
        }
        memory_ = Memory(allocator.allocate(size, index, stream),
                         detail::Returned{allocator.release(), size, index, stream});
        if (memory_ == nullptr) {
            throw Error(OPFORGE_OUT_OF_MEMORY,
                        std::string(name) + ": the allocator returned NULL for " +
                            std::to_string(size) + " bytes on device " + std::to_string(index));
        }
        set_data(memory_.get());
    }

  private:
    using Memory = std::unique_ptr<void, detail::Returned>;
    Memory memory_;
};

/* The implementations of an operator: .name, .op and .guards of each, in the order tried. */
class Implementations {
  public:
    explicit Implementations(int (*list)(const OpforgeImplementation **))
        : size_(static_cast<std::size_t>(list(&first_)))
    {
    }
    std::size_t size() const noexcept { return size_; }
    const OpforgeImplementation *begin() const noexcept { return first_; }
    const OpforgeImplementation *end() const noexcept { return first_ + size_; }
    const OpforgeImplementation &operator[](std::size_t index) const { return first_[index]; }

  private:
    const OpforgeImplementation *first_ = nullptr;
    std::size_t size_;
};

namespace detail {

inline void check(OpforgeStatus status, const char *(*last_error)())
{
    if (status != OPFORGE_OK) {
        throw Error(status, last_error());
    }
}
inline const OpforgeTensor *raw(const Tensor *tensor) noexcept
{
    return tensor != nullptr ? tensor->raw() : nullptr;
}
inline OpforgeTensor *raw(Tensor *tensor) noexcept
{
    return tensor != nullptr ? tensor->raw() : nullptr;
}
/* _outputs gives an output that does not exist a type of 0 bits. */
inline std::optional<Tensor> present(const Tensor &described)
{
    return described.dtype().bits != 0 ? std::optional<Tensor>(described) : std::nullopt;
}
inline std::optional<Output> made(const std::optional<Tensor> &described,
                                  const Allocator &allocator, Stream stream, const char *name)
{
    return described ? std::optional<Output>(std::in_place, *described, allocator, stream, name)
                     : std::nullopt;
}
inline Output made(const Tensor &described, const Allocator &allocator, Stream stream,
                   const char *name)
{
    return Output(described, allocator, stream, name);
}
inline Tensor *pointer(std::optional<Output> &output) noexcept
{
    return output ? &*output : nullptr;
}

} // namespace detail
} // namespace abi_1
} // namespace opforge

#endif
