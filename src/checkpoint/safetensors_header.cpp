// Positions of errors are looked up only when an error is reported.
#include "checkpoint/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/bounded_json.hpp"
#include "checkpoint/digests.hpp"
#include "core/errors.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t max_header_bytes = std::uint64_t{1} << 30;
constexpr std::size_t max_dimensions = 32;
// A header is an object of objects with lists. Each tensor has seven values.
constexpr JsonLimits header_limits{
    .depth = 3, .values = 20'000'000, .first_byte = safetensors_length_bytes};

// Reports an error at a byte of the file.
struct Complaints {
  const fs::path& path;
  std::string_view text;  // of the JSON header

  template <class... Args>
  [[noreturn]] void at(std::uint64_t offset, fmt::format_string<Args...> what,
                       Args&&... args) const {
    throw Error(ErrorCode::bad_data,
                terminal_safe(fmt::format("{}: byte {}: {}", path.string(), offset,
                                          fmt::format(what, std::forward<Args>(args)...))));
  }
  template <class... Args>
  [[noreturn]] void in(std::string_view tensor, fmt::format_string<Args...> what,
                       Args&&... args) const {
    at(offset_of(tensor), "tensor {}: {}", tensor, fmt::format(what, std::forward<Args>(args)...));
  }
  // Returns the byte offset of a tensor's name in the file.
  std::uint64_t offset_of(std::string_view tensor) const {
    const std::size_t found = text.find(fmt::format("\"{}\"", tensor));
    return safetensors_length_bytes + (found == std::string_view::npos ? 0 : found);
  }
};

DType dtype_in(const Json& tensor, std::string_view name, const Complaints& complaints) {
  const auto found = tensor.find("dtype");
  if (found == tensor.end() || !found->is_string()) complaints.in(name, "has no dtype");
  const auto& tag = found->get_ref<const std::string&>();
  const std::optional<DType> dtype = safetensors_dtype(tag);
  if (dtype) return *dtype;
  throw Error(
      ErrorCode::unsupported,
      terminal_safe(fmt::format("{}: byte {}: tensor {}: dtype {} is not supported; save the "
                                "tensors as F32, BF16 or F16, quantized ones dequantized",
                                complaints.path.string(), complaints.offset_of(name), name, tag)));
}

// Returns the numbers of a shape, or the offsets of a tensor's data.
std::vector<std::uint64_t> numbers_of(const Json& tensor, const char* key, std::string_view name,
                                      const Complaints& complaints) {
  const auto list = tensor.find(key);
  if (list == tensor.end() || !list->is_array()) complaints.in(name, "has no list \"{}\"", key);
  if (list->size() > max_dimensions)
    complaints.in(name, "\"{}\" has more than {} numbers", key, max_dimensions);
  std::vector<std::uint64_t> numbers;
  for (const Json& number : *list) {
    if (!number.is_number_unsigned()) complaints.in(name, "numbers must be unsigned integers");
    numbers.push_back(number.get<std::uint64_t>());
    if (numbers.back() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      complaints.in(name, "a number exceeds 2^63 - 1");
  }
  return numbers;
}

SafetensorsEntry entry_of(const std::string& name, const Json& tensor,
                          std::span<const std::byte> data, const Complaints& complaints) {
  if (!tensor.is_object()) complaints.in(name, "is not an object");
  SafetensorsEntry entry;
  entry.name = name;
  entry.data.dtype = dtype_in(tensor, name, complaints);
  entry.shape = numbers_of(tensor, "shape", name, complaints);
  entry.data.count = 1;
  for (const std::uint64_t extent : entry.shape) {
    if (__builtin_mul_overflow(entry.data.count, extent, &entry.data.count))
      complaints.in(name, "has more than 2^64 elements");
  }
  const auto offsets = numbers_of(tensor, "data_offsets", name, complaints);
  if (offsets.size() != 2) complaints.in(name, "data_offsets is not a pair");
  const std::uint64_t begin = offsets[0], end = offsets[1];
  if (begin > end || end > data.size()) {
    complaints.in(name, "data_offsets [{}, {}] do not fit in {} bytes of data", begin, end,
                  data.size());
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(entry.data.count, size_of(entry.data.dtype), &bytes) ||
      bytes != end - begin) {
    complaints.in(name, "has {} bytes of data for {} elements of {}", end - begin, entry.data.count,
                  atoll::name(entry.data.dtype));
  }
  entry.data.data = data.data() + begin;
  return entry;
}

void add_metadata(const Json& texts, SafetensorsHeader& header, const Complaints& complaints) {
  if (!texts.is_object()) complaints.in(safetensors_metadata_key, "is not an object");
  for (const auto& [key, text] : texts.items()) {
    if (!text.is_string()) complaints.in(safetensors_metadata_key, "a value is not a string");
    header.metadata.emplace(key, text.get_ref<const std::string&>());
  }
}

// Says what a file that is not safetensors seems to be.
std::string_view what_else(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.starts_with("version https://git-lfs")) {
    return ": it is a pointer of Git LFS: fetch the weights with `git lfs pull`";
  }
  if (text.starts_with("<")) return ": it begins like a web page";
  if (text.starts_with("{")) return ": it begins like JSON";
  return "";
}

