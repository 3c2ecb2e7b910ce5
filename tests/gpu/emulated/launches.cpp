// Counts the kernels and matrix products that the host launches for a layer and a pass. A launch
// costs the host some microseconds, for which a step of few tokens waits. The counts are those with
// atoll's attention kernels; cuDNN launches another number.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <vector>

#include "emulated.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "pass.hpp"

using namespace train;
using atoll_test::ModelPass;

namespace {

struct Launched {
  int kernels = 0, products = 0;
  friend bool operator==(const Launched&, const Launched&) = default;
};
doctest::String toString(const Launched& count) {
  return fmt::format("{} kernels and {} products", count.kernels, count.products).c_str();
}

// Returns what `work` launches.
template <class Work>
Launched launched_by(const Work& work) {
  const auto& launches = emulated::launches();
  const int kernels = static_cast<int>(launches.kernels);
  const int products = static_cast<int>(launches.products);
  work();
  return {static_cast<int>(launches.kernels) - kernels,
          static_cast<int>(launches.products) - products};
}

}  // namespace

TEST_CASE("the launches of a layer, forward and backward") {
  ModelConfig model = preset("mistral-tiny", 61);
  model.layers = 3;
  struct Case {
    const char* name;
    Recompute recompute;
    bool fp8;
    Launched forward, backward;  // of a layer
    Launched all;                // of the whole pass, with embedding and head
  };
  // Forward has kernels for two norms, rope of queries and of keys, attention and SwiGLU. Backward
  // has two for each norm, three for attention, two for rope and one for SwiGLU; recomputation
  // repeats norms and SwiGLU (selective), or all but the last product (full). In fp8, the products
  // with one input are a group, of which a layer has four. A group takes one kernel that finds the
  // largest values, and one for each operand, which converts it. Embedding and head add 12 kernels
  // and 9 products: the head computes the tokens in three blocks.
  const Case cases[] = {
      {"bf16", Recompute::none, false, {6, 7}, {10, 14}, {60, 72}},
      {"bf16, selective recomputation", Recompute::selective, false, {6, 7}, {13, 14}, {69, 72}},
      {"bf16, full recomputation", Recompute::full, false, {6, 7}, {16, 20}, {72, 84}},
      {"fp8", Recompute::none, true, {21, 7}, {32, 14}, {171, 72}},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const auto device = atoll::Device::cuda();
    const auto ops = cuda::make_ops(device, {.fp8 = one.fp8});
    ModelPass pass(model, atoll::DType::bf16, *ops, device, one.recompute);
    constexpr std::size_t layer = 2;  // a unit with one layer and neither embedding nor head
    pass.begin();
    std::vector<Launched> forward(pass.units()), backward(pass.units());
    for (std::size_t unit = 0; unit < pass.units(); ++unit) {
      forward[unit] = launched_by([&] { pass.forward(unit); });
    }
    for (std::size_t unit = pass.units(); unit-- > 0;) {
      backward[unit] = launched_by([&] { pass.backward(unit); });
    }
    pass.stream().synchronize();
    CHECK(forward[layer] == one.forward);
    CHECK(backward[layer] == one.backward);
    Launched all;
    for (const auto& units : {forward, backward}) {
      for (const Launched& unit : units) {
        all.kernels += unit.kernels;
        all.products += unit.products;
      }
    }
    CHECK(all == one.all);
    // The last layer's activations are still in memory, so full recomputation does not repeat it.
    if (one.recompute == Recompute::full) CHECK(backward[layer + 1] == cases[0].backward);
  }
}
