/* The operators of an adapter in torch's dispatcher, and the functions by which opforge.load steers
 * them.
 *
 * The file that includes this one defines the tables that are declared here, and last `registered`
 * as register_operators().
 */
#ifndef OPFORGE_TORCH_ADAPTER_HPP
#define OPFORGE_TORCH_ADAPTER_HPP

#include "call.hpp"

#include <cstdio>

#define OF_EXPORT extern "C" __attribute__((visibility("default")))

/* Of the library: not 0 while opforge.load, which defines the operators itself, opens this file. */
extern "C" int OF_FUNCTION(torch_deferred);
/* Of the library whose functions this file has got. */
extern "C" const char OF_FUNCTION(manifest_hash)[];

namespace {

/* Of the functions below. */
constexpr int kAdapterAbi = 3;
constexpr const char *kFile = "lib" OF_LIBRARY "_torch.so";

extern Operator operators[];
extern const int operator_count;
/* With spaces between them. */
extern const char operator_names[];
/* Of the library that the adapter was built for. */
extern const char manifest_hash[];

Operator *find(const char *name)
{
    for (int i = 0; i < operator_count; i++)
        if (std::strcmp(operators[i].name, name) == 0)
            return &operators[i];
    return nullptr;
}

void leave(TorchLibraryHandle *library)
{
    if (*library)
        aoti_torch_delete_library_object(*library);
    *library = nullptr;
}

bool attach(Operator &op, const char *key)
{
    op.host_memory = std::strcmp(key, "CPU") == 0;
    return aoti_torch_library_init_impl(op.space, key, kFile, 0, &op.implementation) == 0 &&
           torch_library_impl(op.implementation, op.plain_name, op.kernel, TORCH_TARGET_VERSION) ==
               0;
}

/* The library beside this file is asked for by its path. If the process offers functions of another
 * library of that name to all, they come first. */
bool fits()
{
    return std::strcmp(OF_FUNCTION(manifest_hash), manifest_hash) == 0;
}

/* For programs without Python: loading the file registers everything. */
bool register_operators()
{
    if (OF_FUNCTION(torch_deferred))
        return false;
    if (!fits()) {
        std::fprintf(stderr,
                     "%s: defines no operators, because it was built for a different "
                     "build of lib%s.so from the one that this process has\n",
                     kFile, OF_LIBRARY);
        return false;
    }
    bool done = true;
    for (int i = 0; i < operator_count; i++) {
        Operator &op = operators[i];
        done &= aoti_torch_library_init_fragment(op.space, kFile, 0, &op.definition) == 0 &&
                aoti_torch_library_def(op.definition, op.schema) == 0 && attach(op, "CUDA");
    }
    return done;
}

} // namespace

OF_EXPORT int OF_FUNCTION(torch_abi_version)(void)
{
    return kAdapterAbi;
}

OF_EXPORT const char *OF_FUNCTION(torch_manifest_hash)(void)
{
    return manifest_hash;
}

OF_EXPORT int OF_FUNCTION(torch_fits)(void)
{
    return fits();
}

/* The operators' names, with spaces between them. */
OF_EXPORT const char *OF_FUNCTION(torch_operators)(void)
{
    return operator_names;
}

OF_EXPORT int OF_FUNCTION(torch_attach)(const char *name, const char *key)
{
    std::lock_guard<std::mutex> held(mutex);
    Operator *op = find(name);
    reason = op ? "torch refused the kernel" : "there is no such operator";
    if (!op || op->implementation)
        return op ? 0 : 1;
    return attach(*op, key) ? 0 : 1;
}

OF_EXPORT void OF_FUNCTION(torch_detach)(const char *name)
{
    std::lock_guard<std::mutex> held(mutex);
    if (Operator *op = find(name)) {
        op->flags = 0;
        leave(&op->implementation);
    }
}

/* What to do with calls that are not covered. From then on the helpers of the operator exist. */
OF_EXPORT void OF_FUNCTION(torch_configure)(const char *name, int flags, const char *advice)
{
    std::lock_guard<std::mutex> held(mutex);
    if (Operator *op = find(name)) {
        op->advice = advice;
        op->flags = flags | kSteered;
    }
}

/* `function` is called before calls are handed on; it returns 0, or says why it failed. */
OF_EXPORT void OF_FUNCTION(torch_set_prepare)(int (*function)())
{
    prepare = function;
}

/* For the calling thread: 0 auto, 1 native, 2 JIT. */
OF_EXPORT void OF_FUNCTION(torch_set_backend)(int backend)
{
    wanted = backend;
}

OF_EXPORT const char *OF_FUNCTION(torch_reason)(void)
{
    return reason.c_str();
}

OF_EXPORT void OF_FUNCTION(torch_say)(const char *text)
{
    reason = text;
}

#endif