// Returns the length of the JSON text, which the first 8 bytes of the file state.
std::uint64_t header_length(std::span<const std::byte> file, const Complaints& complaints) {
  if (file.size() < safetensors_length_bytes)
    complaints.at(file.size(), "the file ends inside the header's length");
  std::uint64_t length = 0;
  for (std::size_t i = safetensors_length_bytes; i-- > 0;)
    length = length << 8 | std::to_integer<std::uint64_t>(file[i]);
  const std::uint64_t most =
      std::min<std::uint64_t>(max_header_bytes, file.size() - safetensors_length_bytes);
  if (length > most)
    complaints.at(0, "the header claims {} bytes, but at most {} are possible{}", length, most,
                  what_else(file));
  return length;
}

void order_entries(std::vector<SafetensorsEntry>& entries) {
  const auto place = [](const SafetensorsEntry& e) { return std::pair(e.data.data, e.data.count); };
  if (!std::ranges::is_sorted(entries, {}, place)) std::ranges::sort(entries, {}, place);
}

// Refuses tensors that share data; the entries are in the order of their data.
void check_overlap(const std::vector<SafetensorsEntry>& entries, const Complaints& complaints) {
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const SafetensorsEntry& before = entries[i - 1];
    const auto* end = static_cast<const std::byte*>(before.data.data) + before.data.bytes();
    if (entries[i].data.data < end)
      complaints.in(entries[i].name, "the data overlaps the data of tensor {}", before.name);
  }
}

// Fills `names`, and refuses a name that appears twice.
void index_names(SafetensorsHeader& header, const Complaints& complaints) {
  const auto& entries = header.entries;
  header.names.reserve(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i)
    header.names.push_back({digest_of(entries[i].name), static_cast<std::uint32_t>(i)});
  // Compares names too, because a hostile file may contain names with equal digests.
  std::ranges::sort(header.names, [&](const auto& a, const auto& b) {
    return a.digest != b.digest ? a.digest < b.digest
                                : entries[a.entry].name < entries[b.entry].name;
  });
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const auto &before = header.names[i - 1], &one = header.names[i];
    const std::string& name = entries[one.entry].name;
    if (before.digest == one.digest && entries[before.entry].name == name)
      complaints.in(name, "appears twice in the header");
  }
}

}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const noexcept {
  const std::uint64_t digest = digest_of(name);
  for (auto found = std::ranges::lower_bound(names, digest, {}, &Name::digest);
       found != names.end() && found->digest == digest; ++found) {
    if (entries[found->entry].name == name) return &entries[found->entry];
  }
  return nullptr;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const fs::path& path) {
  Complaints complaints{path, {}};
  const std::uint64_t length = header_length(file, complaints);
  SafetensorsHeader header;
  header.data_begin = safetensors_length_bytes + length;
  complaints.text = {reinterpret_cast<const char*>(file.data() + safetensors_length_bytes),
                     static_cast<std::size_t>(length)};
  bool has_metadata = false;
  const JsonMember add = [&](const std::string& name, const Json& value) {
    if (name != safetensors_metadata_key) {
      header.entries.push_back(entry_of(name, value, file.subspan(header.data_begin), complaints));
      return;
    }
    if (std::exchange(has_metadata, true)) complaints.in(name, "appears twice in the header");
    add_metadata(value, header, complaints);
  };
  const Json rest = parse_bounded_json(complaints.text, path, header_limits, add);
  if (!rest.is_object()) complaints.at(safetensors_length_bytes, "the header is not a JSON object");
  order_entries(header.entries);
  index_names(header, complaints);
  check_overlap(header.entries, complaints);
  return header;
}

}  // namespace atoll_v1::atoll::fsdp
