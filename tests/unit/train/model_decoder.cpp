// Tests of the decoder with different batches and memory plans. tests/golden checks the decoder's
// numbers; runs in tests/train evaluate and pack rows.
#include <doctest/doctest.h>

#include <map>

#include "atoll/error.hpp"
#include "model/decoder.hpp"
#include "unit/train/ops_reference.hpp"

using atoll::DType;
using namespace train;
using reference::Tensor;
using reference::Values;

namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.layers = 2;
  config.hidden = 12;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 6;
  config.ffn = 20;
  config.vocab = 23;
  config.max_seq = 16;
  return config;
}

// Runs a model with random weights in the way a training loop does.
class SmallModel {
 public:
  explicit SmallModel(std::int64_t max_tokens, std::int64_t max_seq = 16)
      : decoder_(small_config(), bench_.ops),
        activations_(
            decoder_.make_activations({max_tokens, max_seq}, atoll::Device::cpu(), bench_.stream)) {
    std::mt19937_64 random(1);
    for (std::size_t unit = 0; unit < decoder_.units(); ++unit) {
      for (const ParamSpec& spec : param_specs(decoder_.config(), unit)) {
        Values weight = reference::random_values(random, spec.count(), 0.2);
        for (double& value : weight) value += static_cast<double>(spec.mean);
        weights_.emplace(spec.hf_name, Tensor(weight, DType::f32));
        gradients_.emplace(spec.hf_name, Tensor::unset(spec.count(), DType::f32));
      }
    }
  }

  // Waits for the stream, because work that was enqueued before a batch was refused may still write
  // to the members.
  ~SmallModel() { bench_.done(); }
  SmallModel(const SmallModel&) = delete;
  SmallModel& operator=(const SmallModel&) = delete;

  struct Result {
    double loss, valid;
    std::map<std::string, Values> gradients;
  };

  Result train(std::int64_t rows, std::int64_t seq, const std::vector<std::int32_t>& tokens,
               const std::vector<std::int32_t>& labels) {
    const Tensor ids(tokens), targets(labels);
    const Batch batch{rows, seq, ids.view(), targets.view()};
    const Step step{bench_.stream, batch, activations_};
    decoder_.begin(step);
    for (std::size_t u = 0; u < decoder_.units(); ++u) decoder_.forward(step, u, weights(u));
    for (std::size_t u = decoder_.units(); u-- > 0;) {
      decoder_.backward(step, u, weights(u), gradients(u));
    }
    bench_.done();
    Result result{total()[0], total()[1], {}};
    for (const auto& [name, gradient] : gradients_) result.gradients[name] = gradient.values();
    return result;
  }

 private:
  Values total() const {
    const double* values = activations_.total().as<double>();
    return {values[0], values[1]};
  }
  std::string full_name(std::size_t unit, std::string_view name) const {
    for (const ParamSpec& spec : param_specs(decoder_.config(), unit)) {
      if (spec.name == name) return spec.hf_name;
    }
    return "?";
  }
  WeightLookup weights(std::size_t unit) const {
    return [this, unit](std::string_view name) -> atoll::ConstView {
      return weights_.at(full_name(unit, name)).view();
    };
  }
  GradientLookup gradients(std::size_t unit) const {
    return [this, unit](std::string_view name) {
      return Gradient{gradients_.at(full_name(unit, name)).view(), WriteMode::overwrite};
    };
  }

  reference::Bench bench_;
  Decoder decoder_;
  Activations activations_;
  std::map<std::string, Tensor> weights_, gradients_;
};

const std::vector<std::int32_t> tokens{1, 5, 9, 22, 0, 7, 3, 4, 5, 6, 0, 0};
const std::vector<std::int32_t> labels{5, 9, 22, 0, 7, -100, 4, 5, 6, -100, -100, -100};

}  // namespace

TEST_CASE("padding has no influence on loss and gradients") {
  SmallModel model(24);
  const SmallModel::Result narrow = model.train(2, 6, tokens, labels);
  std::vector<std::int32_t> wide_tokens, wide_labels;
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t t = 0; t < 11; ++t) {
      wide_tokens.push_back(t < 6 ? tokens[row * 6 + t] : 2);
      wide_labels.push_back(t < 6 ? labels[row * 6 + t] : -100);
    }
  }
  const SmallModel::Result wide = model.train(2, 11, wide_tokens, wide_labels);
  CHECK(wide.loss == doctest::Approx(narrow.loss).epsilon(1e-6));
  for (const auto& [name, gradient] : narrow.gradients) {
    CAPTURE(name);
    CHECK(reference::relative_error(wide.gradients.at(name), gradient) < 1e-5);
  }
}

TEST_CASE("a batch without a valid label gives zero loss and zero gradients") {
  SmallModel model(12);
  const SmallModel::Result result = model.train(2, 6, tokens, std::vector<std::int32_t>(12, -100));
  CHECK(result.loss == 0);
  CHECK(result.valid == 0);
  for (const auto& [name, gradient] : result.gradients) {
    CAPTURE(name);
    CHECK(gradient == Values(gradient.size()));
  }
}

TEST_CASE("a batch larger than the plan is refused") {
  SmallModel model(12, 6);
  CHECK_THROWS_AS(model.train(3, 6, tokens, labels), atoll::Error);
  CHECK_THROWS_AS(model.train(1, 12, tokens, labels), atoll::Error);
  CHECK_THROWS_AS(model.train(0, 6, {}, {}), atoll::Error);
}

TEST_CASE("invalid plans are refused, and recomputation needs less memory") {
  const auto device = atoll::Device::cpu();
  const ModelConfig config = small_config();
  CHECK_THROWS_AS(Activations(config, {0, 4}, device), atoll::Error);
  CHECK_THROWS_AS(Activations(config, {4, 4, DType::f16}, device), atoll::Error);
  ModelConfig deep = config;
  deep.layers = 20;
  const Activations all(deep, {64, 16}, device);
  const Activations few(deep, {64, 16, DType::f32, Recompute::full}, device);
  CHECK(few.bytes() < all.bytes() / 3);
  const Activations some(deep, {64, 16, DType::f32, Recompute::selective}, device);
  CHECK(some.bytes() < all.bytes() * 3 / 4);
}
