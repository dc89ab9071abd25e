// dispatch list | compare | call OPERATOR SLOT NUMBERS...
#include <cstdio>
#include <cstring>
#include <exception>

#include "cpu.hpp"
#ifdef LAB_WITH_TRITON
#include "compare.hpp"
#endif

namespace {

#ifdef LAB_WITH_TRITON
int run(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "";
    if (std::strcmp(what, "list") == 0) {
        lab::list();
        return 0;
    }
    if (std::strcmp(what, "compare") == 0) {
        return lab::compare() == 0 ? 0 : 1;
    }
    if (std::strcmp(what, "call") == 0 && count > 3) {
        std::vector<float> numbers;
        for (int i = 4; i < count; i++) {
            numbers.push_back(std::stof(arguments[i]));
        }
        std::printf("%g\n", lab::call(arguments[2], std::stoi(arguments[3]), numbers));
        return 0;
    }
    std::printf("dispatch list | compare | call OPERATOR SLOT NUMBERS...\n");
    return 2;
}
#else
// Without the generated library there are the slots that were written by hand.
int run(int, char **)
{
    float x[2] = {1, 2}, y[2] = {10, 20}, sum[2] = {};
    const lab::Tensor a{x, lab::Type::float32, {2}, {1}}, b{y, lab::Type::float32, {2}, {1}};
    lab::Tensor out{sum, lab::Type::float32, {2}, {1}};
    lab::call<lab::op::add, lab::Device::cpu>(0, a, b, out);
    std::printf("add cpu 0 gives %g %g\n", sum[0], sum[1]);
    return 0;
}
#endif

} // namespace

int main(int count, char **arguments)
{
    try {
        return run(count, arguments);
    } catch (const std::exception &error) {
        std::printf("%s\n", error.what());
        return 1;
    }
}
