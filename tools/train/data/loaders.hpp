// One function per kind of data, one file each; open_dataset chooses among them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "data/dataset.hpp"

namespace train {

// The bytes of a file and the name that errors give it.
struct Source {
  std::string_view text;
  std::string_view file;
};

// alpaca_json.cpp

// One record of alpaca data. `instruction` and `output` must be there, `input` may be absent, null
// or empty; other keys are skipped whatever they hold.
struct AlpacaRecord {
  std::string instruction;
  std::string input;
  std::string output;
};

// Called in file order; false stops the reading, and what follows in the file is not looked at.
using RecordSink = std::function<bool(const AlpacaRecord&)>;

// A JSON list of records. Throws Error(bad_data) with file and byte offset.
void read_alpaca_json(const Source& source, const RecordSink& sink);

// One record per line; blank lines are skipped. Throws Error(bad_data) with file, line and byte.
void read_alpaca_jsonl(const Source& source, const RecordSink& sink);

// alpaca.cpp

// Turns records into rows: bos, prompt, output, eos, cut to seq + 1 tokens (the last one is only a
// target). Labels begin at the output. A record whose output was cut off entirely is dropped and
// counted.
class AlpacaRows {
 public:
  AlpacaRows(const DataSpec& spec, const Tokenizer& tokenizer, Dataset& dataset) noexcept
      : spec_(spec), tokenizer_(tokenizer), dataset_(dataset) {}

  // False when `spec.samples` rows are there and no more are wanted.
  bool add(const AlpacaRecord& record);

  // Writes the warnings. Call once, after the last record.
  void finish();

 private:
  const DataSpec& spec_;
  const Tokenizer& tokenizer_;
  Dataset& dataset_;
  std::int64_t dropped_ = 0;
  std::int64_t cut_ = 0;
};

// What stands before the output: the well known headings, without a preface.
std::string alpaca_prompt(const AlpacaRecord& record);

Dataset load_alpaca_json(const Source& source, const DataSpec& spec, const Tokenizer& tokenizer);
Dataset load_alpaca_jsonl(const Source& source, const DataSpec& spec, const Tokenizer& tokenizer);

// text.cpp: documents separated by blank lines, each as bos, text, eos, joined to one stream that
// is cut into rows of seq predictions; the last row is shorter. A row may hold several documents,
// and attention crosses their borders. Throws Error(bad_data) with the offset of a byte that is not
// UTF-8.
Dataset load_text(const Source& source, const DataSpec& spec, const Tokenizer& tokenizer);

// synthetic.cpp

// Uniform random tokens over the model's vocabulary (the tokenizer's when that is not known), every
// position valid: the work of real rows, nothing to learn. 1,024 samples unless told otherwise.
Dataset make_random(const DataSpec& spec, const Tokenizer& tokenizer);

inline constexpr std::int32_t copy_vocabulary = 64;

// Rows of 2 h tokens, h = seq / 2: token 0, then h - 1 random ones of 1..63, and the same h again.
// Only what the first half determines carries loss: position t in [h, 2 h - 2] predicts token t
// + 1. Position h - 1, which predicts the separator 0 at h, is ignored, for no content announces
// it. So h - 1 labels are valid in each row. Needs seq >= 4.
Dataset make_copy(const DataSpec& spec);

// demo.cpp: instruction data from templates (sums, reversed words, plurals, colours, ...), 800
// records unless told otherwise, a function of the seed.
Dataset make_demo(const DataSpec& spec, const Tokenizer& tokenizer);

AlpacaRecord demo_record(std::uint64_t seed, std::int64_t index);

}  // namespace train
