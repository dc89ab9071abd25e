/* Calls a library through its C++ header; each check that fails is printed. */
#include <demo.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" {
#define Allocator StandInAllocator
#include "standin.h"
#undef Allocator
int standin_live_allocations(void);
}

static int failures = 0;
static void *last_stream = nullptr;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            std::printf("line %d: %s\n", __LINE__, #condition); \
            failures++; \
        } \
    } while (0)

template <typename Number> static Number parameter(const LaunchRecord *launch, int index)
{
    Number value;
    std::memcpy(&value, launch->parameters[index], sizeof value);
    return value;
}

/* The kernel of add, for fp32. */
static int execute(const LaunchRecord *launch)
{
    last_stream = launch->stream;
    if (std::strcmp(launch->function, "add_kernel") == 0) {
        const float *x = parameter<const float *>(launch, 0);
        const float *y = parameter<const float *>(launch, 1);
        float *out = parameter<float *>(launch, 2);
        for (int i = 0; i < parameter<int>(launch, 3); i++) {
            out[i] = x[i] + y[i];
        }
    }
    return 0;
}

/* With the status and the text that C has. */
template <typename Function> static void refused(Function call, OpforgeStatus status)
{
    try {
        call();
        std::printf("not refused\n");
        failures++;
    } catch (const opforge::Error &error) {
        CHECK(error.status() == status);
        CHECK(std::strcmp(error.what(), demo_last_error()) == 0);
        std::printf("%s\n", error.what());
    }
}

static int alive = 0;

static void *take(std::size_t bytes, int, opforge::Stream)
{
    alive++;
    return std::malloc(bytes);
}

static void give(void *data, std::size_t, int, opforge::Stream)
{
    alive--;
    std::free(data);
}

