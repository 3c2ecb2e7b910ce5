#include "checkpoint/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/safetensors_header.hpp"
#include "core/errors.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

using Tag = std::pair<std::string_view, DType>;
constexpr std::array dtype_names = {Tag{"F32", DType::f32}, Tag{"BF16", DType::bf16},
                                    Tag{"F16", DType::f16}, Tag{"F64", DType::f64},
                                    Tag{"I32", DType::i32}, Tag{"I64", DType::i64},
                                    Tag{"U8", DType::u8}};

std::string_view tag_of(DType dtype) {
  for (const auto& [tag, known] : dtype_names) {
    if (known == dtype) return tag;
  }
  return "";
}

std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span(text));
}

}  // namespace

std::optional<DType> safetensors_dtype(std::string_view name) noexcept {
  for (const auto& [tag, dtype] : dtype_names) {
    if (tag == name) return dtype;
  }
  return std::nullopt;
}

struct SafetensorsFile::Impl {
  Impl(const fs::path& path_, FileReads reads)
      : path(path_), mapping(path_), header(parse(reads)) {}

  SafetensorsHeader parse(FileReads reads) const {
    constexpr std::size_t usual_header = std::size_t{1} << 20;
    if (reads == FileReads::parts) {
      mapping.expect_parts();
      mapping.fetch(mapping.bytes().first(std::min(usual_header, mapping.bytes().size())));
    }
    return parse_safetensors(mapping.bytes(), path);
  }

  fs::path path;
  Mapping mapping;
  SafetensorsHeader header;
};

SafetensorsFile SafetensorsFile::open(const fs::path& path, FileReads reads) {
  return SafetensorsFile(std::make_shared<const Impl>(path, reads));
}

void SafetensorsFile::fetch(std::span<const std::byte> part) const noexcept {
  impl_->mapping.fetch(part);
}

std::span<const SafetensorsEntry> SafetensorsFile::tensors() const noexcept {
  return impl_->header.entries;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const noexcept {
  return impl_->header.find(name);
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  throw Error(ErrorCode::not_found,
              terminal_safe(fmt::format("{}: no tensor \"{}\"", impl_->path.string(), name)));
}

const std::map<std::string, std::string, std::less<>>& SafetensorsFile::metadata() const noexcept {
  return impl_->header.metadata;
}

const fs::path& SafetensorsFile::path() const noexcept { return impl_->path; }

std::span<const std::byte> SafetensorsFile::bytes() const noexcept {
  return impl_->mapping.bytes();
}

std::span<const std::byte> SafetensorsFile::header_bytes() const noexcept {
  return bytes().first(impl_->header.data_begin);
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
