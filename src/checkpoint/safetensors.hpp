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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/view.hpp"
#include "checkpoint/digests.hpp"
#include "checkpoint/files.hpp"

namespace atoll_v1::atoll::fsdp {

struct SafetensorsEntry {
  std::string name;
  std::vector<std::uint64_t> shape;
  // A read-only view of the mapping, valid as long as the file object. The format does not
  // guarantee alignment to the element size: copy the bytes before use.
  ConstView data;
};

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
  void fetch(std::span<const std::byte> part) const noexcept;

  // Returns all tensors in the order of their data in the file.
  std::span<const SafetensorsEntry> tensors() const noexcept;
  // find() returns null, and at() throws Error(not_found), when there is no tensor with this name.
  const SafetensorsEntry* find(std::string_view name) const noexcept;
  const SafetensorsEntry& at(std::string_view name) const;
  const std::map<std::string, std::string, std::less<>>& metadata() const noexcept;
  const std::filesystem::path& path() const noexcept;
  // The bytes of the whole file, and of its header with the length.
  std::span<const std::byte> bytes() const noexcept;
  std::span<const std::byte> header_bytes() const noexcept;

 private:
  struct Impl;
  explicit SafetensorsFile(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

struct SafetensorsDeclaration {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
};

// Returns the dtype with this name in a header, or nothing if DType has no value for it.
std::optional<DType> safetensors_dtype(std::string_view name) noexcept;

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
  BlockDigests digests_;    // of the blocks of this tensor
};

}  // namespace atoll_v1::atoll::fsdp
