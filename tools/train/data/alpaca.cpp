// Reads Alpaca records from JSON, and turns them into rows. Prompt and output are tokenized
// together, since a tokenizer may treat the start of a text differently. The output begins where
// the joint ids first differ from those of the prompt alone.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/loaders.hpp"
#include "fail.hpp"
#include "json_reader.hpp"

namespace train {
namespace {

// Generous bound on the bytes of one token. Text far beyond seq + 1 tokens is not encoded: with a
// superlinear tokenizer, a single huge record could take minutes.
constexpr std::size_t longest_piece = 128;

}  // namespace

std::string alpaca_prompt(const AlpacaRecord& record) {
  if (record.input.empty()) {
    return fmt::format("### Instruction:\n{}\n\n### Response:\n", record.instruction);
  }
  return fmt::format("### Instruction:\n{}\n\n### Input:\n{}\n\n### Response:\n",
                     record.instruction, record.input);
}

bool AlpacaRows::add(const AlpacaRecord& record) {
  const auto limit = static_cast<std::size_t>(spec_.seq) + 1;
  const std::string prompt = alpaca_prompt(record);
  const std::string whole = prompt + record.output;
  const auto used = std::string_view(whole).substr(0, limit * longest_piece);

  std::vector<std::int32_t> ids{tokenizer_.bos()};
  const auto prompt_ids = tokenizer_.encode(prompt.substr(0, limit * longest_piece));
  const auto whole_ids = tokenizer_.encode(used);
  const auto common =
      std::mismatch(prompt_ids.begin(), prompt_ids.end(), whole_ids.begin(), whole_ids.end());
  const std::size_t first_output = 1 + static_cast<std::size_t>(common.first - prompt_ids.begin());
  const std::size_t first_target = spec_.train_on == TrainOn::all ? 1 : first_output;
  ids.insert(ids.end(), whole_ids.begin(), whole_ids.end());
  if (used.size() == whole.size()) ids.push_back(tokenizer_.eos());

  if (ids.size() > limit) {
    ids.resize(limit);
    ++cut_;
  }
  if (first_target >= ids.size()) {
    ++dropped_;
    return true;
  }
  std::vector<std::int32_t> labels(ids.begin() + 1, ids.end());
  std::fill_n(labels.begin(), first_target - 1, ignored_label);
  dataset_.add(std::span(ids).first(labels.size()), labels);
  return spec_.samples == 0 || dataset_.size() < spec_.samples;
}

void AlpacaRows::finish() {
  SetStatistics statistics = measure(*dataset_.rows(), dataset_.name());
  statistics.documents += dropped_;
  statistics.cut = cut_ - dropped_;
  statistics.dropped = dropped_;
  dataset_.statistics.push_back(std::move(statistics));
  if (dropped_ > 0) {
    dataset_.warnings.push_back(
        fmt::format("{}: {} samples dropped, since their output begins after {} tokens",
                    dataset_.name(), dropped_, spec_.seq));
  }
  if (cut_ > dropped_) {
    dataset_.warnings.push_back(fmt::format("{}: {} samples cut to {} tokens", dataset_.name(),
                                            cut_ - dropped_, spec_.seq));
  }
}

Dataset load_alpaca(std::string_view text, const std::string& file, const DataSpec& spec,
                    const Tokenizer& tokenizer) {
  const nlohmann::json list = parse_json(text, file);
  if (!list.is_array()) fail(ErrorCode::bad_data, "{}: not a list of records", file);
  Dataset dataset(std::filesystem::path(file).filename().string());
  AlpacaRows rows(spec, tokenizer, dataset);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string name = fmt::format("record {}", i + 1);
    if (!list[i].is_object()) fail(ErrorCode::bad_data, "{}: {}: not a record", file, name);
    const JsonReader record(list[i], fmt::format("{}: {}", file, name));
    if (!rows.add({record.text("instruction"), record.text_or("input", ""), record.text("output")}))
      break;
  }
  rows.finish();
  return dataset;
}

bool is_small_alpaca(const std::filesystem::path& file) {
  std::error_code missing;
  const std::uintmax_t size = std::filesystem::file_size(file, missing);
  if (missing) return true;
  if (size > largest_alpaca) return false;
  std::string start(std::size_t{64} << 10U, '\0');
  std::ifstream(file, std::ios::binary)
      .read(start.data(), static_cast<std::streamsize>(start.size()));
  return start.find('[') < start.find('{') && start.find("\"instruction\"") < start.find('}');
}

}  // namespace train
