// Fuzzes the reader of Alpaca records: it throws atoll::Error or returns valid samples.
#include <cstdlib>

#include "atoll/error.hpp"
#include "data/loaders.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const auto tokenizer = train::byte_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  constexpr std::int32_t seq = 48;
  try {
    const train::Dataset data = train::load_alpaca(text, "input", {.seq = seq}, *tokenizer);
    for (std::int64_t i = 0; i < data.size(); ++i) {
      const train::Sample sample = data.sample(i);
      if (sample.tokens.size() != sample.labels.size() || sample.valid < 1) std::abort();
      if (sample.tokens.size() > std::size_t{seq}) std::abort();
      for (std::size_t t = 0; t < sample.tokens.size(); ++t) {
        const auto label = sample.labels[t];
        if (sample.tokens[t] < 0 || sample.tokens[t] >= tokenizer->vocab_size()) std::abort();
        if (label == train::ignored_label) continue;
        if (label < 0 || label >= tokenizer->vocab_size()) std::abort();
        if (t + 1 < sample.tokens.size() && label != sample.tokens[t + 1]) std::abort();
      }
    }
  } catch (const atoll::Error&) {
  }
  return 0;
}
