// What the program does with the operators of the generated library.
#pragma once

#include <string>
#include <vector>

namespace lab {

// Each slot of each operator, and what stands behind it.
void list();
// All slots of NVIDIA GPUs against slot 0 of the CPU; the number of differences.
int compare();
// An operator on small float tensors, each filled with one of the numbers; an element of the first
// output.
float call(const std::string &name, int slot, const std::vector<float> &numbers);

} // namespace lab
