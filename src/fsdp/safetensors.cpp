#include "fsdp/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/errors.hpp"
#include "core/socket.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t max_header_bytes = 100'000'000;  // same limit as Hugging Face's library
constexpr std::size_t max_dimensions = 32;
constexpr int max_depth = 3;  // maximum nesting of a header: header object, tensor object, list
constexpr std::string_view metadata_key = "__metadata__";

using Tag = std::pair<std::string_view, DType>;
constexpr std::array dtype_names = {Tag{"F32", DType::f32}, Tag{"BF16", DType::bf16},
                                    Tag{"F16", DType::f16}, Tag{"F64", DType::f64},
                                    Tag{"I32", DType::i32}, Tag{"I64", DType::i64},
                                    Tag{"U8", DType::u8}};

[[noreturn]] void fail_io(const fs::path& path, std::string_view what) {
  throw make_error(ErrorCode::io, "{}: cannot {}: {}", path.string(), what, std::strerror(errno));
}

template <class... Args>
[[noreturn]] void bad(const fs::path& path, std::uint64_t offset, fmt::format_string<Args...> what,
                      Args&&... args) {
  throw make_error(ErrorCode::bad_data, "{}: byte {}: {}", path.string(), offset,
                   fmt::format(what, std::forward<Args>(args)...));
}

net::Fd open_file(const fs::path& path) {
  net::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail_io(path, "open");
  return file;
}

class Mapping {
 public:
  explicit Mapping(const fs::path& path) {
    const net::Fd file = open_file(path);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) fail_io(path, "examine");
    if (!S_ISREG(status.st_mode)) {
      throw Error(ErrorCode::io, path.string() + ": not a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
    if (size_ == 0) return;
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapped == MAP_FAILED) fail_io(path, "map");
    data_ = mapped;
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const noexcept { return static_cast<const std::byte*>(data_); }
  std::uint64_t size() const noexcept { return size_; }

 private:
  void* data_ = nullptr;
  std::uint64_t size_ = 0;
};

std::string_view tag_of(DType dtype) {
  for (const auto& [tag, known] : dtype_names) {
    if (known == dtype) return tag;
  }
  return "";
}

}  // namespace

struct SafetensorsFile::Impl {
  explicit Impl(const fs::path& path_) : path(path_), mapping(path_) {}

  fs::path path;
  Mapping mapping;
  std::string_view text;  // text of the JSON header
  std::uint64_t data_begin = 0;
  std::vector<SafetensorsEntry> entries;
  // Index in `entries` by name; the keys point into `entries`.
  std::map<std::string_view, std::size_t, std::less<>> index;
  std::map<std::string, std::string, std::less<>> metadata;

  void parse();
  Json parse_header();
  void parse_metadata(const Json& json);
  void parse_entry(const std::string& name, const Json& json);
  DType parse_dtype(const std::string& name, const Json& json) const;
  const Json& list(const std::string& name, const Json& json, const char* key) const;
  std::uint64_t number(const std::string& name, const Json& json) const;
  void order_entries();

  // Returns the byte offset of a tensor's name in the file, for error messages.
  std::uint64_t offset_of(std::string_view name) const {
    const std::size_t at = text.find(fmt::format("\"{}\"", name));
    return length_bytes + (at == std::string_view::npos ? 0 : at);
  }
  template <class... Args>
  [[noreturn]] void fail(std::string_view name, fmt::format_string<Args...> what,
                         Args&&... args) const {
    bad(path, offset_of(name), "tensor {}: {}", name,
        fmt::format(what, std::forward<Args>(args)...));
  }
};

Json SafetensorsFile::Impl::parse_header() {
  if (mapping.size() < length_bytes)
    bad(path, mapping.size(), "the file ends inside the header's length");
  std::uint64_t length = 0;
  for (std::uint64_t i = length_bytes; i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(mapping.data()[i]);
  }
  const std::uint64_t most = std::min(max_header_bytes, mapping.size() - length_bytes);
  if (length > most) {
    bad(path, 0, "the header claims {} bytes, but at most {} are possible", length, most);
  }
  data_begin = length_bytes + length;
  text = {reinterpret_cast<const char*>(mapping.data() + length_bytes),
          static_cast<std::size_t>(length)};
  std::set<std::string, std::less<>> names;
  // The parser calls this at every value, so that a header with deep nesting or repeated names is
  // rejected before it uses much memory.
  const auto examine = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > max_depth) bad(path, length_bytes, "the header is nested too deeply");
    if (depth == 1 && event == Json::parse_event_t::key) {
      const auto& name = value.get_ref<const std::string&>();
      if (!names.insert(name).second) fail(name, "appears twice in the header");
    }
    return true;
  };
  try {
    Json json = Json::parse(text.begin(), text.end(), examine);
    if (json.is_object()) return json;
  } catch (const Json::exception& error) {
    const auto* at = dynamic_cast<const Json::parse_error*>(&error);
    bad(path, length_bytes + (at != nullptr ? at->byte : 0), "the header is not JSON");
  }
  bad(path, length_bytes, "the header is not a JSON object");
}

void SafetensorsFile::Impl::parse() {
  const Json json = parse_header();
  for (const auto& [name, value] : json.items()) {
    if (name == metadata_key) {
      parse_metadata(value);
    } else {
      parse_entry(name, value);
    }
  }
  order_entries();
}

