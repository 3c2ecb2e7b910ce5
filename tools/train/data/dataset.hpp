// Samples as token rows with labels. Every rank opens all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/samples.hpp"
#include "data/tokenizer.hpp"

namespace train {

// Marks a token that the loss ignores.
inline constexpr std::int32_t ignored_label = -100;

// One row before padding. labels[t] is the target predicted at position t: the token after
// tokens[t], or ignored_label. Both have the same length, at most the sequence length.
struct Sample {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> labels;
  std::int64_t valid = 0;  // labels that are not ignored
};

// Statistics of one set of documents, which a run prints when it starts.
struct SetStatistics {
  std::string name;
  double weight = 1;
  std::int64_t documents = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;   // tokens in all documents; Alpaca files count those that are kept
  std::int64_t trained = 0;  // tokens that are targets
  std::int64_t shortest = 0, longest = 0, percentile95 = 0;  // lengths of documents, in tokens
  double mean = 0;                                           // mean length of a document, in tokens
  std::int64_t cut = 0;      // documents whose end does not fit in a row and is left out
  std::int64_t dropped = 0;  // documents left out, because their row has no target
};

class Dataset {
 public:
  // An empty set in memory, to which add() adds samples.
  explicit Dataset(std::string name);
  // A set whose samples `rows` provides.
  Dataset(std::string name, std::shared_ptr<const Samples> rows)
      : name_(std::move(name)), rows_(std::move(rows)) {}
  Dataset(Dataset&&) = default;
  Dataset& operator=(Dataset&&) = default;

  // Copies both spans. Preconditions: equal lengths, at least one valid label, and the set was made
  // by the first constructor.
  void add(std::span<const std::int32_t> tokens, std::span<const std::int32_t> labels);

  std::int64_t size() const noexcept { return rows_->size(); }
  // Preconditions: 0 <= index < size(). Throws Error(bad_data) if the file of the sample is
  // damaged.
  Sample sample(std::int64_t index) const;
  void read(std::int64_t index, std::span<std::int32_t> tokens,
            std::span<std::int32_t> labels) const {
    rows_->read(index, tokens, labels);
  }
  std::int64_t length(std::int64_t index) const noexcept { return rows_->length(index); }
  std::int64_t valid(std::int64_t index) const noexcept { return rows_->valid(index); }

  std::int64_t longest() const noexcept { return rows_->longest(); }

  // Hash of the contents. Ranks compare it at the start, because hosts with different copies of a
  // file would otherwise train on different data.
  std::uint64_t fingerprint() const noexcept;

  const std::string& name() const noexcept { return name_; }
  const std::shared_ptr<const Samples>& rows() const noexcept { return rows_; }

  // The sets that are mixed; empty for a single set.
  std::vector<Portion> portions;
  std::vector<SetStatistics> statistics;
  // Messages for the user, one line each, such as dropped samples. Rank 0 logs them.
  std::vector<std::string> warnings;

 private:
  std::string name_;
  std::shared_ptr<MemorySamples> memory_;  // null unless the first constructor made the set
  std::shared_ptr<const Samples> rows_;
};

// Measures samples in memory. Each sample counts as one document.
SetStatistics measure(const Samples& rows, std::string name);

// Sets the members of `result` that describe lengths; `documents` and `tokens` must be set. If
// there are very many documents, the percentile is that of some of them, evenly spread.
void measure_lengths(const std::function<std::int64_t(std::int64_t)>& length,
                     SetStatistics& result);

// One line for each set: documents, tokens, lengths, the share of trained tokens, and documents
// that are cut; for mixed sets also how many times an epoch uses each sample.
std::vector<std::string> statistics_lines(const Dataset& dataset);

// Limits of the model; 0 means unknown.
struct ModelLimits {
  std::int32_t vocabulary = 0;
  std::int32_t positions = 0;
};

// Which tokens carry loss, where data distinguish prompts from outputs.
enum class TrainOn {
  output,  // tokens that the data mark as trained
  all,     // all tokens, prompts too
};

// Accepts "output" and "all", and throws Error(invalid_argument) for other names.
TrainOn train_on_from_name(std::string_view name);

struct DataSpec {
  // Sources separated by commas: demo, synthetic, synthetic:copy, or a file. Each may be followed
  // by :WEIGHT. See sources.hpp.
  std::string data = "demo";
  // uint16 or uint32: the type of the ids in files without a header (other endings, or raw:FILE).
  std::string data_type = "";
  // Use the first N samples of each source; 0 means the whole file, or the generator's default.
  std::int64_t samples = 0;
  std::int32_t seq = 512;  // longest row in tokens
  std::uint64_t seed = 0;  // seed of generated data; files ignore it
  TrainOn train_on = TrainOn::output;
  ModelLimits model{};
};

// Throws Error with one line that names file and place: not_found, bad_data (malformed file or no
// samples), invalid_argument (seq exceeds the model's positions, the tokenizer has more tokens than
// the model, or the kind of data is unknown), mismatch (a token file was made with another
// tokenizer).
Dataset open_dataset(const DataSpec& spec, const Tokenizer& tokenizer);

// Where the samples of evaluation come from. All members empty or 0: there is no evaluation.
struct EvalSpec {
  std::string data{};        // sources, written as in DataSpec::data; weights are ignored
  double split = 0;          // without `data`: part of each training source to evaluate, in (0, 1)
  std::int64_t samples = 0;  // evaluate at most this many samples; 0: all
};

struct RunData {
  Dataset train;
  std::optional<Dataset> eval;
};

// Opens the data of training and of evaluation. If `eval.samples` limits the sources of
// `eval.data`, a single source gives its first samples, and several give samples in proportion to
// their sizes. A split depends on the number of samples only, so that no seed of the run lets it
// train on samples of an evaluation. Throws like open_dataset().
RunData open_run_data(const DataSpec& spec, const EvalSpec& eval, const Tokenizer& tokenizer);

// Text of the first `count` samples of epoch 0: tokens with ids, text and targets. For --show-data.
std::string show_samples(const Dataset& dataset, const Tokenizer& tokenizer, std::int64_t count,
                         std::uint64_t seed);

}  // namespace train
