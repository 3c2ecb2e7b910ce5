#include "checkpoint/index.hpp"

#include <algorithm>
#include <optional>

#include "checkpoint/bounded_json.hpp"
#include "checkpoint/digests.hpp"
#include "checkpoint/files.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uintmax_t max_index_bytes = 1 << 30;
constexpr std::uint64_t max_shards = 1'000'000;
// Maximum number of steps in a checkpoint: a double represents every integer up to 2^53 exactly.
constexpr std::uint64_t max_steps = std::uint64_t{1} << 53;
constexpr std::size_t save_digits = 32;  // length of the id of a save

// The start of the line with the digest. json::dump(1) indents entries of the index by one space,
// deeper entries by more, and writes no line break inside a text, so only one line begins so.
constexpr std::string_view digest_line = "\n \"digest\": \"";

// Returns the position of the digest's digits in an index, or nothing.
std::optional<std::size_t> find_digest(std::string_view text) {
  const std::size_t line = text.find(digest_line);
  if (line == std::string_view::npos) return std::nullopt;
  const std::size_t begin = line + digest_line.size();
  return text.size() - begin >= digest_digits ? std::optional(begin) : std::nullopt;
}

// The digest of an index is that of the text with zeros in place of the digits of the digest.
std::string digest_of_index(std::string text, std::size_t digits) {
  text.replace(digits, digest_digits, digest_digits, '0');
  return digest_text(digest_of(std::string_view(text)));
}

std::uint64_t number_at(const json& object, const char* key, const fs::path& file) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned())
    throw bad(file, "\"{}\" is not a non-negative number", key);
  return found->get<std::uint64_t>();
}

const std::string& text_at(const json& object, const char* key, const fs::path& file) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) throw bad(file, "\"{}\" is not a text", key);
  return found->get_ref<const std::string&>();
}

const json& list_at(const json& object, const char* key, const fs::path& file) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) throw bad(file, "\"{}\" is not a list", key);
  for (const json& one : *found) {
    if (!one.is_object()) throw bad(file, "\"{}\" is not a list of objects", key);
  }
  return *found;
}

bool is_hexadecimal(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

void check_unit(const json& unit, const fs::path& file) {
  text_at(unit, "name", file);
  const json& buckets = list_at(unit, "buckets", file);
  for (const json& bucket : buckets) {
    text_at(bucket, "name", file);
    number_at(bucket, "elements", file);
  }
  for (const json& param : list_at(unit, "params", file)) {
    text_at(param, "name", file);
    number_at(param, "offset", file);
    if (number_at(param, "bucket", file) >= buckets.size())
      throw bad(file, "parameter {}: the unit has only {} buckets",
                param.at("name").get_ref<const std::string&>(), buckets.size());
    const auto shape = param.find("shape");
    const auto is_extent = [](const json& extent) { return extent.is_number_integer(); };
    if (shape == param.end() || !shape->is_array() || !std::ranges::all_of(*shape, is_extent))
      throw bad(file, "\"shape\" is not a list of integers");
  }
}

void check_files(CheckpointIndex& index, const fs::path& file) {
  index.save = text_at(index.content, "save", file);
  if (!is_hexadecimal(index.save, save_digits))
    throw bad(file, "\"save\" is not an id of {} hexadecimal digits", save_digits);
  const json& files = list_at(index.content, "files", file);
  if (files.size() != index.shards)
    throw bad(file, "\"files\" has {} entries for {} shards", files.size(), index.shards);
  for (const json& one : files) {
    index.files.push_back({number_at(one, "bytes", file), text_at(one, "header", file)});
    if (!is_hexadecimal(index.files.back().header, digest_digits))
      throw bad(file, "\"header\" is not a digest");
  }
}

// Throws unless the version is known. Returns whether the version has digests.
bool check_version(const json& content, const fs::path& file) {
  const auto is = [&](const char* key, const json& value) {
    const auto found = content.find(key);
    return found != content.end() && *found == value;
  };
  const bool is_ours = content.is_object() && is("format", checkpoint_format);
  if (is_ours && is("version", checkpoint_version)) return true;
  // An index that contains a digest is not of version 2, but damaged.
  if (is_ours && is("version", 2) && !content.contains("digest")) return false;
  throw file_error(ErrorCode::mismatch, file, "not a checkpoint of version 2 or {}",
                   checkpoint_version);
}

}  // namespace

std::string index_text(json content, const std::string& save, const std::vector<ShardFile>& files) {
  content["version"] = checkpoint_version;
  content["save"] = save;
  content["digest"] = std::string(digest_digits, '0');
  content["files"] = json::array();
  for (const ShardFile& file : files)
    content["files"].push_back({{"bytes", file.bytes}, {"header", file.header}});
  std::string text = content.dump(1) + "\n";
  const std::size_t digits = *find_digest(text);
  return text.replace(digits, digest_digits, digest_of_index(text, digits));
}

CheckpointIndex parse_index(std::string_view text, const fs::path& file) {
  CheckpointIndex index;
  index.content = parse_bounded_json(text, file);
  const bool has_digests = check_version(index.content, file);
  if (has_digests) {
    const std::optional<std::size_t> digits = find_digest(text);
    if (!digits ||
        digest_of_index(std::string(text), *digits) != text.substr(*digits, digest_digits))
      throw bad(file, "the file is damaged: it does not have the digest that was saved with it");
  }
  index.shards = number_at(index.content, "shards", file);
  if (index.shards == 0 || index.shards > max_shards)
    throw bad(file, "a checkpoint cannot have {} shards", index.shards);
  index.steps = number_at(index.content, "steps", file);
  if (index.steps > max_steps) throw bad(file, "a checkpoint cannot have {} steps", index.steps);
  for (const json& unit : list_at(index.content, "units", file)) check_unit(unit, file);
  if (has_digests) check_files(index, file);
  return index;
}

CheckpointIndex read_index(const fs::path& file) {
  std::error_code missing;
  require_io(fs::exists(file, missing), file.parent_path(),
             "not a checkpoint: it has no index.json");
  std::uint64_t size = 0;
  { open_regular(file, size); }
  if (size > max_index_bytes)
    throw bad(file, "the file has {} bytes, more than the index of a checkpoint may have ({})",
              size, max_index_bytes);
  const Mapping mapping(file);
  return parse_index(
      {reinterpret_cast<const char*>(mapping.bytes().data()), mapping.bytes().size()}, file);
}

}  // namespace atoll_v1::atoll::fsdp