void SafetensorsFile::Impl::parse_metadata(const Json& json) {
  if (!json.is_object()) fail(metadata_key, "is not an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) fail(metadata_key, "a value is not a string");
    metadata.emplace(key, value.get<std::string>());
  }
}

DType SafetensorsFile::Impl::parse_dtype(const std::string& name, const Json& json) const {
  const auto found = json.find("dtype");
  if (found == json.end() || !found->is_string()) fail(name, "has no dtype");
  const auto& spelling = found->get_ref<const std::string&>();
  for (const auto& [known, dtype] : dtype_names) {
    if (known == spelling) return dtype;
  }
  throw make_error(ErrorCode::unsupported, "{}: byte {}: tensor {}: dtype {} is not supported",
                   path.string(), offset_of(name), name, spelling);
}

const Json& SafetensorsFile::Impl::list(const std::string& name, const Json& json,
                                        const char* key) const {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) fail(name, "has no list \"{}\"", key);
  return *found;
}

std::uint64_t SafetensorsFile::Impl::number(const std::string& name, const Json& json) const {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  if (!json.is_number_unsigned()) fail(name, "numbers must be unsigned integers");
  const auto value = json.get<std::uint64_t>();
  if (value > most) fail(name, "a number exceeds 2^63 - 1");
  return value;
}

void SafetensorsFile::Impl::parse_entry(const std::string& name, const Json& json) {
  if (!json.is_object()) fail(name, "is not an object");
  SafetensorsEntry entry;
  entry.name = name;
  entry.data.dtype = parse_dtype(name, json);
  entry.data.count = 1;
  const Json& shape = list(name, json, "shape");
  if (shape.size() > max_dimensions) fail(name, "has more than 32 dimensions");
  for (const Json& extent : shape) {
    entry.shape.push_back(number(name, extent));
    if (__builtin_mul_overflow(entry.data.count, entry.shape.back(), &entry.data.count)) {
      fail(name, "has more than 2^64 elements");
    }
  }
  const Json& offsets = list(name, json, "data_offsets");
  if (offsets.size() != 2) fail(name, "data_offsets is not a pair");
  const std::uint64_t begin = number(name, offsets[0]);
  const std::uint64_t end = number(name, offsets[1]);
  const std::uint64_t available = mapping.size() - data_begin;
  if (begin > end || end > available) {
    fail(name, "data_offsets [{}, {}] do not fit in {} bytes of data", begin, end, available);
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(entry.data.count, size_of(entry.data.dtype), &bytes) ||
      bytes != end - begin) {
    fail(name, "has {} bytes of data for {} elements of {}", end - begin, entry.data.count,
         atoll::name(entry.data.dtype));
  }
  entry.data.data = mapping.data() + data_begin + begin;
  entries.push_back(std::move(entry));
}

void SafetensorsFile::Impl::order_entries() {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.data.data, a.data.count) < std::pair(b.data.data, b.data.count);
  });
  const std::byte* end = mapping.data();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    index.emplace(entries[i].name, i);
    const auto* begin = static_cast<const std::byte*>(entries[i].data.data);
    if (begin < end) {
      fail(entries[i].name, "the data overlaps the data of tensor {}", entries[i - 1].name);
    }
    end = begin + entries[i].data.bytes();
  }
}

SafetensorsFile SafetensorsFile::open(const fs::path& path) {
  auto impl = std::make_shared<Impl>(path);
  impl->parse();
  return SafetensorsFile(std::move(impl));
}

std::span<const SafetensorsEntry> SafetensorsFile::tensors() const noexcept {
  return impl_->entries;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = impl_->index.find(name);
  return found == impl_->index.end() ? nullptr : &impl_->entries[found->second];
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  throw make_error(ErrorCode::not_found, "{}: no tensor \"{}\"", impl_->path.string(), name);
}

const std::map<std::string, std::string, std::less<>>& SafetensorsFile::metadata() const noexcept {
  return impl_->metadata;
}

const fs::path& SafetensorsFile::path() const noexcept { return impl_->path; }

SafetensorsWriter::SafetensorsWriter(const fs::path& file,
                                     std::span<const SafetensorsDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(file), file_(file, std::ios::binary | std::ios::trunc) {
  if (!file_) fail_io(path_, "create");
  Json header = Json::object();
  if (!metadata.empty()) header[std::string(metadata_key)] = metadata;
  for (const auto& tensor : tensors) {
    std::uint64_t bytes = size_of(tensor.dtype);
    for (const std::uint64_t extent : tensor.shape) bytes *= extent;
    header[tensor.name] = {{"dtype", tag_of(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {expected_, expected_ + bytes}}};
    expected_ += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // spaces align the data to 8 bytes
  const std::uint64_t length = text.size();
  file_.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file_.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file_) fail_io(path_, "write");
}

void SafetensorsWriter::write(std::span<const std::byte> data) {
  written_ += data.size();
  file_.write(reinterpret_cast<const char*>(data.data()),
              static_cast<std::streamsize>(data.size()));
  if (!file_) fail_io(path_, "write");
}

void SafetensorsWriter::close() {
  require(written_ == expected_, ErrorCode::io,
          "{}: {} bytes were declared, but {} bytes were written", path_.string(), expected_,
          written_);
  file_.close();
  if (!file_) fail_io(path_, "close");
  sync_to_disk(path_);
}

void sync_to_disk(const fs::path& path) {
  const net::Fd file = open_file(path);
  if (::fsync(file.get()) != 0) fail_io(path, "sync");
}

}  // namespace atoll_v1::atoll::fsdp
