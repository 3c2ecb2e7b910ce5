// Samples as token rows with labels, loaded once, the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"

namespace train {

// A label that carries no loss.
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

  // Copies both. Precondition: the same length, at least one valid label.
  void add(std::span<const std::int32_t> tokens, std::span<const std::int32_t> labels);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(valid_.size()); }
  // Precondition: 0 <= index < size().
  Sample sample(std::int64_t index) const noexcept;
  std::int64_t length(std::int64_t index) const noexcept;
  std::int64_t valid(std::int64_t index) const noexcept;

  // Over all samples.
  std::int64_t total_tokens() const noexcept { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t total_valid() const noexcept { return total_valid_; }
  std::int64_t longest() const noexcept { return longest_; }

  // A hash of every token and label: ranks compare it at the start, since hosts with different
  // copies of a file would train on different data and never notice.
  std::uint64_t fingerprint() const noexcept;

  const std::string& name() const noexcept { return name_; }

  // What the user should know and did not ask for (samples dropped, fewer than wanted), one line
  // each. Rank 0 logs them.
  std::vector<std::string> warnings;

 private:
  std::string name_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> labels_;
  std::vector<std::size_t> begin_{0};  // of sample i in tokens_; the last entry is the end
  std::vector<std::int64_t> valid_;
  std::int64_t total_valid_ = 0;
  std::int64_t longest_ = 0;
};

// What the model allows; 0 where that is not known.
struct ModelLimits {
  std::int32_t vocabulary = 0;
  std::int32_t positions = 0;
};

struct DataSpec {
  // `demo`, `synthetic`, `synthetic:copy`, or a file: .json, .jsonl, .txt or .md by its name;
  // `json:FILE`, `jsonl:FILE`, `text:FILE` whatever its name.
  std::string data = "demo";
  std::int64_t samples = 0;  // the first N; 0: all of a file, or the generator's own number
  std::int32_t seq = 512;    // longest row
  std::uint64_t seed = 0;    // of generated data; files do not depend on it
  ModelLimits model{};
};

// Throws Error with one line that names file and place: not_found, bad_data (malformed file, no
// sample left), invalid_argument (sequence longer than the model allows, tokenizer with more tokens
// than the model, unknown kind of data).
Dataset open_dataset(const DataSpec& spec, const Tokenizer& tokenizer);

}  // namespace train
