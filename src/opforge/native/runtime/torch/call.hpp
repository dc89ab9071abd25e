/* One call of an operator: its arguments off torch's stack, and its outputs onto it. */
#ifndef OPFORGE_TORCH_CALL_HPP
#define OPFORGE_TORCH_CALL_HPP

#include "torch_api.hpp"

#include "opforge/abi.h"

#include <atomic>
#include <limits>
#include <mutex>

/* Of the library: where the calls of this thread get their workspace. */
extern "C" void OF_FUNCTION(torch_allocator)(OpforgeAllocate allocate, OpforgeRelease release);

namespace {

enum Backend { kAuto = 0, kNative = 1, kJit = 2 };
enum Flags { kHasJit = 1, kStrict = 2, kSteered = 4, kUnseen = 8 };

thread_local int wanted = kAuto;
/* Why this thread's last call was not covered, or why a helper failed. */
thread_local std::string reason;

/* Called before a call is handed on, as long as opforge.load has not registered what takes it. */
std::atomic<int (*)()> prepare{nullptr};

struct Operator {
    const char *name;
    const char *space;
    const char *plain_name;
    const char *schema;
    const char *jit;
    const char *grad;
    void (*kernel)(StableIValue *, uint64_t, uint64_t);
    std::atomic<int> flags{0};
    std::atomic<bool> host_memory{false};
    TorchLibraryHandle definition = nullptr;
    TorchLibraryHandle implementation = nullptr;
    std::string advice{};
};

/* DLPack's type of the GPUs that the library was built for; 0 if they are of two vendors. */
extern const int32_t only_gpu_type;

/* Of the operators' handles and their advice. */
std::mutex mutex;

/* A value that an argument may have. */
struct Choice {
    enum Kind { kNone, kInt, kFloat, kBool, kText, kDType } kind;
    int64_t number;
    double real;
    const char *text;
    int32_t (*dtype)();
};

constexpr Choice none()
{
    return {Choice::kNone, 0, 0, nullptr, nullptr};
}
constexpr Choice of_int(int64_t v)
{
    return {Choice::kInt, v, 0, nullptr, nullptr};
}
constexpr Choice of_float(double v)
{
    return {Choice::kFloat, 0, v, nullptr, nullptr};
}
constexpr Choice of_bool(bool v)
{
    return {Choice::kBool, v, 0, nullptr, nullptr};
}
constexpr Choice of_text(const char *v)
{
    return {Choice::kText, 0, 0, v, nullptr};
}
constexpr Choice of_dtype(int32_t (*v)())
{
    return {Choice::kDType, 0, 0, nullptr, v};
}

/* A tensor that the library reads or writes. */
struct Input {
    OpforgeTensor raw;
};

/* A tensor that the library describes and torch allocates; freed unless it is handed on. */
class Output {
  public:
    Output()
    {
        std::memset(&raw, 0, sizeof raw);
        raw.shape = sizes_;
        raw.strides = strides_;
    }
    ~Output()
    {
        if (handle_)
            aoti_torch_delete_tensor_object(handle_);
    }
    Output(const Output &) = delete;
    Output &operator=(const Output &) = delete;

    void allocate(bool host_memory)
    {
        if (raw.dtype.bits == 0)
            return;
        int32_t dtype = -1;
        for (const DType *known = dtypes(); known->torch >= 0; known++)
            if (known->code == raw.dtype.code && known->bits == raw.dtype.bits)
                dtype = known->torch;
        static const int32_t cpu = aoti_torch_device_type_cpu();
        static const int32_t cuda = aoti_torch_device_type_cuda();
        check(aoti_torch_empty_strided(raw.ndim, raw.shape, raw.strides, dtype,
                                       host_memory ? cpu : cuda,
                                       host_memory ? 0 : raw.device.device_id, &handle_),
              "allocate an output");
        check(aoti_torch_get_data_ptr(handle_, &raw.data), "give the memory of an output");
    }
    OpforgeTensor *get() { return handle_ ? &raw : nullptr; }
    StableIValue give()
    {
        StableIValue value = 0;
        std::memcpy(&value, &handle_, sizeof handle_);
        handle_ = nullptr;
        return value;
    }
    StableIValue give_optional()
    {
        StableIValue *inner = handle_ ? new StableIValue(give()) : nullptr;
        StableIValue value = 0;
        std::memcpy(&value, &inner, sizeof inner);
        return value;
    }

    OpforgeTensor raw;

