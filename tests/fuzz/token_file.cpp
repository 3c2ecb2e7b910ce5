// Fuzzes the reader of token files. The fingerprint of each input is made to fit, since otherwise
// no input would get further than the comparison.
#include "data/token_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <vector>

#include "atoll/error.hpp"
#include "data/loaders.hpp"
#include "data/sources.hpp"
#include "unit/train/data_token_bytes.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<char> bytes(data, data + size);
  if (size >= train::token_header_bytes) train_test::set_fingerprint(bytes.data(), size);
  static const auto tokenizer = train::tokenizer_for("ids:65536", "", "");
  for (const auto train_on : {train::TrainOn::output, train::TrainOn::all}) {
    const train::DataSpec spec{.seq = 5, .train_on = train_on};
    try {
      auto file = train::TokenFile::parse(std::as_bytes(std::span(bytes)), "input");
      for (std::int32_t id = 0; id < std::min(file.vocabulary(), 1000); ++id) (void)file.piece(id);
      (void)file.fingerprint();
      const auto rows = train::load_token_file(std::move(file), spec, *tokenizer);
      for (std::int64_t i = 0; i < rows.size(); ++i) {
        const train::Sample sample = rows.sample(i);
        const auto ignored =
            std::count(sample.labels.begin(), sample.labels.end(), train::ignored_label);
        if (sample.tokens.size() > 5 || sample.tokens.size() != sample.labels.size() ||
            sample.valid + ignored != static_cast<std::int64_t>(sample.labels.size())) {
          std::abort();
        }
      }
    } catch (const atoll::Error&) {
    }
  }
  return 0;
}
