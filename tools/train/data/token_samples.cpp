// Rows of token files. Memory holds at most an index for each document; tokens are read from the
// mapped file when a batch needs them.

#include <algorithm>
#include <filesystem>
#include <limits>

#include "data/loaders.hpp"
#include "data/random.hpp"
#include "fail.hpp"

namespace train {
namespace {

// The common base of both kinds of rows of token files.
class FileSamples : public Samples {
 public:
  FileSamples(TokenFile file, const DataSpec& spec)
      : file_(std::move(file)), seq_(spec.seq), all_(spec.train_on == TrainOn::all) {}

  std::int64_t length(std::int64_t index) const noexcept final { return place(index).length; }
  std::int64_t valid(std::int64_t index) const noexcept final {
    const Place at = place(index);
    return trained(at.first + 1, at.first + at.length + 1);
  }
  void read(std::int64_t index, std::span<std::int32_t> tokens,
            std::span<std::int32_t> labels) const final {
    const Place at = place(index);
    file_.read(at.first, tokens);
    file_.read(at.first + 1, labels);
    if (all_ || !file_.masked()) return;
    for (std::int64_t t = 0; t < at.length; ++t) {
      if (!file_.trained(at.first + 1 + t)) labels[static_cast<std::size_t>(t)] = ignored_label;
    }
  }
  std::uint64_t fingerprint() const noexcept final {
    const auto shape = static_cast<std::uint64_t>(seq_) * 2 + (all_ ? 1 : 0);
    return scramble(file_.fingerprint() ^ scramble(shape)) + static_cast<std::uint64_t>(size());
  }
  std::int64_t longest() const noexcept final { return longest_; }
  const TokenFile& file() const noexcept { return file_; }
  std::int64_t trained(std::int64_t first, std::int64_t last) const noexcept {
    return all_ ? last - first : file_.count_trained(first, last);
  }

 protected:
  struct Place {
    std::int64_t first = 0;   // index of the first token in the file
    std::int64_t length = 0;  // number of inputs; the token after them is only a target
  };
  virtual Place place(std::int64_t index) const noexcept = 0;

  TokenFile file_;
  std::int64_t seq_;
  std::int64_t longest_ = 0;
  bool all_;
};

// Each document is a row.
class DocumentRows final : public FileSamples {
 public:
  DocumentRows(TokenFile file, const DataSpec& spec, SetStatistics& statistics)
      : FileSamples(std::move(file), spec) {
    std::int64_t seen = 0;
    for (; seen < file_.documents() && (spec.samples == 0 || size_ < spec.samples); ++seen) {
      const Place at = row_of(seen);
      if (at.length < 1 || trained(at.first + 1, at.first + at.length + 1) == 0) {
        drop(seen);
        ++statistics.dropped;
        continue;
      }
      if (file_.end(seen) - at.first - 1 > seq_) ++statistics.cut;
      longest_ = std::max(longest_, at.length);
      ++size_;
      if (!all_kept_) kept_.push_back(static_cast<std::uint32_t>(seen));
    }
  }
  std::int64_t size() const noexcept override { return size_; }

 private:
  Place row_of(std::int64_t document) const noexcept {
    const std::int64_t first = file_.begin(document);
    return {first, std::min(file_.end(document) - first - 1, seq_)};
  }
  Place place(std::int64_t index) const noexcept override {
    return row_of(all_kept_ ? index : kept_[static_cast<std::size_t>(index)]);
  }
  // Begins the list of kept documents when the first one is dropped.
  void drop(std::int64_t document) {
    if (!all_kept_) return;
    all_kept_ = false;
    for (std::int64_t d = 0; d < document; ++d) kept_.push_back(static_cast<std::uint32_t>(d));
  }

  std::int64_t size_ = 0;
  bool all_kept_ = true;
  std::vector<std::uint32_t> kept_;
};

// Documents are joined, and the stream is cut into rows. A row's last target is the first token of
// the next row.
class JoinedDocuments final : public FileSamples {
 public:
  JoinedDocuments(TokenFile file, const DataSpec& spec) : FileSamples(std::move(file), spec) {
    const std::int64_t predictions = file_.tokens() - 1;
    size_ = predictions / seq_ + (predictions % seq_ != 0 ? 1 : 0);
    if (spec.samples > 0) size_ = std::min(size_, spec.samples);
    longest_ = std::min(predictions, seq_);
    require(size_ <= std::numeric_limits<std::uint32_t>::max(),
            "{}: {} rows of {} tokens: at most 2^32 - 1 are possible; raise --seq", file_.name(),
            size_, seq_);
  }
  std::int64_t size() const noexcept override { return size_; }

 private:
  Place place(std::int64_t index) const noexcept override {
    const std::int64_t first = index * seq_;
    return {first, std::min(seq_, file_.tokens() - 1 - first)};
  }

  std::int64_t size_ = 0;
};

void check_tokenizer(const TokenFile& file, const Tokenizer& tokenizer) {
  const TokenizerDigest unknown{};
  if (file.tokenizer_digest() != unknown && tokenizer.digest() != unknown &&
      file.tokenizer_digest() != tokenizer.digest()) {
    fail(ErrorCode::mismatch,
         "{}: was made with the tokenizer {}, which is not --tokenizer {}: leave --tokenizer out, "
         "or convert the data again",
         file.name(), file.tokenizer_name(), tokenizer.name());
  }
}

}  // namespace

Dataset load_token_file(TokenFile file, const DataSpec& spec, const Tokenizer& tokenizer) {
  check_tokenizer(file, tokenizer);
  if (spec.model.vocabulary > 0) file.limit_ids(spec.model.vocabulary);
  SetStatistics statistics;
  statistics.name = std::filesystem::path(file.name()).filename().string();
  statistics.documents = file.documents();
  statistics.tokens = file.tokens();
  measure_lengths([&](std::int64_t d) { return file.end(d) - file.begin(d); }, statistics);
  std::shared_ptr<const FileSamples> rows;
  if (file.joined()) {
    rows = std::make_shared<JoinedDocuments>(std::move(file), spec);
  } else {
    rows = std::make_shared<DocumentRows>(std::move(file), spec, statistics);
  }
  statistics.samples = rows->size();
  statistics.trained = rows->trained(0, statistics.tokens);
  Dataset dataset(statistics.name, rows);
  if (statistics.dropped > 0) {
    dataset.warnings.push_back(
        fmt::format("{}: {} documents dropped, since none of their first {} tokens is trained",
                    dataset.name(), statistics.dropped, spec.seq));
  }
  if (statistics.cut > 0) {
    dataset.warnings.push_back(
        fmt::format("{}: {} documents cut to {} tokens", dataset.name(), statistics.cut, spec.seq));
  }
  dataset.statistics.push_back(std::move(statistics));
  return dataset;
}

}  // namespace train
