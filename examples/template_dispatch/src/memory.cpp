#include "memory.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace lab {
namespace {

void *cuda()
{
    static void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return library;
}

void *opened()
{
    static void *const library =
        cuda() != nullptr ? cuda() : dlopen("libamdhip64.so", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        throw std::runtime_error("there is neither a CUDA driver nor a HIP driver");
    }
    return library;
}

template <typename... Arguments> int driver(const char *name, Arguments... arguments)
{
    auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(opened(), name));
    return function == nullptr ? -1 : function(arguments...);
}

template <typename... Arguments> void checked(const char *name, Arguments... arguments)
{
    const int result = driver(name, arguments...);
    if (result != 0) {
        throw std::runtime_error(std::string(name) + " fails with " + std::to_string(result));
    }
}

} // namespace

bool Memory::is_nvidias()
{
    return opened() == cuda();
}

Memory::Memory(std::size_t bytes) : bytes_(bytes)
{
    static void *context = nullptr;
    if (is_nvidias() && context == nullptr) {
        checked("cuInit", 0U);
        checked("cuDevicePrimaryCtxRetain", &context, 0);
        checked("cuCtxPushCurrent_v2", context);
    }
    checked(is_nvidias() ? "cuMemAlloc_v2" : "hipMalloc", &address_, bytes);
}

Memory::~Memory()
{
    driver(is_nvidias() ? "cuMemFree_v2" : "hipFree", address_);
}

void Memory::write(const void *from)
{
    checked(is_nvidias() ? "cuMemcpyHtoD_v2" : "hipMemcpyHtoD", address_, from, bytes_);
}

void Memory::read(void *to) const
{
    checked(is_nvidias() ? "cuMemcpyDtoH_v2" : "hipMemcpyDtoH", to, address_, bytes_);
}

} // namespace lab
