// Compares a whole pass of a model on a GPU with the same pass on the CPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/cpu/cpu_ops.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "pass.hpp"

using atoll::Device;
using atoll::DType;
using namespace train;
using namespace atoll_test;

namespace {

struct Result {
  double loss;
  std::map<std::string, std::vector<float>> gradients;  // by the names of Parameters
};

Result result_of_pass(const ModelConfig& model, DType dtype, Ops& ops, const Device& device) {
  ModelPass pass(model, dtype, ops, device);
  const std::uint64_t reserved = ops.device_bytes();
  pass.run();
  Result result;
  double total[2];
  auto& stream = pass.stream();
  stream.copy(total, pass.activations().total().data, sizeof total);
  for (const auto& [name, buffer] : pass.parameters().gradients) {
    auto& values = result.gradients[name];
    values.resize(buffer.bytes() / sizeof(float));
    stream.copy(values.data(), buffer.data(), buffer.bytes());
  }
  stream.synchronize();
  CHECK(ops.device_bytes() == reserved);
  CHECK(total[1] == ModelPass::rows * ModelPass::seq - 1);
  result.loss = total[0] / total[1];
  return result;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    length += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(apart / std::max(length, 1e-30));
}

}  // namespace

TEST_CASE("a whole pass of a model gives the loss and the gradients of the CPU") {
  ModelConfig model = preset("mistral-tiny", 61);
  model.layers = 2;
  model.sliding_window = 9;
  const Device gpu = Device::cuda();
  const auto on_gpu = cuda::make_ops(gpu);
  const auto on_host = cpu::make_ops({.threads = 2});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Result there = result_of_pass(model, dtype, *on_gpu, gpu);
    const Result here = result_of_pass(model, dtype, *on_host, Device::cpu());
    CAPTURE(atoll::name(dtype));
    CHECK(there.loss == doctest::Approx(here.loss).epsilon(dtype == DType::bf16 ? 2e-3 : 1e-5));
    for (const auto& [name, gradient] : here.gradients) {
      CAPTURE(name);
      CHECK(relative_difference(there.gradients.at(name), gradient) <
            (dtype == DType::bf16 ? 3e-2 : 1e-4));
    }
  }
}
