#include <algorithm>

#include "data/loaders.hpp"
#include "data/random.hpp"
#include "fail.hpp"

namespace train {
namespace {

constexpr std::int64_t default_samples = 1024;

std::int64_t sample_count(const DataSpec& spec) {
  return spec.samples > 0 ? spec.samples : default_samples;
}

}  // namespace

Dataset make_random(const DataSpec& spec, const Tokenizer& tokenizer) {
  Dataset dataset("synthetic");
  const std::int32_t vocabulary =
      spec.model.vocabulary > 0 ? spec.model.vocabulary : tokenizer.vocab_size();
  std::vector<std::int32_t> ids(static_cast<std::size_t>(spec.seq) + 1);
  for (std::int64_t i = 0; i < sample_count(spec); ++i) {
    const CounterRandom random({spec.seed, RandomStream::synthetic_tokens, i});
    for (std::size_t t = 0; t < ids.size(); ++t) {
      ids[t] = static_cast<std::int32_t>(random.below(t, static_cast<std::uint64_t>(vocabulary)));
    }
    dataset.add(std::span(ids).first(ids.size() - 1), std::span(ids).subspan(1));
  }
  return dataset;
}

Dataset make_copy(const DataSpec& spec) {
  require(spec.seq >= 4, "synthetic:copy: sequence length {}: must be at least 4", spec.seq);
  Dataset dataset("synthetic:copy");
  const auto half = static_cast<std::size_t>(spec.seq) / 2;
  std::vector<std::int32_t> ids(2 * half);
  std::vector<std::int32_t> labels(2 * half);
  for (std::int64_t i = 0; i < sample_count(spec); ++i) {
    const CounterRandom random({spec.seed, RandomStream::copy_tokens, i});
    ids[0] = 0;
    for (std::size_t t = 1; t < half; ++t) {
      ids[t] = 1 + static_cast<std::int32_t>(random.below(t, copy_vocabulary - 1));
    }
    std::copy_n(ids.begin(), half, ids.begin() + static_cast<std::ptrdiff_t>(half));
    std::fill(labels.begin(), labels.end(), ignored_label);
    for (std::size_t t = half; t + 1 < ids.size(); ++t) labels[t] = ids[t + 1];
    dataset.add(ids, labels);
  }
  return dataset;
}

}  // namespace train
