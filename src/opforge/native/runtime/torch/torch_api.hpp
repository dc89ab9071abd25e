/* What an adapter uses of torch: its stable C ABI, and beyond it two C++ symbols of libc10.
 *
 * With the ABI one binary serves torch 2.11 and later. It does not say whether a call needs
 * autograd, so TensorImpl::requires_grad and TensorImpl::_fw_grad are looked up at run time. So is
 * the current CUDA stream, which a build of torch for the CPU does not have.
 *
 * The file that includes this one defines OF_LIBRARY as "mylib", and OF_FUNCTION(last_error) as
 * mylib_last_error.
 */
#ifndef OPFORGE_TORCH_API_HPP
#define OPFORGE_TORCH_API_HPP

#define TORCH_TARGET_VERSION 0x020b000000000000ULL

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace {

[[noreturn]] void fail(const std::string &text)
{
    throw std::runtime_error(text);
}

/* `what` torch was asked to do, of an argument of that name. */
void check(AOTITorchError error, const char *what, const char *name = "")
{
    if (error != 0)
        fail(std::string(OF_LIBRARY ": torch failed to ") + what + name);
}

template <class T> T read(StableIValue value)
{
    T result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

/* Element types by torch's number for them. */
struct DType {
    int32_t torch;
    uint8_t code;
    uint8_t bits;
};

const DType *dtypes()
{
    static const DType known[] = {
        {aoti_torch_dtype_float16(), 2, 16},       {aoti_torch_dtype_bfloat16(), 4, 16},
        {aoti_torch_dtype_float32(), 2, 32},       {aoti_torch_dtype_float64(), 2, 64},
        {aoti_torch_dtype_float8_e4m3fn(), 10, 8}, {aoti_torch_dtype_float8_e4m3fnuz(), 11, 8},
        {aoti_torch_dtype_float8_e5m2(), 12, 8},   {aoti_torch_dtype_float8_e5m2fnuz(), 13, 8},
        {aoti_torch_dtype_int8(), 0, 8},           {aoti_torch_dtype_int16(), 0, 16},
        {aoti_torch_dtype_int32(), 0, 32},         {aoti_torch_dtype_int64(), 0, 64},
        {aoti_torch_dtype_uint8(), 1, 8},          {aoti_torch_dtype_uint16(), 1, 16},
        {aoti_torch_dtype_uint32(), 1, 32},        {aoti_torch_dtype_uint64(), 1, 64},
        {aoti_torch_dtype_bool(), 6, 8},           {-1, 0, 0},
    };
    return known;
}

/* Whether a tensor requires grad or has a tangent, which the stable ABI does not say. A handle
 * points to a tensor, which points to its TensorImpl, and libc10 exports the two functions that
 * know; a probe checks that they answer. Without them, every call that opforge.load steers goes
 * to autograd while grad is enabled. */
struct Autograd {
    bool (*requires_grad)(const void *implementation);
    void *(*tangent)(const void *implementation, uint64_t level, const void *tensor);
};

const void *implementation(AtenTensorHandle tensor)
{
    return *reinterpret_cast<void *const *>(tensor);
}

bool has_tangent(const Autograd &known, AtenTensorHandle tensor)
{
    /* torch has one level of tangents. */
    void *found = known.tangent(implementation(tensor), 0, tensor);
    bool defined = false;
    check(aoti_torch_is_defined(reinterpret_cast<AtenTensorHandle>(found), &defined),
          "look for a tangent");
    return defined;
}

Autograd find_autograd()
{
    Autograd found = {nullptr, nullptr};
    void *c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    void *requires_grad = c10 ? dlsym(c10, "_ZNK3c1010TensorImpl13requires_gradEv") : nullptr;
    const char *name = "_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE";
    void *tangent = c10 ? dlsym(c10, name) : nullptr;
    std::memcpy(&found.requires_grad, &requires_grad, sizeof requires_grad);
    std::memcpy(&found.tangent, &tangent, sizeof tangent);
    const int64_t one = 1;
    AtenTensorHandle probe = nullptr;
    if (!requires_grad || !tangent ||
        aoti_torch_empty_strided(1, &one, &one, aoti_torch_dtype_float32(),
                                 aoti_torch_device_type_cpu(), 0, &probe) != 0)
        return {nullptr, nullptr};
    const bool off = !found.requires_grad(implementation(probe)) && !has_tangent(found, probe);
    const bool set = torch_set_requires_grad(probe, true) == 0;
    const bool on = found.requires_grad(implementation(probe));
    aoti_torch_delete_tensor_object(probe);
    if (!(off && set && on))
        return {nullptr, nullptr};
    return found;
}

/* A build of torch for ROCm calls its devices cuda as well, and the stable ABI does not tell the
 * two apart. It has this library in place of libtorch_cuda.so, and is in the process before an
 * adapter: so one adapter serves either. */
void *rocm_library()
{
    static void *const found = dlopen("libtorch_hip.so", RTLD_LAZY | RTLD_NOLOAD);
    return found;
}

/* DLPack's type of torch's cuda devices. */
int32_t gpu_type()
{
    return rocm_library() ? 10 : 2;
}

/* That of host memory, for a library of two vendors: of torch's GPUs, or of the driver here. */
int32_t host_gpu_type()
{
    static const char *const drivers[] = {"libcuda.so.1", "libamdhip64.so", "libamdhip64.so.7",
                                          "libamdhip64.so.6"};
    /* torch for CUDA is what pip installs, also where the GPU is AMD's or there is none. */
    if (rocm_library() ||
        (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) && dlopen(drivers[0], RTLD_NOW)))
        return gpu_type();
    for (const int mode : {RTLD_NOLOAD, 0})
        for (const char *driver : drivers)
            if (dlopen(driver, RTLD_NOW | mode))
                return driver == drivers[0] ? 2 : 10;
    return 2;
}

/* A function that a build of torch for the CPU does not have. */
template <class Function> Function of_gpu(const char *name)
{
    void *gpu = rocm_library();
    if (!gpu)
        gpu = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<Function>(dlsym(gpu ? gpu : RTLD_DEFAULT, name));
}

void *current_stream(int32_t device)
{
    static const auto current =
        of_gpu<AOTITorchError (*)(int32_t, void **)>("aoti_torch_get_current_cuda_stream");
    void *stream = nullptr;
    if (!current)
        fail(OF_LIBRARY ": this torch has no CUDA streams");
    check(current(device, &stream), "give the current stream");
    return stream;
}

/* Workspace from torch's caching allocator: of the current device, for its current stream. */
struct Allocator {
    AOTITorchError (*allocate)(uint64_t bytes, void **memory);
    AOTITorchError (*release)(void *memory);
};

const Allocator &allocator()
{
    static const Allocator found = {
        of_gpu<decltype(Allocator::allocate)>("aoti_torch_cuda_caching_allocator_raw_alloc"),
        of_gpu<decltype(Allocator::release)>("aoti_torch_cuda_caching_allocator_raw_delete"),
    };
    return found;
}

/* torch aligns to 512 bytes; a call makes its device current, and is on its current stream. */
void *allocate_workspace(void *, size_t bytes, size_t, int, void *)
{
    void *memory = nullptr;
    return allocator().allocate(bytes, &memory) == 0 ? memory : nullptr;
}

void release_workspace(void *, void *memory, size_t, int, void *)
{
    allocator().release(memory);
}

} // namespace

#endif
