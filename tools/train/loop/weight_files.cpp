#include "loop/weight_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>

#include "fail.hpp"
#include "json_reader.hpp"
#include "loop/adapters.hpp"
#include "report/files.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t most_index_bytes = std::uint64_t{64} << 20;
// The largest header that readers of safetensors accept.
constexpr std::uint64_t most_header_bytes = 100'000'000;

// The file of each tensor, as the index says.
using WeightMap = std::map<std::string, std::string>;

WeightMap parse_index(const fs::path& file) {
  const json index = read_object(file, most_index_bytes);
  const bool has_map = index.contains("weight_map") && index["weight_map"].is_object() &&
                       !index["weight_map"].empty();
  if (!has_map) fail(ErrorCode::bad_data, "{}: \"weight_map\" is missing or empty", file.string());
  WeightMap map;
  for (const auto& [tensor, value] : index["weight_map"].items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    // A name with a folder could lead out of the model's folder.
    if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos ||
        name.find('\0') != name.npos) {
      fail(ErrorCode::bad_data, "{}: the file of {} is not the name of a file in this folder",
           file.string(), json(tensor).dump(-1, ' ', true));
    }
    map[tensor] = name;
  }
  return map;
}

// Returns the header of a safetensors file and the byte offset of its data. If the file is damaged,
// the header is no object; the import then refuses the file and names the place of the damage.
std::pair<json, std::uint64_t> header_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::array<unsigned char, 8> length{};
  in.read(reinterpret_cast<char*>(length.data()), length.size());
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < length.size(); ++i) bytes |= std::uint64_t{length[i]} << (8 * i);
  std::error_code error;
  const std::uint64_t all = fs::file_size(file, error);
  if (!in || error || bytes > most_header_bytes || bytes + length.size() > all) return {};
  std::string text(bytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  return {json::parse(text, nullptr, false), bytes + length.size()};
}

// Returns the tensors of a safetensors file by name. Leaves out tensors whose header entry is not
// valid, and returns none if the whole header is not valid. In both cases the later import fails
// with an error that names the faulty part of the file.
std::map<std::string, StoredTensor> tensors_of(const fs::path& file) {
  std::map<std::string, StoredTensor> tensors;
  const auto [header, data] = header_of(file);
  if (!header.is_object()) return tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    try {
      const auto offsets = entry.at("data_offsets").get<std::array<std::uint64_t, 2>>();
      tensors[name] = {file, entry.at("shape").get<std::vector<std::int64_t>>(),
                       entry.at("dtype").get<std::string>(), data + offsets[0], data + offsets[1]};
    } catch (const json::exception&) {
      continue;
    }
  }
  return tensors;
}

bool same_bytes(const StoredTensor& a, const StoredTensor& b) {
  constexpr std::uint64_t block = 1 << 20;
  std::ifstream left(a.file, std::ios::binary), right(b.file, std::ios::binary);
  left.seekg(static_cast<std::streamoff>(a.first));
  right.seekg(static_cast<std::streamoff>(b.first));
  std::string one(block, '\0'), other(block, '\0');
  for (std::uint64_t rest = a.last - a.first; rest > 0;) {
    const auto bytes = static_cast<std::streamsize>(std::min(rest, block));
    left.read(one.data(), bytes);
    right.read(other.data(), bytes);
    if (!left || !right) return true;  // a file is too short, so the import refuses it
    if (one != other) return false;
    rest -= static_cast<std::uint64_t>(bytes);
  }
  return true;
}

// Throws an error for the first tensor that is missing in the file that the index names, or that
// another file has as well.
void check_places(const fs::path& index, const WeightMap& map,
                  const std::map<std::string, std::map<std::string, StoredTensor>>& tensors) {
  for (const auto& [tensor, file] : map) {
    const auto& own = tensors.at(file);
    const auto other = std::ranges::find_if(tensors, [&](const auto& entry) {
      return entry.first != file && entry.second.contains(tensor);
    });
    if (other != tensors.end()) {
      fail(ErrorCode::mismatch,
           "{}: places {} in {}, but {} has it{}: the index belongs to other files; save the model "
           "again",
           index.string(), tensor, file, other->first, own.contains(tensor) ? " too" : "");
    }
    if (!own.empty() && !own.contains(tensor)) {
      fail(ErrorCode::mismatch,
           "{}: places {} in {}, which does not have it: the index belongs to other files; save "
           "the model again",
           index.string(), tensor, file);
    }
  }
}

