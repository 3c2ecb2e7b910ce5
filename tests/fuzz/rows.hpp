// The property that all fuzz programs for training data check: the reader either throws
// atoll::Error or returns a valid dataset. Anything else ends the process.
#pragma once

#include <cstdlib>

#include "atoll/error.hpp"
#include "data/loaders.hpp"

namespace train_fuzz {

using Loader = train::Dataset (*)(const train::Source&, const train::DataSpec&,
                                  const train::Tokenizer&);

inline void check_rows(const train::Dataset& data, const train::DataSpec& spec,
                       const train::Tokenizer& tokenizer) {
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const train::Sample sample = data.sample(i);
    if (sample.tokens.size() != sample.labels.size() || sample.valid < 1) std::abort();
    if (sample.tokens.size() > static_cast<std::size_t>(spec.seq)) std::abort();
    for (std::size_t t = 0; t < sample.tokens.size(); ++t) {
      const auto label = sample.labels[t];
      if (sample.tokens[t] < 0 || sample.tokens[t] >= tokenizer.vocab_size()) std::abort();
      if (label == train::ignored_label) continue;
      if (label < 0 || label >= tokenizer.vocab_size()) std::abort();
      if (t + 1 < sample.tokens.size() && label != sample.tokens[t + 1]) std::abort();
    }
  }
}

inline int load_rows(Loader loader, const std::uint8_t* bytes, std::size_t size) {
  static const auto tokenizer = train::byte_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const train::DataSpec spec{.seq = 48};
  try {
    check_rows(loader({text, "input"}, spec, *tokenizer), spec, *tokenizer);
  } catch (const atoll::Error&) {
  }
  return 0;
}

}  // namespace train_fuzz
