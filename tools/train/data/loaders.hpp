// Loaders of each kind of data. open_dataset() selects one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "data/dataset.hpp"
#include "data/token_file.hpp"

namespace train {

// One Alpaca record; `input` may be empty.
struct AlpacaRecord {
  std::string instruction;
  std::string input;
  std::string output;
};

// The rows of records 0 to `count` - 1 (alpaca.cpp), at most spec.samples of them: bos, prompt,
// output, eos, cut to seq + 1 tokens, of which the last is only a target. Labels begin at the
// output. A record is dropped and counted if its output does not begin within the row.
Dataset alpaca_rows(std::string name, const DataSpec& spec, const Tokenizer& tokenizer,
                    std::int64_t count, const std::function<AlpacaRecord(std::int64_t)>& record);

// The text before the output: the usual Alpaca headings without their preface.
std::string alpaca_prompt(const AlpacaRecord& record);

// Maximum size in bytes of a file for load_alpaca(), which keeps the whole file in memory. The full
// Alpaca file has 23 MB.
inline constexpr std::uintmax_t largest_alpaca = std::uintmax_t{64} << 20U;

// The rows of a JSON list of records. `instruction` and `output` are required, `input` may be
// absent, null or empty, and other keys are ignored. Throws Error(bad_data) that names the file and
// the byte or the record.
Dataset load_alpaca(std::string_view text, const std::string& file, const DataSpec& spec,
                    const Tokenizer& tokenizer);

// Whether load_alpaca() can read the file, by its size and first record; true if it is missing.
bool is_small_alpaca(const std::filesystem::path& file);

// The rows of a token file (token_samples.cpp): documents cut to seq + 1 tokens, or, if they are
// joined, the stream cut into rows of seq predictions. Documents without a target in their row are
// dropped. The tokens stay in the file. Throws Error(mismatch) if it was made with another
// tokenizer, and Error(invalid_argument) if its vocabulary exceeds the model's.
Dataset load_token_file(TokenFile file, const DataSpec& spec, const Tokenizer& tokenizer);

// Functions of synthetic.cpp.

// Uniform random tokens of the model's vocabulary, or the tokenizer's if that is unknown. Every
// position is valid. For speed measurements; there is nothing to learn. Default: 1,024 samples.
Dataset make_random(const DataSpec& spec, const Tokenizer& tokenizer);

inline constexpr std::int32_t copy_vocabulary = 64;

// Makes rows of 2 h tokens, h = seq / 2: token 0, h - 1 random tokens of 1..63, then the same h
// tokens again. Labels are valid where the first half determines the next token: position t in [h,
// 2 h - 2] predicts token t + 1. The label of position h - 1 is ignored, because nothing predicts
// that the copy begins next. Each row has h - 1 valid labels. Needs seq >= 4.
Dataset make_copy(const DataSpec& spec);

// Generates instruction data from templates (demo.cpp): sums, reversed words, colours and others.
// The seed determines the records. Default: 800 records.
Dataset make_demo(const DataSpec& spec, const Tokenizer& tokenizer);

AlpacaRecord demo_record(std::uint64_t seed, std::int64_t index);

}  // namespace train