static void *hook_take(void *context, size_t bytes, size_t alignment, int, void *)
{
    ++*static_cast<int *>(context);
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void hook_give(void *context, void *data, size_t, int, void *)
{
    --*static_cast<int *>(context);
    std::free(data);
}

static void views()
{
    float data[6] = {};
    std::int64_t shape[2] = {2, 3};
    const OpforgeTensor c = {data, {2, 1}, 2, {2, 32, 1}, shape, nullptr, 0};
    const opforge::Tensor from_c = c;
    CHECK(from_c.raw()->shape != shape && from_c.size(1) == 3 && from_c.stride(0) == 3);
    CHECK(from_c.raw()->strides == nullptr && from_c.device().raw().device_id == 1);
    const opforge::Tensor strided(data, {2, 3}, {1, 2}, opforge::Device::cuda(1));
    opforge::Tensor copy;
    {
        const opforge::Tensor gone = strided;
        copy = gone;
    }
    CHECK(copy.raw()->shape != strided.raw()->shape && copy.stride(1) == 2 && copy.bytes() == 24);
    const std::vector<int> sizes = {3, 2};
    const opforge::Tensor half(data, opforge::float16, sizes);
    CHECK(half.dtype().bits == 16 && half.numel() == 6 && half.bytes() == 12);
    CHECK(opforge::dtype_of<const std::uint16_t>().code == 1 &&
          opforge::dtype_of<bool>().code == 6);
    CHECK(opforge::Tensor(data, {0, 3}).bytes() == 0);
    CHECK(opforge::Tensor(data, opforge::Sizes()).bytes() == 4);
    try {
        opforge::Tensor(data, {2, 3}, {1});
        failures++;
    } catch (const opforge::Error &error) {
        CHECK(std::strcmp(error.what(), "expected 2 strides, got 1") == 0);
    }
}

static void adds()
{
    float x[4] = {1, 2, 3, 4};
    float y[4] = {10, 20, 30, 40};
    float sum[4] = {};
    const opforge::Tensor a(x, {2, 2});
    const opforge::Tensor b(y, {2, 2});
    opforge::Tensor out(sum, {2, 2});
    demo::add(a, b, out);
    CHECK(sum[0] == 11 && sum[3] == 44 && last_stream == nullptr);

    const opforge::Tensor described = demo::add_outputs(a, b);
    CHECK(described.rank() == 2 && described.size(1) == 2 && described.data() == nullptr);
    {
        opforge::Output made = demo::add(a, b, opforge::Allocator(take, give));
        opforge::Output moved = std::move(made);
        CHECK(alive == 1 && static_cast<float *>(moved.data())[3] == 44 && moved.size(0) == 2);
        moved = demo::add(moved, b, opforge::Allocator(take, give));
        CHECK(alive == 1 && static_cast<float *>(moved.data())[3] == 84);
    }
    CHECK(alive == 0);
    {
        const auto made = demo::add(a, b, {hook_take, hook_give, &alive});
        CHECK(alive == 1 && static_cast<float *>(made.data())[0] == 11);
    }
    CHECK(alive == 0);
    const auto arena = [&](std::size_t bytes, int, opforge::Stream) -> void * {
        return bytes <= sizeof sum ? sum : nullptr;
    };
    CHECK(demo::add(a, a, arena).data() == sum && sum[1] == 4);
    const opforge::Tensor none(x, {0});
    CHECK(demo::add(none, none, opforge::Allocator(take, give)).data() == nullptr && alive == 0);

    float large[8] = {};
    const opforge::Tensor eight(large, {8});
    try {
        demo::add(eight, eight, arena);
        failures++;
    } catch (const opforge::Error &error) {
        CHECK(error.status() == OPFORGE_OUT_OF_MEMORY);
        std::printf("%s\n", error.what());
    }
    const opforge::Tensor wider(large, {2, 4});
    refused([&] { demo::add(a, wider, out); }, OPFORGE_INVALID_ARGUMENT);
    refused([&] { demo::add(a, wider, opforge::Allocator(take, give)); }, OPFORGE_INVALID_ARGUMENT);
    refused([&] { demo::add(a, eight, out); }, OPFORGE_UNCOVERED);
    refused([&] { demo::add_outputs(opforge::Tensor(x, {1, 1, 1, 1, 1, 1, 1, 1, 1}), b); },
            OPFORGE_INVALID_ARGUMENT);
    refused([&] { demo::add(opforge::Tensor(), b, out); }, OPFORGE_INVALID_ARGUMENT);
    refused([&] { demo::add_workspace(a, wider); }, OPFORGE_INVALID_ARGUMENT);
    refused([&] { demo::add_workspace(a, b, &wider); }, OPFORGE_INVALID_ARGUMENT);
    refused([&] { demo::load(7); }, OPFORGE_INVALID_ARGUMENT);
    CHECK(alive == 0);
}

static auto everything(const opforge::Tensor &x, const opforge::Tensor *bias,
                       opforge::Tensor &state, demo::everything_mode mode)
{
    return demo::everything(x, bias, state, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, true, mode,
                            opforge::Allocator(take, give));
}

static void optionals()
{
    float rows[24] = {};
    float numbers[8] = {};
    float states[3] = {};
    const opforge::Tensor x(rows, {3, 8});
    const opforge::Tensor bias(numbers, {8});
    opforge::Tensor state(states, {3});
    const auto [out, stats] = everything(x, &bias, state, demo::everything_mode::relu);
    CHECK(out.rank() == 2 && stats && stats->dtype().bits == 64 && alive == 2);
    CHECK(states[2] == 1);
    const auto fewer = everything(x, nullptr, state, demo::everything_mode::none);
    CHECK(!std::get<1>(fewer) && alive == 3);
    CHECK(demo::everything_workspace(x, &bias, state, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, true,
                                     demo::everything_mode::relu, &out) == 40);
    CHECK(demo::everything_workspace_with(0, x, nullptr, state, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1,
                                          true, demo::everything_mode::none) == 40);
    refused([&] { everything(x, &x, state, demo::everything_mode::none); },
            OPFORGE_INVALID_ARGUMENT);
    refused([&] { everything(x, &bias, state, static_cast<demo::everything_mode>(9)); },
            OPFORGE_INVALID_ARGUMENT);
}

int main()
{
    standin_on_launch(execute);
    views();
    adds();
    optionals();
    CHECK(alive == 0);
    CHECK(std::strstr(demo::manifest(), "demo::add") != nullptr);
    demo::unload();
    CHECK(standin_live_allocations() == 0);
    return failures;
}
