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

// Ids of bos, prompt, output and eos, and the index of the first target.
struct Encoded {
  std::vector<std::int32_t> ids;
  std::size_t first_target = 1;
};

Encoded encode(const AlpacaRecord& record, const DataSpec& spec, const Tokenizer& tokenizer) {
  const std::size_t most = (static_cast<std::size_t>(spec.seq) + 1) * longest_piece;
  const std::string prompt = alpaca_prompt(record);
  const std::string whole = prompt + record.output;
  const auto used = std::string_view(whole).substr(0, most);
  const auto prompt_ids = tokenizer.encode(prompt.substr(0, most));
  const auto whole_ids = tokenizer.encode(used);
  Encoded row{{tokenizer.bos()}};
  row.ids.insert(row.ids.end(), whole_ids.begin(), whole_ids.end());
  if (used.size() == whole.size()) row.ids.push_back(tokenizer.eos());
  if (spec.train_on == TrainOn::all) return row;
  const auto common =
      std::mismatch(prompt_ids.begin(), prompt_ids.end(), whole_ids.begin(), whole_ids.end());
  row.first_target += static_cast<std::size_t>(common.first - prompt_ids.begin());
  return row;
}

}  // namespace

std::string alpaca_prompt(const AlpacaRecord& record) {
  if (record.input.empty()) {
    return fmt::format("### Instruction:\n{}\n\n### Response:\n", record.instruction);
  }
  return fmt::format("### Instruction:\n{}\n\n### Input:\n{}\n\n### Response:\n",
                     record.instruction, record.input);
}

Dataset alpaca_rows(std::string name, const DataSpec& spec, const Tokenizer& tokenizer,
                    std::int64_t count, const std::function<AlpacaRecord(std::int64_t)>& record) {
  Dataset dataset(std::move(name));
  std::int64_t cut = 0, dropped = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (spec.samples > 0 && dataset.size() == spec.samples) break;
    auto [ids, first_target] = encode(record(i), spec, tokenizer);
    const bool is_long = ids.size() > static_cast<std::size_t>(spec.seq) + 1;
    if (is_long) ids.resize(static_cast<std::size_t>(spec.seq) + 1);
    if (first_target >= ids.size()) {
      ++dropped;
      continue;
    }
    if (is_long) ++cut;
    std::vector<std::int32_t> labels(ids.begin() + 1, ids.end());
    std::fill_n(labels.begin(), first_target - 1, ignored_label);
    dataset.add(std::span(ids).first(labels.size()), labels);
  }
  SetStatistics statistics = measure(*dataset.rows(), dataset.name());
  statistics.documents += dropped;
  statistics.cut = cut;
  statistics.dropped = dropped;
  dataset.statistics.push_back(std::move(statistics));
  if (dropped > 0) {
    dataset.warnings.push_back(
        fmt::format("{}: {} samples dropped, since their output begins after {} tokens",
                    dataset.name(), dropped, spec.seq));
  }
  if (cut > 0) {
    dataset.warnings.push_back(
        fmt::format("{}: {} samples cut to {} tokens", dataset.name(), cut, spec.seq));
  }
  return dataset;
}

Dataset load_alpaca(std::string_view text, const std::string& file, const DataSpec& spec,
                    const Tokenizer& tokenizer) {
  const nlohmann::json list = parse_json(text, file);
  if (!list.is_array()) fail(ErrorCode::bad_data, "{}: not a list of records", file);
  const auto read = [&](std::int64_t i) -> AlpacaRecord {
    const std::string name = fmt::format("record {}", i + 1);
    const nlohmann::json& json = list[static_cast<std::size_t>(i)];
    if (!json.is_object()) fail(ErrorCode::bad_data, "{}: {}: not a record", file, name);
    const JsonReader record(json, fmt::format("{}: {}", file, name));
    return {record.text("instruction"), record.text_or("input", ""), record.text("output")};
  };
  return alpaca_rows(std::filesystem::path(file).filename().string(), spec, tokenizer,
                     static_cast<std::int64_t>(list.size()), read);
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