std::vector<fs::path> indexed_files(const fs::path& folder, const fs::path& index) {
  const WeightMap map = parse_index(index);
  std::map<std::string, std::map<std::string, StoredTensor>> tensors;
  std::vector<fs::path> files;
  for (const auto& [tensor, name] : map) {
    if (tensors.contains(name)) continue;
    const fs::path file = folder / name;
    if (!fs::exists(file)) {
      fail(ErrorCode::not_found, "{}: the file does not exist, but {} names it: copy it there",
           file.string(), weight_index_name);
    }
    tensors[name] = tensors_of(file);
    files.push_back(file);
  }
  check_places(index, map, tensors);
  std::ranges::sort(files);
  return files;
}

std::vector<fs::path> every_file(const fs::path& place) {
  std::vector<fs::path> files;
  for (const std::string& name : names_in(place)) {
    const fs::path file = place / name;
    if (file.extension() != ".safetensors" || name == adapter_weights_name) continue;
    files.push_back(file);
  }
  std::ranges::sort(files);
  return files;
}

// Throws an error for the first part that is missing of files named
// NAME-00001-of-00003.safetensors.
void check_parts(const fs::path& place, const std::vector<fs::path>& files) {
  static const std::regex pattern(R"((.*-)(\d{5})-of-(\d{5})\.safetensors)");
  for (const fs::path& file : files) {
    std::smatch found;
    const std::string name = file.filename().string();
    if (!std::regex_match(name, found, pattern)) continue;
    for (int part = 1; part <= std::stoi(found[3]); ++part) {
      const fs::path needed =
          place / fmt::format("{}{:05}-of-{}.safetensors", found[1].str(), part, found[3].str());
      if (!fs::exists(needed)) {
        fail(ErrorCode::not_found,
             "{}: the file does not exist, but {} is another part: copy it there", needed.string(),
             name);
      }
    }
  }
}

// Returns `files`. Throws for a pipe, from which a read would wait for a writer.
std::vector<fs::path> regular(std::vector<fs::path> files) {
  for (const fs::path& file : files) {
    std::error_code ignored;
    const auto status = fs::status(file, ignored);
    require(!fs::exists(status) || fs::is_regular_file(status),
            "{}: not a regular file, but a folder, pipe or device", file.string());
  }
  return files;
}

}  // namespace

std::span<const std::string_view> tokenizer_files() {
  static constexpr std::array<std::string_view, 8> names{"tokenizer.json",
                                                         "tokenizer.model",
                                                         "tokenizer_config.json",
                                                         "special_tokens_map.json",
                                                         "added_tokens.json",
                                                         "vocab.json",
                                                         "merges.txt",
                                                         "chat_template.jinja"};
  return names;
}

bool has_weights(const fs::path& folder) {
  return fs::exists(folder / weight_index_name) || !every_file(folder).empty();
}

std::map<std::string, StoredTensor> stored_tensors(const std::vector<fs::path>& files) {
  std::map<std::string, StoredTensor> stored;
  for (const fs::path& file : files) stored.merge(tensors_of(file));
  return stored;
}

bool head_differs(const std::vector<fs::path>& files) {
  const auto stored = stored_tensors(files);
  const auto head = stored.find("lm_head.weight"), table = stored.find("model.embed_tokens.weight");
  if (head == stored.end() || table == stored.end()) return false;
  const StoredTensor &one = head->second, &other = table->second;
  if (one.last < one.first || other.last < other.first) return false;
  return one.dtype != other.dtype || one.last - one.first != other.last - other.first ||
         !same_bytes(one, other);
}

std::vector<fs::path> weight_files(const fs::path& place) {
  if (!fs::is_directory(place)) return regular({place});
  if (fs::exists(place / weight_index_name)) {
    return regular(indexed_files(place, place / weight_index_name));
  }
  if (fs::exists(place / "model.safetensors")) return regular({place / "model.safetensors"});
  auto files = every_file(place);
  if (files.empty()) {
    fail(ErrorCode::not_found, "{}: no .safetensors file in it", place.string());
  }
  check_parts(place, files);
  return regular(std::move(files));
}

}  // namespace train
