#include "golden_model.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "device/ops.hpp"
#include "model/hf_config.hpp"

namespace train::golden {
namespace {

using atoll::Buffer;
using atoll::ConstView;
using atoll::Device;
using atoll::DType;
using atoll::Stream;
using atoll::View;
using atoll::fsdp::SafetensorsEntry;
using atoll::fsdp::SafetensorsFile;

constexpr std::string_view gradient_prefix = "grad.";

template <class T>
std::vector<T> values(const SafetensorsEntry& entry) {
  std::vector<T> copied(entry.data.count);
  std::memcpy(copied.data(), entry.data.data, entry.data.bytes());
  return copied;
}

std::vector<std::int32_t> ids(const SafetensorsEntry& entry) {
  std::vector<std::int32_t> narrow;
  for (const std::int64_t id : values<std::int64_t>(entry)) {
    narrow.push_back(static_cast<std::int32_t>(id));
  }
  return narrow;
}

ModelConfig config_of(const SafetensorsFile& file) {
  ModelConfig config = parse_hf_config(file.metadata().at("config"), file.path().stem().string());
  const auto adapters = file.metadata().find("adapters");
  if (adapters == file.metadata().end()) return config;
  const auto json = nlohmann::json::parse(adapters->second);
  config.adapters = {json.at("rank"), json.at("alpha"), json.at("targets")};
  return config;
}

bool is_weight(const std::string& name) {
  return !name.starts_with(gradient_prefix) && name != "input_ids" && name != "labels" &&
         name != "logits" && name != "loss";
}

}  // namespace

double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double delta = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    difference += delta * delta;
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

GoldenModel::GoldenModel(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  config_ = config_of(file);
  validate(config_);
  rows_ = static_cast<std::int64_t>(file.at("input_ids").shape.at(0));
  seq_ = static_cast<std::int64_t>(file.at("input_ids").shape.at(1));
  tokens_ = ids(file.at("input_ids"));
  labels_ = ids(file.at("labels"));
  expected_.logits = values<float>(file.at("logits"));
  expected_.loss = static_cast<double>(values<float>(file.at("loss")).at(0));
  for (const SafetensorsEntry& entry : file.tensors()) {
    if (is_weight(entry.name)) weights_[entry.name] = values<float>(entry);
    if (!entry.name.starts_with(gradient_prefix)) continue;
    expected_.gradients[entry.name.substr(gradient_prefix.size())] = values<float>(entry);
  }
}

// Holds the buffers of one run. In training, an FSDP engine owns these buffers.
class GoldenModel::Run {
 public:
  Run(const GoldenModel& model, Ops& ops, const Options& options)
      : model_(model),
        options_(options),
        ops_(ops),
        decoder_(model.config_, ops),
        stream_(device_.stream()),
        activations_(
            decoder_.make_activations({model.rows_ * model.seq_, model.seq_, options.compute,
                                       options.recompute, options.head_rows},
                                      device_, stream_)) {
    for (const auto& [name, weight] : model.weights_) {
      load(name, weight);
    }
    tokens_ = upload(model.tokens_);
    labels_ = upload(model.labels_);
    batch_ = {model.rows_, model.seq_, tokens_.view(DType::i32), labels_.view(DType::i32)};
  }

  Results results() {
    Results results;
    const std::int64_t valid = valid_labels();
    const float scale = 1.0F / static_cast<float>(valid * options_.passes);
    const Step step{stream_, batch_, activations_, scale};
    Buffer logits = device_.allocate(sizeof(float) * model_.expected_.logits.size());
    decoder_.begin(step);
    for (int pass = 0; pass < options_.passes; ++pass) {
      for (std::size_t unit = 0; unit < decoder_.units(); ++unit) {
        decoder_.forward(step, unit, weights(unit));
      }
      const ModelConfig& config = decoder_.config();
      const auto head = weights(decoder_.units() - 1);
      ops_.linear_forward(
          stream_, {batch_.size(), config.hidden, config.vocab}, activations_.head(batch_).normed,
          head(config.tied ? "embed_tokens.weight" : "lm_head.weight"), logits.view(DType::f32));
      for (std::size_t unit = decoder_.units(); unit-- > 0;) {
        decoder_.backward(step, unit, weights(unit), gradients(unit));
      }
    }
    stream_.synchronize();
    results.logits = download(logits.view(DType::f32));
    const double* total = activations_.total().as<double>();
    results.loss = total[0] / total[1];
    for (const auto& [name, gradient] : gradients_) {
      results.gradients[name] = download(gradient.view(DType::f32));
    }
    return results;
  }

 private:
  template <class T>
  Buffer upload(const std::vector<T>& data) {
    Buffer buffer = device_.allocate(data.size() * sizeof(T));
    std::memcpy(buffer.data(), data.data(), buffer.bytes());
    return buffer;
  }

  void load(const std::string& name, const std::vector<float>& weight) {
    Buffer full = upload(weight);
    if (model_.expected_.gradients.contains(name)) {
      gradients_[name] = device_.allocate(full.bytes());
      // Fills the gradient with garbage, which the first write must replace.
      std::memset(gradients_[name].data(), 0xff, full.bytes());
    }
    if (options_.compute == DType::bf16) {
      Buffer low = device_.allocate(weight.size() * size_of(DType::bf16));
      device_.ops().cast(stream_, low.view(DType::bf16), full.view(DType::f32));
      stream_.synchronize();
      weights_[name] = std::move(low);
    } else {
      weights_[name] = std::move(full);
    }
  }

  static std::vector<float> download(View view) {
    return {view.as<float>(), view.as<float>() + view.count};
  }

  std::int64_t valid_labels() const {
    std::int64_t valid = 0;
    for (const std::int32_t label : model_.labels_) valid += label >= 0 ? 1 : 0;
    return valid;
  }

  // Returns the Hugging Face name of a parameter. With tied embeddings, the head uses the
  // embedding's weight.
  std::string hf_name(std::size_t unit, std::string_view name) const {
    if (name == "embed_tokens.weight") return "model.embed_tokens.weight";
    for (const ParamSpec& spec : param_specs(model_.config_, unit)) {
      if (spec.name == name) return spec.hf_name;
    }
    return std::string(name);
  }

  WeightLookup weights(std::size_t unit) {
    return [this, unit](std::string_view name) -> ConstView {
      return weights_.at(hf_name(unit, name)).view(options_.compute);
    };
  }

  // Returns a function that gives the gradient buffer of a parameter of this unit. The first use of
  // a parameter overwrites its gradient, and later uses accumulate.
  GradientLookup gradients(std::size_t unit) {
    return [this, unit](std::string_view name) {
      const std::string full = hf_name(unit, name);
      if (!gradients_.contains(full)) return Gradient{};  // not trained
      const bool first = written_.insert({full, true}).second;
      return Gradient{gradients_.at(full).view(DType::f32),
                      first ? WriteMode::overwrite : WriteMode::accumulate};
    };
  }

  const GoldenModel& model_;
  Options options_;
  Ops& ops_;
  Decoder decoder_;
  Device device_ = Device::cpu();
  Stream stream_;
  Activations activations_;
  std::map<std::string, Buffer> weights_, gradients_;
  std::map<std::string, bool> written_;
  Buffer tokens_, labels_;
  Batch batch_;
};

Results GoldenModel::run(Ops& ops, const Options& options) const {
  return Run(*this, ops, options).results();
}

}  // namespace train::golden
