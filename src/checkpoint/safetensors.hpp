// Reads and writes safetensors files, the format of Hugging Face. A file has three parts: a
// little-endian 8-byte length N, a JSON header of N bytes {"name": {"dtype", "shape",
// "data_offsets": [begin, end)}, "__metadata__": {text}}, and the data, to which the offsets are
// relative. https://github.com/huggingface/safetensors
//
// Files are memory-mapped and untrusted: open() checks the whole header, of at most 1 GiB, and
// Error(bad_data) names the file and a byte offset in the file. Tensor data is read only when a
// caller accesses it. Errors escape the control characters of names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/view.hpp"
#include "checkpoint/digests.hpp"
#include "checkpoint/files.hpp"

namespace atoll_v1::atoll::fsdp {

// Returns true for the types that weights may have: f32, bf16 or f16.
inline bool is_float(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

struct SafetensorsEntry {
  std::string name;
  std::vector<std::uint64_t> shape;
  // A read-only view of the mapping, valid as long as the file object. The format does not
  // guarantee alignment to the element size: copy the bytes before use.
  ConstView data;
};

inline constexpr std::string_view safetensors_metadata_key = "__metadata__";
inline constexpr std::uint64_t safetensors_length_bytes = 8;

// The header of a file.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // entries in the order of their data in the file
  std::map<std::string, std::string, std::less<>> metadata;
  std::uint64_t data_begin = 0;  // offset of the first byte of data in the file

  struct Name {
    std::uint64_t digest;
    std::uint32_t entry;
  };
  std::vector<Name> names;  // names of all entries, sorted by digest

  // Returns null if there is no tensor with this name.
  const SafetensorsEntry* find(std::string_view name) const noexcept;
};

// Parses and checks the header at the start of a file's bytes, in time and memory that grow
// linearly with its length. Entries point into `file`. Throws the errors of
// SafetensorsFile::open(), which name `path`.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file,
                                    const std::filesystem::path& path);

// How a file will be read. If `parts`, only what is asked for is read from the disk.
enum class FileReads {
  whole,
  parts
};

class SafetensorsFile {
 public:
  // Throws Error(io) when the file cannot be opened or mapped, Error(bad_data) when it is not a
  // safetensors file or when tensors overlap or exceed the file, and Error(unsupported) when DType
  // has no value for the dtype of a tensor.
  static SafetensorsFile open(const std::filesystem::path& path,
                              FileReads reads = FileReads::whole);
  // Starts to read a part of bytes() from the disk in large pieces. Without it, a file that is read
  // by parts is read page by page.
  void fetch(std::span<const std::byte> part) const noexcept { content_->mapping.fetch(part); }

  // Returns all tensors in the order of their data in the file.
  std::span<const SafetensorsEntry> tensors() const noexcept { return content_->header.entries; }
  // find() returns null, and at() throws Error(not_found), when there is no tensor with this name.
  const SafetensorsEntry* find(std::string_view name) const noexcept {
    return content_->header.find(name);
  }
  const SafetensorsEntry& at(std::string_view name) const;
  const std::map<std::string, std::string, std::less<>>& metadata() const noexcept {
    return content_->header.metadata;
  }
  const std::filesystem::path& path() const noexcept { return content_->path; }
  // bytes() returns the bytes of the whole file, and header_bytes() the length and the header.
  std::span<const std::byte> bytes() const noexcept { return content_->mapping.bytes(); }
  std::span<const std::byte> header_bytes() const noexcept {
    return bytes().first(content_->header.data_begin);
  }

 private:
  struct Content {
    explicit Content(const std::filesystem::path& file) : path(file), mapping(file) {}
    std::filesystem::path path;
    Mapping mapping;
    SafetensorsHeader header;
  };
  explicit SafetensorsFile(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  std::shared_ptr<const Content> content_;
};

struct SafetensorsDeclaration {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
};

// Whether a file contains the digests of its tensors' blocks (digests.hpp), as the metadata
// "xxh3_64:NAME" of each tensor NAME.
enum class StoredDigests {
  none,
  blocks
};

inline std::string digests_key(std::string_view tensor) {
  return std::string("xxh3_64:").append(tensor);
}

// Writes a file front to back: the constructor declares all tensors, and write() appends their data
// in the same order, in pieces of any size. Every function throws Error(io) that names the file.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& file,
                    std::span<const SafetensorsDeclaration> tensors,
                    const std::map<std::string, std::string>& metadata = {},
                    StoredDigests digests = StoredDigests::none);
  void write(std::span<const std::byte> data);
  // Writes the digests and syncs the file to disk; without close() the file is incomplete. Throws
  // if the bytes written differ from the bytes declared.
  void close();

 private:
  std::string header() const;
  void add_to_digests(std::span<const std::byte> data);

  std::filesystem::path path_;
  std::vector<SafetensorsDeclaration> tensors_;
  std::vector<std::uint64_t> ends_;  // offset behind each tensor's data
  std::map<std::string, std::string> metadata_;
  StoredDigests stored_digests_;
  FileWriter file_;
  std::uint64_t written_ = 0;
  std::size_t tensor_ = 0;  // the tensor that write() continues
  BlockDigests digests_;    // digests of the blocks of this tensor
};

}  // namespace atoll_v1::atoll::fsdp