  private:
    int64_t sizes_[OPFORGE_MAX_RANK] = {0};
    int64_t strides_[OPFORGE_MAX_RANK] = {0};
    AtenTensorHandle handle_ = nullptr;
};

/* One call. It owns its arguments until it has returned or is handed on.
 *
 * `kinds` has a letter per argument: t(ensor), i(nt), f(loat), b(ool), s(tring), d(type), in
 * capitals where it may be None. */
class Call {
  public:
    Call(Operator &op, StableIValue *stack, const char *kinds)
        : op_(op), stack_(stack), kinds_(kinds), host_memory_(op.host_memory.load())
    {
    }
    ~Call()
    {
        OF_FUNCTION(torch_allocator)(nullptr, nullptr);
        release();
    }
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

    bool host_memory() const { return host_memory_; }

    /* Whether another implementation has taken the call: the JIT's, or one that autograd sees. */
    bool elsewhere()
    {
        if (__builtin_expect(wanted == kJit, 0)) {
            if (!(op_.flags.load() & kHasJit))
                fail(text(std::string(op_.name) +
                          ": the backend is 'jit', but there is no source to compile"));
            hand_on(op_.jit);
            return true;
        }
        const int flags = op_.flags.load();
        if (__builtin_expect((flags & kUnseen) || needs_autograd(), 0)) {
            reason.clear();
            if (!(flags & kSteered))
                fail(std::string(op_.name) + ": an input requires grad or has a tangent, but the "
                                             "operator has no derivative; "
                                             "call it with grad disabled, or on detached tensors");
            hand_on(op_.grad);
            return true;
        }
        return false;
    }

    bool tensor(size_t at, const char *name, bool written, Input &input, OpforgeTensor **result)
    {
        StableIValue value;
        *result = nullptr;
        if (!present(at, &value))
            return true;
        const AtenTensorHandle handle = read<AtenTensorHandle>(value);
        OpforgeTensor &raw = input.raw;
        int64_t rank = 0;
        int32_t dtype = 0, device = 0, index = 0;
        const void *data = nullptr;
        int failed = aoti_torch_get_dim(handle, &rank) | aoti_torch_get_dtype(handle, &dtype) |
                     aoti_torch_get_device_type(handle, &device) |
                     aoti_torch_get_device_index(handle, &index) |
                     aoti_torch_get_sizes(handle, &raw.shape) |
                     aoti_torch_get_strides(handle, &raw.strides);
        failed |= written ? torch_get_mutable_data_ptr(handle, const_cast<void **>(&data))
                          : torch_get_const_data_ptr(handle, &data);
        check(failed, "describe the tensor ", name);
        raw.data = const_cast<void *>(data);
        raw.ndim = static_cast<int32_t>(rank);
        raw.byte_offset = 0;
        raw.dtype = {0, 0, 1};
        for (const DType *known = dtypes(); known->torch >= 0; known++)
            if (known->torch == dtype) {
                raw.dtype.code = known->code;
                raw.dtype.bits = known->bits;
                break;
            }
        if (raw.dtype.bits == 0 || rank > OPFORGE_MAX_RANK) {
            reason = std::string(op_.name) + ": " + name + " has " +
                     (raw.dtype.bits == 0 ? "torch's dtype number " + std::to_string(dtype)
                                          : std::to_string(rank) + " dimensions") +
                     ", which no library is built for";
            return false;
        }
        static const int32_t cuda = aoti_torch_device_type_cuda();
        if (device == cuda) {
            raw.device = {gpu_type(), index};
            if (device_ < 0)
                device_ = index;
        } else {
            raw.device = {!host_memory_ ? 1 : only_gpu_type ? only_gpu_type : host_gpu_type(), 0};
        }
        *result = &raw;
        return true;
    }

    template <class T> bool integer(size_t at, const char *name, const char *dtype, T *result)
    {
        StableIValue value;
        if (!present(at, &value))
            return absent(name);
        const int64_t number = letter(at) == 'b' ? static_cast<int64_t>(read<bool>(value))
                                                 : read<int64_t>(value);
        *result = static_cast<T>(number);
        if (static_cast<int64_t>(*result) == number &&
            (number >= 0 || std::numeric_limits<T>::is_signed))
            return true;
        reason = std::string(op_.name) + ": " + name + " is " + std::to_string(number) +
                 ", which " + dtype + " does not hold";
        return false;
    }

    template <class T> bool real(size_t at, const char *name, T *result)
    {
        StableIValue value;
        if (!present(at, &value))
            return absent(name);
        *result = static_cast<T>(read<double>(value));
        return true;
    }

    /* The index of the value, or -1. */
    int choose(size_t at, const Choice *values, int count, const char *otherwise)
    {
        StableIValue value = 0;
        const bool there = present(at, &value);
        for (int i = 0; i < count; i++)
            if (there ? is(at, value, values[i]) : values[i].kind == Choice::kNone)
                return i;
        reason = std::string(op_.name) + ": " + otherwise;
        return -1;
    }

