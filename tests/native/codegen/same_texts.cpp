/* Bad input through the C function and through the C++ one: status and text of each. */
#include <demo.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

template <typename Plain, typename Wrapped> static void both(Plain plain, Wrapped wrapped)
{
    const OpforgeStatus status = plain();
    std::printf("C %d %s\n=====\n", static_cast<int>(status), demo_last_error());
    try {
        wrapped();
        std::printf("C++ 0 not refused\n=====\n");
    } catch (const opforge::Error &error) {
        std::printf("C++ %d %s\n=====\n", static_cast<int>(error.status()), error.what());
    }
}

static void add(const opforge::Tensor &x, const opforge::Tensor &y, opforge::Tensor out)
{
    both([&] { return demo_add(x.raw(), y.raw(), out.raw(), nullptr); },
         [&] { demo::add(x, y, out); });
}

static void copy_with(int index, const opforge::Tensor &x, opforge::Tensor out)
{
    both([&] { return demo_copy_with(index, x.raw(), out.raw(), nullptr); },
         [&] { demo::copy_with(index, x, out); });
}

int main(int, char **arguments)
{
    const opforge::Device gpu({std::atoi(arguments[1]), 0});
    std::vector<float> a(32768), b(32768), c(32768);
    const opforge::Tensor x(a.data(), {4, 2}, gpu), y(b.data(), {4, 2}, gpu);
    const opforge::Tensor out(c.data(), {4, 2}, gpu);

    add(opforge::Tensor(a.data(), opforge::float64, {4, 2}, gpu), y, out);
    add(opforge::Tensor(a.data(), {2, 2, 2}, gpu), y, out);
    add(opforge::Tensor(a.data(), {1, 1, 1, 1, 1, 1, 1, 1, 1}, gpu), y, out);
    add(x, opforge::Tensor(b.data(), {4, 3}, gpu), out);
    add(x, opforge::Tensor(b.data(), {4, 2}, {1, 4}, gpu), out);
    add(x, opforge::Tensor(b.data(), {4}, gpu), out);
    add(x, y, opforge::Tensor(c.data(), {2, 4}, gpu));
    add(x, y, opforge::Tensor(c.data(), opforge::int32, {4, 2}, gpu));
    const opforge::Tensor other(a.data(), {4, 5}, gpu);
    opforge::Tensor described;
    both([&] { return demo_add_outputs(y.raw(), other.raw(), described.raw()); },
         [&] { demo::add_outputs(y, other); });

    const opforge::Tensor wide(a.data(), {4, 5000}, gpu), tall(b.data(), {5000, 4}, gpu);
    opforge::Tensor square(c.data(), {4, 4}, gpu);
    both([&] { return demo_matmul(wide.raw(), tall.raw(), square.raw(), nullptr); },
         [&] { demo::matmul(wide, tall, square); });

    copy_with(7, x, out);
    copy_with(0, opforge::Tensor(a.data(), {4, 2}, {1, 4}, gpu), out);
    copy_with(0, opforge::Tensor(a.data(), {4, 3}, gpu), opforge::Tensor(c.data(), {4, 3}, gpu));
    copy_with(1, opforge::Tensor(a.data(), {65, 2}, gpu), opforge::Tensor(c.data(), {65, 2}, gpu));
    both([] { return demo_load(7); }, [] { demo::load(7); });
    return 0;
}
