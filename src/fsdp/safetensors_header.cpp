// The header is parsed with callbacks ("SAX"), which build the entries without an intermediate
// document. Positions of errors are looked up only when an error is reported.
#include "fsdp/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/errors.hpp"
#include "core/terminal_text.hpp"
#include "fsdp/digests.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t max_header_bytes = std::uint64_t{1} << 30;
constexpr std::size_t max_names = 10'000'000;  // of tensors, or of metadata
constexpr std::size_t max_dimensions = 32;
constexpr int max_depth = 3;  // maximum nesting of a header: header object, tensor object, list

// Reports an error at a byte of the file.
struct Complaints {
  const fs::path& path;
  std::string_view text;  // of the JSON header

  template <class... Args>
  [[noreturn]] void at(std::uint64_t offset, fmt::format_string<Args...> what,
                       Args&&... args) const {
    throw Error(ErrorCode::bad_data,
                terminal_text(fmt::format("{}: byte {}: {}", path.string(), offset,
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

// A tensor as far as the parser has seen it.
struct Draft {
  std::string name;
  std::optional<DType> dtype;
  std::optional<std::vector<std::uint64_t>> shape, offsets;
};

// Receives the parser's events, which nlohmann::json::sax_parse() names.
class HeaderEvents {
 public:
  HeaderEvents(SafetensorsHeader& header, std::span<const std::byte> data,
               const Complaints& complaints)
      : header_(header), data_(data), complaints_(complaints) {}

  bool null() { return scalar(); }
  bool boolean(bool) { return scalar(); }
  bool number_integer(Json::number_integer_t) { return number({}); }
  bool number_float(Json::number_float_t, const std::string&) { return number({}); }
  bool number_unsigned(Json::number_unsigned_t value) { return number(value); }
  bool binary(Json::binary_t&) { return false; }
  bool string(std::string& value);
  bool start_object(std::size_t);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool key(std::string& value);
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) {
    complaints_.at(safetensors_length_bytes + position, "the header is not JSON");
  }

 private:
  enum class Place {
    outside,   // the JSON object of the header has not begun
    header,    // the names of tensors
    metadata,  // the texts of __metadata__
    tensor,    // the properties of a tensor
    list,      // a shape, or the offsets of a tensor's data
    ignored    // a property that this version does not know
  };

  bool scalar();
  bool number(std::optional<std::uint64_t> value);
  void nest();
  void finish_tensor();

  SafetensorsHeader& header_;
  std::span<const std::byte> data_;
  const Complaints& complaints_;
  Place place_ = Place::outside;
  int depth_ = 0;
  bool has_metadata_ = false;
  Draft draft_;
  std::string key_;  // the key whose value comes next: of metadata, or of a tensor
  std::vector<std::uint64_t>* list_ = nullptr;
};

void HeaderEvents::nest() {
  if (++depth_ > max_depth)
    complaints_.at(safetensors_length_bytes, "the header is nested too deeply");
}

// Handles a value that is neither a number nor a text, or that is in the wrong place.
bool HeaderEvents::scalar() {
  switch (place_) {
    case Place::outside:
      complaints_.at(safetensors_length_bytes, "the header is not a JSON object");
    case Place::header:
      complaints_.in(draft_.name, "is not an object");
    case Place::metadata:
      complaints_.in(safetensors_metadata_key, "a value is not a string");
    case Place::tensor:
      if (key_ == "dtype") complaints_.in(draft_.name, "has no dtype");
      if (key_ == "shape" || key_ == "data_offsets")
        complaints_.in(draft_.name, "has no list \"{}\"", key_);
      return true;
    case Place::list:
      complaints_.in(draft_.name, "numbers must be unsigned integers");
    case Place::ignored:
      return true;
  }
  return false;
}

bool HeaderEvents::number(std::optional<std::uint64_t> value) {
  if (place_ != Place::list || !value) return scalar();
  if (*value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    complaints_.in(draft_.name, "a number exceeds 2^63 - 1");
  if (list_->size() == max_dimensions)
    complaints_.in(draft_.name, "\"{}\" has more than {} numbers", key_, max_dimensions);
  list_->push_back(*value);
  return true;
}

bool HeaderEvents::string(std::string& value) {
  if (place_ == Place::metadata) {
    if (header_.metadata.size() == max_names)
      complaints_.in(safetensors_metadata_key, "has more than {} texts", max_names);
    if (!header_.metadata.emplace(std::move(key_), std::move(value)).second)
      complaints_.in(safetensors_metadata_key, "a key appears twice");
    return true;
  }
  if (place_ != Place::tensor || key_ != "dtype") return scalar();
  if (draft_.dtype) complaints_.in(draft_.name, "has two properties \"dtype\"");
  draft_.dtype = safetensors_dtype(value);
  if (draft_.dtype) return true;
  throw Error(
      ErrorCode::unsupported,
      terminal_text(fmt::format("{}: byte {}: tensor {}: dtype {} is not supported; save the "
                                "tensors as F32, BF16 or F16, quantized ones dequantized",
                                complaints_.path.string(), complaints_.offset_of(draft_.name),
                                draft_.name, value)));
}

bool HeaderEvents::start_object(std::size_t) {
  nest();
  switch (place_) {
    case Place::outside:
      place_ = Place::header;
      return true;
    case Place::header:
      if (draft_.name != safetensors_metadata_key) {
        place_ = Place::tensor;
        return true;
      }
      if (std::exchange(has_metadata_, true))
        complaints_.in(draft_.name, "appears twice in the header");
      place_ = Place::metadata;
      return true;
    case Place::metadata:
    case Place::list:
      return scalar();
    case Place::tensor:
      scalar();  // refuses it as dtype, shape or offsets
      place_ = Place::ignored;
      return true;
    case Place::ignored:
      return true;
  }
  return false;
}

bool HeaderEvents::end_object() {
  --depth_;
  if (place_ == Place::tensor) finish_tensor();
  place_ = depth_ == 0 ? Place::outside : depth_ == 1 ? Place::header : Place::tensor;
  return true;
}

bool HeaderEvents::start_array(std::size_t) {
  nest();
  const bool is_shape = key_ == "shape";
  if (place_ != Place::tensor || (!is_shape && key_ != "data_offsets")) {
    scalar();
    place_ = Place::ignored;
    return true;
  }
  std::optional<std::vector<std::uint64_t>>& list = is_shape ? draft_.shape : draft_.offsets;
  if (list) complaints_.in(draft_.name, "has two properties \"{}\"", key_);
  list_ = &list.emplace();
  place_ = Place::list;
  return true;
}

bool HeaderEvents::end_array() {
  --depth_;
  place_ = Place::tensor;
  return true;
}

bool HeaderEvents::key(std::string& value) {
  if (place_ == Place::header) {
    if (header_.entries.size() == max_names)
      complaints_.in(value, "the header has more than {} tensors", max_names);
    draft_ = {.name = std::move(value), .dtype = {}, .shape = {}, .offsets = {}};
  } else if (place_ != Place::ignored) {
    key_ = std::move(value);
  }
  return true;
}

void HeaderEvents::finish_tensor() {
  const std::string& name = draft_.name;
  if (!draft_.dtype) complaints_.in(name, "has no dtype");
  if (!draft_.shape) complaints_.in(name, "has no list \"shape\"");
  if (!draft_.offsets) complaints_.in(name, "has no list \"data_offsets\"");
  SafetensorsEntry entry;
  entry.data.dtype = *draft_.dtype;
  entry.data.count = 1;
  for (const std::uint64_t extent : *draft_.shape) {
    if (__builtin_mul_overflow(entry.data.count, extent, &entry.data.count))
      complaints_.in(name, "has more than 2^64 elements");
  }
  if (draft_.offsets->size() != 2) complaints_.in(name, "data_offsets is not a pair");
  const std::uint64_t begin = (*draft_.offsets)[0], end = (*draft_.offsets)[1];
  if (begin > end || end > data_.size()) {
    complaints_.in(name, "data_offsets [{}, {}] do not fit in {} bytes of data", begin, end,
                   data_.size());
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(entry.data.count, size_of(entry.data.dtype), &bytes) ||
      bytes != end - begin) {
    complaints_.in(name, "has {} bytes of data for {} elements of {}", end - begin,
                   entry.data.count, atoll::name(entry.data.dtype));
  }
  entry.data.data = data_.data() + begin;
  entry.shape = std::move(*draft_.shape);
  entry.name = std::move(draft_.name);
  header_.entries.push_back(std::move(entry));
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
  HeaderEvents events(header, file.subspan(header.data_begin), complaints);
  Json::sax_parse(complaints.text.begin(), complaints.text.end(), &events);
  order_entries(header.entries);
  index_names(header, complaints);
  check_overlap(header.entries, complaints);
  return header;
}

}  // namespace atoll_v1::atoll::fsdp
