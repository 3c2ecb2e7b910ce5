#include "data/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "data/file.hpp"
#include "data/loaders.hpp"
#include "data/random.hpp"
#include "fail.hpp"

namespace train {

void Dataset::add(std::span<const std::int32_t> tokens, std::span<const std::int32_t> labels) {
  const auto valid = static_cast<std::int64_t>(labels.size()) -
                     std::count(labels.begin(), labels.end(), ignored_label);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  begin_.push_back(tokens_.size());
  valid_.push_back(valid);
  total_valid_ += valid;
  longest_ = std::max(longest_, static_cast<std::int64_t>(tokens.size()));
}

Sample Dataset::sample(std::int64_t index) const noexcept {
  const auto i = static_cast<std::size_t>(index);
  const std::size_t length = begin_[i + 1] - begin_[i];
  return {std::span(tokens_).subspan(begin_[i], length),
          std::span(labels_).subspan(begin_[i], length), valid_[i]};
}

std::int64_t Dataset::length(std::int64_t index) const noexcept {
  const auto i = static_cast<std::size_t>(index);
  return static_cast<std::int64_t>(begin_[i + 1] - begin_[i]);
}

std::int64_t Dataset::valid(std::int64_t index) const noexcept {
  return valid_[static_cast<std::size_t>(index)];
}

std::uint64_t Dataset::fingerprint() const noexcept {
  std::uint64_t hash = scramble(valid_.size());
  const auto mix = [&hash](std::uint64_t value) { hash = scramble(hash ^ value) + value; };
  for (const std::size_t begin : begin_) mix(begin);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    mix((static_cast<std::uint64_t>(static_cast<std::uint32_t>(tokens_[i])) << 32U) |
        static_cast<std::uint32_t>(labels_[i]));
  }
  return hash;
}

namespace {

// The full Alpaca file has 23 MB. This loader keeps the whole file in memory.
constexpr std::uintmax_t largest_file = 1U << 30U;

struct FileKind {
  std::string_view name;  // file extension without the dot, or prefix as in json:FILE
  Dataset (*load)(const Source&, const DataSpec&, const Tokenizer&);
};
constexpr FileKind kinds[] = {{"json", load_alpaca_json},
                              {"jsonl", load_alpaca_jsonl},
                              {"txt", load_text},
                              {"md", load_text},
                              {"text", load_text}};

Dataset load(const DataSpec& spec, const Tokenizer& tokenizer) {
  const std::size_t colon = spec.data.find(':');
  std::filesystem::path path = spec.data;
  const auto* kind = std::ranges::find(kinds, spec.data.substr(0, colon), &FileKind::name);
  if (colon != std::string::npos && kind != std::end(kinds)) {
    path = spec.data.substr(colon + 1);
  } else {
    const std::string extension = path.extension().string();
    kind = std::ranges::find(kinds, extension.empty() ? "" : extension.substr(1), &FileKind::name);
  }
  require(kind != std::end(kinds),
          "data {}: use demo, synthetic, synthetic:copy, or a .json, .jsonl, .txt or .md file "
          "(json:FILE, jsonl:FILE, text:FILE for other names)",
          spec.data);
  const std::string bytes = read_file(path, largest_file);
  const std::string name = path.string();
  return kind->load({bytes, name}, spec, tokenizer);
}

void check(const DataSpec& spec, const Tokenizer& tokenizer) {
  require(spec.seq >= 1, "sequence length {}: must be at least 1", spec.seq);
  require(spec.samples >= 0, "samples {}: must not be negative", spec.samples);
  require(spec.model.positions <= 0 || spec.seq <= spec.model.positions,
          "sequence length {}: the model allows at most {}", spec.seq, spec.model.positions);
  const bool copies = spec.data == "synthetic:copy";
  const bool random = spec.data == "synthetic";
  const std::int32_t needed = copies ? copy_vocabulary : (random ? 1 : tokenizer.vocab_size());
  require(spec.model.vocabulary <= 0 || needed <= spec.model.vocabulary,
          "{} needs a vocabulary of {} tokens, but that of the model has {}",
          copies ? spec.data : fmt::format("tokenizer {}", tokenizer.name()), needed,
          spec.model.vocabulary);
}

Dataset make(const DataSpec& spec, const Tokenizer& tokenizer) {
  if (spec.data == "demo") return make_demo(spec, tokenizer);
  if (spec.data == "synthetic") return make_random(spec, tokenizer);
  if (spec.data == "synthetic:copy") return make_copy(spec);
  return load(spec, tokenizer);
}

}  // namespace

Dataset open_dataset(const DataSpec& spec, const Tokenizer& tokenizer) {
  check(spec, tokenizer);
  Dataset dataset = make(spec, tokenizer);
  if (dataset.size() == 0) {
    const std::string why = dataset.warnings.empty() ? "" : "; " + dataset.warnings.front();
    fail(ErrorCode::bad_data, "{}: no sample to train on{}", spec.data, why);
  }
  if (spec.samples > dataset.size()) {
    dataset.warnings.push_back(fmt::format("{}: {} samples requested, {} available", dataset.name(),
                                           spec.samples, dataset.size()));
  }
  return dataset;
}

}  // namespace train
