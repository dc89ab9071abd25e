// Loads silu-v2.pt2 and calls it once; written by `opforge package --cpp`.
//
// It needs only torch's own operators at run time.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "/models/silu-v2.pt2";
  c10::InferenceMode mode;
  torch::inductor::AOTIModelPackageLoader loader(path);

  // The model's tensor arguments, in order.
  std::vector<torch::Tensor> inputs = {
      torch::randn({8, 128}, torch::dtype(torch::kBFloat16).device(torch::kCUDA)),  // x
      torch::zeros({}, torch::dtype(torch::kInt64).device(torch::kCPU)),  // cfg.index
  };
  const std::vector<torch::Tensor> outputs = loader.run(inputs);
  for (const torch::Tensor& output : outputs) {
    std::cout << output.toString() << " " << output.sizes() << std::endl;
  }
  return 0;
}
