// Samples as token rows with labels. Every rank loads all of them once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"

namespace train {

// Marks a token that the loss ignores.
inline constexpr std::int32_t ignored_label = -100;

// One row before padding. labels[t] is the target predicted at position t: the token after
// tokens[t], or ignored_label. Both spans have the same length, at most the sequence length.
struct Sample {
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> labels;
  std::int64_t valid = 0;  // labels that are not ignored
};

class Dataset {
 public:
  explicit Dataset(std::string name) : name_(std::move(name)) {}

  // Copies both spans. Preconditions: equal lengths and at least one valid label.
  void add(std::span<const std::int32_t> tokens, std::span<const std::int32_t> labels);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(valid_.size()); }
  // Precondition: 0 <= index < size().
  Sample sample(std::int64_t index) const noexcept;
  std::int64_t length(std::int64_t index) const noexcept;
  std::int64_t valid(std::int64_t index) const noexcept;

  // Totals over all samples.
  std::int64_t total_tokens() const noexcept { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t total_valid() const noexcept { return total_valid_; }
  std::int64_t longest() const noexcept { return longest_; }

  // Hash of every token and label. Ranks compare it at the start, because hosts with different
  // copies of a file would otherwise train on different data.
  std::uint64_t fingerprint() const noexcept;

  const std::string& name() const noexcept { return name_; }

  // Messages for the user, one line each, such as dropped samples. Rank 0 logs them.
  std::vector<std::string> warnings;

 private:
  std::string name_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> labels_;
  // Index of each sample's first token, and the size of tokens_.
  std::vector<std::size_t> begin_{0};
  std::vector<std::int64_t> valid_;
  std::int64_t total_valid_ = 0;
  std::int64_t longest_ = 0;
};

// Limits of the model; 0 means unknown.
struct ModelLimits {
  std::int32_t vocabulary = 0;
  std::int32_t positions = 0;
};

struct DataSpec {
  // demo, synthetic, synthetic:copy, or a file whose name ends in .json, .jsonl, .txt or .md. The
  // prefixes json:, jsonl: and text: override the ending.
  std::string data = "demo";
  // Use the first N samples; 0 means the whole file, or the generator's default.
  std::int64_t samples = 0;
  std::int32_t seq = 512;  // longest row in tokens
  std::uint64_t seed = 0;  // seed of generated data; files ignore it
  ModelLimits model{};
};

// Throws Error with one line that names file and place: not_found, bad_data (malformed file or no
// samples), invalid_argument (seq exceeds the model's positions, the tokenizer has more tokens than
// the model, or the kind of data is unknown).
Dataset open_dataset(const DataSpec& spec, const Tokenizer& tokenizer);

}  // namespace train
