// The operators that Triton compiled, and as much of the CUDA driver as the program needs.
#include <dlfcn.h>
#include <engine_ops.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "engine.hpp"

namespace engine::gpu {
namespace {

using Address = unsigned long long;

class Vector {
  public:
    Vector(const float *data, std::size_t n) : shape_{static_cast<std::int64_t>(n)}
    {
        tensor_.data = const_cast<float *>(data);
        tensor_.device = {2, 0};
        tensor_.ndim = 1;
        tensor_.dtype = {2, 32, 1};
        tensor_.shape = shape_;
    }
    Vector(const Vector &) = delete;
    Vector &operator=(const Vector &) = delete;
    OpforgeTensor *get() { return &tensor_; }

  private:
    std::int64_t shape_[1];
    OpforgeTensor tensor_{};
};

void check(OpforgeStatus status)
{
    if (status != OPFORGE_OK) {
        throw std::runtime_error(engine_ops_last_error());
    }
}

template <typename... Arguments> void driver(const char *name, Arguments... arguments)
{
    static void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        throw std::runtime_error("there is no CUDA driver");
    }
    auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
    const int result = function == nullptr ? -1 : function(arguments...);
    if (result != 0) {
        throw std::runtime_error(std::string(name) + " fails with " + std::to_string(result));
    }
}

} // namespace

void add(const float *x, const float *y, float *out, std::size_t n)
{
    Vector a(x, n), b(y, n), c(out, n);
    check(engine_ops_add(a.get(), b.get(), c.get(), nullptr));
}

void silu(const float *x, float *out, std::size_t n)
{
    Vector a(x, n), b(out, n);
    check(engine_ops_silu(a.get(), b.get(), nullptr));
}

float *allocate(std::size_t n)
{
    static void *context = nullptr;
    if (context == nullptr) {
        driver("cuInit", 0U);
        driver("cuDevicePrimaryCtxRetain", &context, 0);
        driver("cuCtxPushCurrent_v2", context);
    }
    Address address = 0;
    driver("cuMemAlloc_v2", &address, n * sizeof(float));
    return reinterpret_cast<float *>(address);
}

void copy_in(float *to, const std::vector<float> &from)
{
    const void *source = from.data();
    driver("cuMemcpyHtoD_v2", reinterpret_cast<Address>(to), source, from.size() * sizeof(float));
}

std::vector<float> copy_out(const float *from, std::size_t n)
{
    std::vector<float> to(n);
    void *target = to.data();
    driver("cuMemcpyDtoH_v2", target, reinterpret_cast<Address>(from), n * sizeof(float));
    return to;
}

} // namespace engine::gpu
