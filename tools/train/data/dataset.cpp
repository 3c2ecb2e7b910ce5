#include "data/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "data/file.hpp"
#include "data/loaders.hpp"
#include "data/random.hpp"
#include "data/sources.hpp"
#include "fail.hpp"

namespace train {

Dataset::Dataset(std::string name)
    : name_(std::move(name)), memory_(std::make_shared<MemorySamples>()), rows_(memory_) {}

void Dataset::add(std::span<const std::int32_t> tokens, std::span<const std::int32_t> labels) {
  memory_->add(tokens, labels);
}

Sample Dataset::sample(std::int64_t index) const {
  const auto length = static_cast<std::size_t>(rows_->length(index));
  Sample sample{std::vector<std::int32_t>(length), std::vector<std::int32_t>(length),
                rows_->valid(index)};
  rows_->read(index, sample.tokens, sample.labels);
  return sample;
}

std::uint64_t Dataset::fingerprint() const noexcept {
  std::uint64_t hash = rows_->fingerprint();
  for (const Portion& portion : portions) {
    hash = scramble(hash ^ static_cast<std::uint64_t>(portion.size)) +
           static_cast<std::uint64_t>(portion.weight * 1e9);
  }
  return hash;
}

TrainOn train_on_from_name(std::string_view name) {
  if (name == "output") return TrainOn::output;
  require(name == "all", "--train-on {}: use output or all", name);
  return TrainOn::all;
}

namespace {

void check(const DataSpec& spec, const SourceSpec& source, const Tokenizer& tokenizer) {
  const bool copies = source.kind == SourceKind::copy;
  const bool random = source.kind == SourceKind::synthetic;
  const bool ids = source.kind == SourceKind::token_file;
  const std::int32_t needed =
      copies ? copy_vocabulary : (random || ids ? 1 : tokenizer.vocab_size());
  require(
      spec.model.vocabulary <= 0 || needed <= spec.model.vocabulary,
      "{} needs a vocabulary of {} tokens, but that of the model has {}: use the --tokenizer of "
      "this model, or a config.json with a larger vocab_size and --init none",
      copies ? source.text : fmt::format("tokenizer {}", tokenizer.name()), needed,
      spec.model.vocabulary);
}

Dataset load(const DataSpec& spec, const SourceSpec& source, const Tokenizer& tokenizer) {
  switch (source.kind) {
    case SourceKind::demo:
      return make_demo(spec, tokenizer);
    case SourceKind::synthetic:
      return make_random(spec, tokenizer);
    case SourceKind::copy:
      return make_copy(spec);
    case SourceKind::alpaca:
      return load_alpaca(read_file(source.path, largest_alpaca), source.path.string(), spec,
                         tokenizer);
    case SourceKind::token_file:
      return load_token_file(TokenFile::open(source.path), spec, tokenizer);
    case SourceKind::raw_ids:
      return load_token_file(TokenFile::open_raw(source.path, token_type_from_name(spec.data_type),
                                                 tokenizer.vocab_size()),
                             spec, tokenizer);
    case SourceKind::other:
      break;
  }
  fail(ErrorCode::internal, "data {}: not converted", source.text);
}

Dataset open_source(const DataSpec& spec, const SourceSpec& source, const Tokenizer& tokenizer) {
  check(spec, source, tokenizer);
  Dataset dataset = load(spec, source, tokenizer);
  if (dataset.size() == 0) {
    const std::string why = dataset.warnings.empty() ? "" : "; " + dataset.warnings.front();
    fail(ErrorCode::bad_data, "{}: no sample to train on{}", source.text, why);
  }
  if (spec.samples > dataset.size()) {
    dataset.warnings.push_back(fmt::format("{}: {} samples requested, {} available", dataset.name(),
                                           spec.samples, dataset.size()));
  }
  if (dataset.statistics.empty())
    dataset.statistics.push_back(measure(*dataset.rows(), dataset.name()));
  dataset.statistics.front().weight = source.weight;
  return dataset;
}

// Joins sets that are mixed; a single set stays as it is.
Dataset join(std::vector<Dataset> sets) {
  if (sets.size() == 1) return std::move(sets.front());
  std::string name;
  std::vector<std::shared_ptr<const Samples>> rows;
  for (const Dataset& set : sets) {
    name += (name.empty() ? "" : ", ") + set.name();
    rows.push_back(set.rows());
  }
  auto joined = std::make_shared<JoinedSamples>(std::move(rows));
  require(joined->size() < std::int64_t{1} << 32U, "--data: {} samples: must be below 2^32",
          joined->size());
  Dataset mixture(name, std::move(joined));
  std::int64_t first = 0;
  for (const Dataset& set : sets) {
    mixture.portions.push_back({first, set.size(), set.statistics.front().weight});
    first += set.size();
    std::ranges::copy(set.statistics, std::back_inserter(mixture.statistics));
    std::ranges::copy(set.warnings, std::back_inserter(mixture.warnings));
  }
  return mixture;
}

std::vector<Dataset> open_sources(const DataSpec& spec, const Tokenizer& tokenizer) {
  require(spec.model.positions <= 0 || spec.seq <= spec.model.positions,
          "--seq {}: the positions of the model allow at most {} tokens; lower --seq", spec.seq,
          spec.model.positions);
  std::vector<Dataset> sets;
  for (const SourceSpec& source : parse_sources(spec.data, spec.data_type)) {
    sets.push_back(open_source(spec, source, tokenizer));
  }
  return sets;
}

// The permutation by which a split chooses samples. Its seed is fixed: another seed of the run must
// not bring samples of the evaluation into the training.
Permutation split_order(std::int64_t size) {
  return {size, CounterRandom({0, RandomStream::evaluation, size}).bits(0)};
}

// Takes part of a set. Of its `statistics`, only the number of samples is that of the part.
Dataset part_of(const Dataset& set, std::int64_t first, std::int64_t size) {
  Dataset part(set.name(),
               std::make_shared<ChosenSamples>(set.rows(), split_order(set.size()), first, size));
  part.statistics = set.statistics;
  part.statistics.front().samples = size;
  part.warnings = set.warnings;
  return part;
}

// Divides `limit` samples among sets in proportion to their sizes, rounded so that all add up; a
// limit of 0 takes all.
std::vector<std::int64_t> shares(std::int64_t limit, const std::vector<std::int64_t>& sizes) {
  std::int64_t left = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (limit == 0 || limit >= left) return sizes;
  std::vector<std::int64_t> all;
  for (const std::int64_t size : sizes) {
    const double part = static_cast<double>(size) / static_cast<double>(left);
    const std::int64_t share =
        std::min<std::int64_t>(size, std::llround(part * static_cast<double>(limit)));
    all.push_back(share);
    limit -= share;
    left -= size;
  }
  return all;
}

// The samples of an evaluation: at most `limit`, from the first `sizes[i]` of each set; a limit of
// 0 takes all.
Dataset evaluated(std::vector<Dataset> sets, const std::vector<std::int64_t>& sizes,
                  std::int64_t limit) {
  const std::vector<std::int64_t> used = shares(limit, sizes);
  std::vector<Dataset> parts;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    if (used[i] == 0) continue;
    parts.push_back(used[i] == sets[i].size() ? std::move(sets[i]) : part_of(sets[i], 0, used[i]));
  }
  Dataset all = join(std::move(parts));
  all.portions.clear();  // without weights, every sample is evaluated once
  return all;
}

Dataset open_evaluation(DataSpec spec, const EvalSpec& eval, const Tokenizer& tokenizer) {
  spec.data = eval.data;
  const bool is_one = parse_sources(eval.data, spec.data_type).size() == 1;
  spec.samples = is_one ? eval.samples : 0;
  std::vector<Dataset> sets = open_sources(spec, tokenizer);
  std::vector<std::int64_t> sizes;
  for (const Dataset& set : sets) sizes.push_back(set.size());
  return evaluated(std::move(sets), sizes, eval.samples);
}

}  // namespace

Dataset open_dataset(const DataSpec& spec, const Tokenizer& tokenizer) {
  return join(open_sources(spec, tokenizer));
}

RunData open_run_data(const DataSpec& spec, const EvalSpec& eval, const Tokenizer& tokenizer) {
  if (eval.split == 0) {
    RunData data{open_dataset(spec, tokenizer), std::nullopt};
    if (eval.data.empty()) return data;
    data.eval = open_evaluation(spec, eval, tokenizer);
    return data;
  }
  std::vector<Dataset> trained;
  std::vector<std::int64_t> taken;
  std::vector<Dataset> sets = open_sources(spec, tokenizer);
  for (const Dataset& set : sets) {
    require(set.size() >= 2, "--eval-split: {} has only {} sample", set.name(), set.size());
    const auto wanted = std::llround(eval.split * static_cast<double>(set.size()));
    taken.push_back(std::clamp<std::int64_t>(wanted, 1, set.size() - 1));
    trained.push_back(part_of(set, taken.back(), set.size() - taken.back()));
  }
  return {join(std::move(trained)), evaluated(std::move(sets), taken, eval.samples)};
}

}  // namespace train
