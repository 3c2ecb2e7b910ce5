#include "loop/weight_files.hpp"

#include <dirent.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "fail.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* index_name = "model.safetensors.index.json";
constexpr std::uint64_t most_index_bytes = std::uint64_t{64} << 20;
// The most that readers of safetensors accept.
constexpr std::uint64_t most_header_bytes = 100'000'000;

// The file of each tensor, as the index says.
using WeightMap = std::map<std::string, std::string>;

std::string read_index(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(file, error);
  if (!in || error) fail(ErrorCode::io, "{}: cannot be read", file.string());
  if (bytes > most_index_bytes) {
    fail(ErrorCode::bad_data, "{}: larger than {} bytes, so not an index of weights", file.string(),
         most_index_bytes);
  }
  std::string text(bytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

WeightMap parse_index(const fs::path& file) {
  const std::string text = read_index(file);
  json index;
  try {
    index = json::parse(text);
  } catch (const json::parse_error& error) {
    fail(ErrorCode::bad_data, "{}: not JSON at byte {}", file.string(), error.byte);
  } catch (const json::exception&) {
    fail(ErrorCode::bad_data, "{}: a number is too large", file.string());
  }
  const bool has_map = index.is_object() && index.contains("weight_map") &&
                       index["weight_map"].is_object() && !index["weight_map"].empty();
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

// Returns the names of the tensors in a safetensors file. Returns none for a damaged file, which
// the import refuses with the place of the damage.
std::set<std::string> tensors_of(const fs::path& file) {
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
  const json header = json::parse(text, nullptr, false);
  std::set<std::string> names;
  if (!header.is_object()) return names;
  for (const auto& [name, value] : header.items()) names.insert(name);
  return names;
}

// Throws an error for the first tensor that is not in its file, or in another file as well.
void check_places(const fs::path& index, const WeightMap& map,
                  const std::map<std::string, std::set<std::string>>& tensors) {
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
  std::map<std::string, std::set<std::string>> tensors;
  std::vector<fs::path> files;
  for (const auto& [tensor, name] : map) {
    if (tensors.contains(name)) continue;
    const fs::path file = folder / name;
    if (!fs::exists(file)) {
      fail(ErrorCode::not_found, "{}: the file does not exist, but {} names it: copy it there",
           file.string(), index_name);
    }
    tensors[name] = tensors_of(file);
    files.push_back(file);
  }
  check_places(index, map, tensors);
  std::ranges::sort(files);
  return files;
}

// Does not use std::filesystem::directory_iterator, which ends the process if memory runs out.
std::vector<fs::path> every_file(const fs::path& place) {
  struct Close {
    void operator()(DIR* open) const noexcept { ::closedir(open); }
  };
  const std::unique_ptr<DIR, Close> folder(::opendir(place.c_str()));
  if (!folder) fail(ErrorCode::io, "{}: {}", place.string(), std::strerror(errno));
  std::vector<fs::path> files;
  while (const dirent* entry = ::readdir(folder.get())) {
    fs::path file = place / entry->d_name;
    if (file.extension() == ".safetensors") files.push_back(std::move(file));
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::vector<fs::path> weight_files(const fs::path& place) {
  if (!fs::is_directory(place)) return {place};
  if (fs::exists(place / index_name)) return indexed_files(place, place / index_name);
  if (fs::exists(place / "model.safetensors")) return {place / "model.safetensors"};
  auto files = every_file(place);
  if (files.empty()) {
    fail(ErrorCode::not_found, "{}: no .safetensors file in it", place.string());
  }
  return files;
}

}  // namespace train