    /* From here on, workspace is torch's. */
    void *stream() const
    {
        if (device_ < 0)
            return nullptr;
        if (allocator().allocate && allocator().release)
            OF_FUNCTION(torch_allocator)(allocate_workspace, release_workspace);
        return current_stream(device_);
    }

    /* True if the library has run the call. Otherwise another implementation has, or it throws. */
    bool done(OpforgeStatus status)
    {
        if (__builtin_expect(status == OPFORGE_OK, 1))
            return true;
        reason = OF_FUNCTION(last_error)();
        if (status != OPFORGE_UNCOVERED && status != OPFORGE_INVALID_ARGUMENT)
            fail(reason);
        fall_back();
        return false;
    }

    /* For a call that the library does not cover; `reason` says why. */
    void fall_back()
    {
        const int flags = op_.flags.load();
        if (!(flags & kHasJit) || (flags & kStrict) || wanted == kNative)
            fail(text(reason));
        hand_on(op_.jit);
    }

    void release()
    {
        if (!owns_)
            return;
        owns_ = false;
        for (size_t i = 0; kinds_[i]; i++) {
            StableIValue value;
            if (present(i, &value)) {
                if (letter(i) == 't')
                    aoti_torch_delete_tensor_object(read<AtenTensorHandle>(value));
                else if (letter(i) == 's')
                    torch_delete_string(read<StringHandle>(value));
                if (may_be_none(i))
                    delete read<StableIValue *>(stack_[i]);
            }
        }
    }

  private:
    char letter(size_t at) const { return static_cast<char>(kinds_[at] | 0x20); }
    bool may_be_none(size_t at) const { return !(kinds_[at] & 0x20); }

    bool present(size_t at, StableIValue *value) const
    {
        *value = stack_[at];
        if (!may_be_none(at))
            return true;
        const StableIValue *inner = read<StableIValue *>(stack_[at]);
        if (!inner)
            return false;
        *value = *inner;
        return true;
    }

    bool absent(const char *name)
    {
        reason = std::string(op_.name) + ": " + name +
                 " is None, but the library was built for numbers";
        return false;
    }

    bool is(size_t at, StableIValue value, const Choice &choice) const
    {
        switch (choice.kind) {
        case Choice::kInt: return letter(at) == 'i' && read<int64_t>(value) == choice.number;
        case Choice::kFloat: {
            const double number = read<double>(value);
            return letter(at) == 'f' &&
                   (number == choice.real || (number != number && choice.real != choice.real));
        }
        case Choice::kBool: return letter(at) == 'b' && read<bool>(value) == (choice.number != 0);
        case Choice::kDType: return letter(at) == 'd' && read<int32_t>(value) == choice.dtype();
        case Choice::kText: {
            const char *data = nullptr;
            size_t length = 0;
            if (letter(at) != 's')
                return false;
            check(torch_string_c_str(read<StringHandle>(value), &data), "read a string");
            check(torch_string_length(read<StringHandle>(value), &length), "read a string");
            return length == std::strlen(choice.text) &&
                   std::memcmp(data, choice.text, length) == 0;
        }
        default: return false;
        }
    }

    bool needs_autograd() const
    {
        static const Autograd known = find_autograd();
        const bool grad = aoti_torch_grad_mode_is_enabled();
        if (!known.tangent)
            return grad && (op_.flags.load() & kSteered) != 0;
        for (size_t i = 0; kinds_[i]; i++) {
            StableIValue value;
            if (letter(i) != 't' || !present(i, &value))
                continue;
            const AtenTensorHandle tensor = read<AtenTensorHandle>(value);
            if ((grad && known.requires_grad(implementation(tensor))) || has_tangent(known, tensor))
                return true;
        }
        return false;
    }

    /* Calls another operator of the same schema, which takes the arguments. */
    void hand_on(const char *helper)
    {
        int (*first)() = prepare.load();
        if (first && first() != 0)
            fail(reason);
        owns_ = false;
        if (torch_call_dispatcher(helper, "", stack_, TORCH_TARGET_VERSION) != 0)
            fail(reason.empty() ? std::string(helper) + " failed" : reason);
    }

    std::string text(const std::string &what) const
    {
        std::lock_guard<std::mutex> held(mutex);
        return op_.advice.empty() ? what : what + "\n  fix: " + op_.advice;
    }

    Operator &op_;
    StableIValue *stack_;
    const char *kinds_;
    const bool host_memory_;
    bool owns_ = true;
    int32_t device_ = -1;
};

} // namespace

#endif
