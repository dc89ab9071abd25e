#include "memory.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace lab {
namespace {

template <typename... Arguments> int driver(const char *name, Arguments... arguments)
{
    static void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        throw std::runtime_error("there is no CUDA driver");
    }
    auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
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

Memory::Memory(std::size_t bytes) : bytes_(bytes)
{
    static void *context = nullptr;
    if (context == nullptr) {
        checked("cuInit", 0U);
        checked("cuDevicePrimaryCtxRetain", &context, 0);
        checked("cuCtxPushCurrent_v2", context);
    }
    checked("cuMemAlloc_v2", &address_, bytes);
}

Memory::~Memory()
{
    driver("cuMemFree_v2", address_);
}

void Memory::write(const void *from)
{
    checked("cuMemcpyHtoD_v2", address_, from, bytes_);
}

void Memory::read(void *to) const
{
    checked("cuMemcpyDtoH_v2", to, address_, bytes_);
}

} // namespace lab
