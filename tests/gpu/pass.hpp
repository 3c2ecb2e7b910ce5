// A forward and a backward pass of a small model, unit by unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/device.hpp"
#include "atoll/view.hpp"
#include "model/decoder.hpp"
#include "model/params.hpp"

namespace atoll_test {

// Random weights and the memory for their gradients. The key is the number of the unit followed by
// the name of the parameter.
struct Parameters {
  using Buffers = std::map<std::string, atoll::Buffer, std::less<>>;
  Buffers weights, gradients;

  Parameters(const train::ModelConfig& model, atoll::DType dtype, const atoll::Device& device,
             unsigned seed) {
    std::mt19937 random(seed);
    auto stream = device.stream();
    for (std::size_t unit = 0; unit < train::unit_count(model); ++unit) {
      for (const train::ParamSpec& spec : train::param_specs(model, unit)) {
        const auto count = static_cast<std::size_t>(spec.count());
        const std::string name = std::to_string(unit) + spec.name;
        std::normal_distribution<float> normal(spec.mean, 0.1f);
        std::vector<std::byte> bytes(count * size_of(dtype));
        for (std::size_t i = 0; i < count; ++i) {
          const float value = normal(random);
          if (dtype == atoll::DType::f32) {
            reinterpret_cast<float*>(bytes.data())[i] = value;
          } else {
            reinterpret_cast<atoll::bfloat16*>(bytes.data())[i] = atoll::to_bfloat16(value);
          }
        }
        weights[name] = device.allocate(bytes.size());
        gradients[name] = device.allocate(count * sizeof(float));
        stream.copy(weights[name].data(), bytes.data(), bytes.size());
        // Wait until the copy has read `bytes`, which is about to be destroyed.
        stream.synchronize();
      }
    }
  }
  static atoll::View find(const Buffers& in, std::size_t unit, std::string_view name,
                          atoll::DType dtype) {
    return in.find(std::to_string(unit) + std::string(name))->second.view(dtype);
  }
};

// The memory of one pass over a batch of random tokens, of which one has no target.
class ModelPass {
 public:
  static constexpr std::int64_t rows = 2, seq = 24;

  ModelPass(const train::ModelConfig& model, atoll::DType dtype, train::Ops& ops,
            const atoll::Device& device, train::Recompute recompute = train::Recompute::none)
      : dtype_(dtype),
        stream_(device.stream()),
        decoder_(model, ops),
        activations_(decoder_.make_activations({.max_tokens = rows * seq,
                                                .max_seq = seq,
                                                .compute = dtype,
                                                .recompute = recompute,
                                                .head_rows = 17},
                                               device, stream_)),
        ids_(device.allocate(2 * rows * seq * sizeof(std::int32_t))),
        parameters_(model, dtype, device, 6),
        batch_{rows, seq, ids_.view(atoll::DType::i32).part(0, rows * seq),
               ids_.view(atoll::DType::i32).part(rows * seq, rows * seq)} {
    std::mt19937 random(5);
    std::vector<std::int32_t> ids(2 * rows * seq);
    for (auto& id : ids) {
      id = static_cast<std::int32_t>(random() % static_cast<unsigned>(model.vocab));
    }
    ids[rows * seq + 7] = -100;
    stream_.copy(ids_.data(), ids.data(), ids_.bytes());
    ops.reserve(stream_, largest_shapes(model, activations_.plan()));
    stream_.synchronize();
  }

  std::size_t units() const { return decoder_.units(); }
  void begin() { decoder_.begin(step()); }
  void forward(std::size_t unit) { decoder_.forward(step(), unit, weights_of(unit)); }
  void backward(std::size_t unit) {
    decoder_.backward(step(), unit, weights_of(unit), [&, unit](std::string_view name) {
      return train::Gradient{Parameters::find(parameters_.gradients, unit, name, atoll::DType::f32),
                             train::WriteMode::overwrite};
    });
  }
  void run() {
    begin();
    for (std::size_t unit = 0; unit < units(); ++unit) forward(unit);
    for (std::size_t unit = units(); unit-- > 0;) backward(unit);
  }

  atoll::Stream& stream() { return stream_; }
  const train::Activations& activations() const { return activations_; }
  const Parameters& parameters() const { return parameters_; }

 private:
  train::Step step() {
    return {stream_, batch_, activations_, 1.0f / static_cast<float>(rows * seq - 1)};
  }
  train::WeightLookup weights_of(std::size_t unit) {
    return [&, unit](std::string_view name) -> atoll::ConstView {
      return Parameters::find(parameters_.weights, unit, name, dtype_);
    };
  }

  atoll::DType dtype_;
  atoll::Stream stream_;
  train::Decoder decoder_;
  train::Activations activations_;
  atoll::Buffer ids_;
  Parameters parameters_;
  train::Batch batch_;
};

}  // namespace atoll_test
