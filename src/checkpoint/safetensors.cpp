#include "checkpoint/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/bounded_json.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

using Tag = std::pair<std::string_view, DType>;
constexpr std::array dtype_names = {Tag{"F32", DType::f32}, Tag{"BF16", DType::bf16},
                                    Tag{"F16", DType::f16}, Tag{"F64", DType::f64},
                                    Tag{"I32", DType::i32}, Tag{"I64", DType::i64},
                                    Tag{"U8", DType::u8},   Tag{"I16", DType::i16},
                                    Tag{"I8", DType::i8},   Tag{"BOOL", DType::boolean}};

std::string_view tag_of(DType dtype) {
  for (const auto& [tag, known] : dtype_names) {
    if (known == dtype) return tag;
  }
  return "";
}

std::optional<DType> dtype_of_tag(std::string_view name) noexcept {
  for (const auto& [tag, dtype] : dtype_names) {
    if (tag == name) return dtype;
  }
  return std::nullopt;
}

std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span(text));
}

constexpr std::uint64_t max_header_bytes = std::uint64_t{1} << 30;
constexpr std::size_t max_dimensions = 32;
// A header is an object of objects with lists. The limit allows 2.8 million 1D tensors.
constexpr JsonLimits header_limits{
    .depth = 3, .values = 20'000'000, .first_byte = safetensors_length_bytes};

// Reports an error at a byte of the file. Positions are looked up only when an error is reported.
struct Complaints {
  const fs::path& path;
  std::string_view text;  // text of the JSON header

  template <class... Args>
  [[noreturn]] void at(std::uint64_t offset, fmt::format_string<Args...> what,
                       Args&&... args) const {
    throw bad(path, "byte {}: {}", offset, fmt::format(what, std::forward<Args>(args)...));
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
  const std::optional<DType> dtype = dtype_of_tag(tag);
  if (dtype) return *dtype;
  throw file_error(
      ErrorCode::unsupported, complaints.path,
      "byte {}: tensor {}: dtype {} is not supported; save the tensors as F32, BF16 or "
      "F16, quantized ones dequantized",
      complaints.offset_of(name), name, tag);
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

// Returns what a file that is not safetensors seems to be.
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

SafetensorsFile SafetensorsFile::open(const fs::path& path, FileReads reads) {
  const auto content = std::make_shared<Content>(path);
  const Mapping& mapping = content->mapping;
  if (reads == FileReads::parts) {
    constexpr std::size_t usual_header = std::size_t{1} << 20;
    mapping.expect_parts();
    mapping.fetch(mapping.bytes().first(std::min(usual_header, mapping.bytes().size())));
  }
  content->header = parse_safetensors(mapping.bytes(), path);
  return SafetensorsFile(content);
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  throw file_error(ErrorCode::not_found, path(), "no tensor \"{}\"", name);
}

SafetensorsWriter::SafetensorsWriter(const fs::path& file,
                                     std::span<const SafetensorsDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     StoredDigests digests)
    : path_(file),
      tensors_(tensors.begin(), tensors.end()),
      metadata_(metadata),
      stored_digests_(digests),
      file_(file) {
  std::uint64_t end = 0;
  for (const auto& tensor : tensors_) {
    std::uint64_t bytes = size_of(tensor.dtype);
    for (const std::uint64_t extent : tensor.shape) bytes *= extent;
    ends_.push_back(end += bytes);
    // Reserves the space, because the digests are known only after the data.
    if (stored_digests_ == StoredDigests::blocks)
      metadata_[digests_key(tensor.name)] = std::string(BlockDigests::text_bytes(bytes), '0');
  }
  file_.append(bytes_of(header()));
}

std::string SafetensorsWriter::header() const {
  Json json = Json::object();
  if (!metadata_.empty()) json[std::string(safetensors_metadata_key)] = metadata_;
  std::uint64_t begin = 0;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    json[tensors_[t].name] = {{"dtype", tag_of(tensors_[t].dtype)},
                              {"shape", tensors_[t].shape},
                              {"data_offsets", {begin, ends_[t]}}};
    begin = ends_[t];
  }
  const std::string text = json.dump();
  const std::uint64_t length = (text.size() + 7) / 8 * 8;  // spaces align the data to 8 bytes
  std::string bytes;
  for (std::uint64_t i = 0; i < safetensors_length_bytes; ++i)
    bytes += static_cast<char>(length >> (8 * i) & 0xff);
  bytes += text;
  bytes.resize(safetensors_length_bytes + length, ' ');
  return bytes;
}

void SafetensorsWriter::write(std::span<const std::byte> data) {
  file_.append(data);
  if (stored_digests_ == StoredDigests::blocks) add_to_digests(data);
  written_ += data.size();
}

void SafetensorsWriter::add_to_digests(std::span<const std::byte> data) {
  std::uint64_t at = written_;
  while (tensor_ < ends_.size()) {
    const std::uint64_t n = std::min<std::uint64_t>(data.size(), ends_[tensor_] - at);
    digests_.add(data.first(n));
    data = data.subspan(n);
    at += n;
    if (at < ends_[tensor_]) return;
    metadata_[digests_key(tensors_[tensor_].name)] = digests_.take();
    ++tensor_;
  }
}

void SafetensorsWriter::close() {
  const std::uint64_t expected = ends_.empty() ? 0 : ends_.back();
  require(written_ == expected, ErrorCode::io,
          "{}: {} bytes were declared, but {} bytes were written", path_.string(), expected,
          written_);
  if (stored_digests_ == StoredDigests::blocks) {
    add_to_digests({});  // an empty tensor at the end gets its digest here
    file_.rewrite(0, bytes_of(header()));
  }
  file_.close();
}

}  // namespace atoll_v1::atoll::fsdp
