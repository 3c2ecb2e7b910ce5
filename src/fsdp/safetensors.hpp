// Reads and writes safetensors files, the format of Hugging Face. A file has three parts: a
// little-endian 8-byte length N, a JSON header of N bytes {"name": {"dtype", "shape",
// "data_offsets": [begin, end)}, "__metadata__": {text}}, and the data, to which the offsets are
// relative. https://github.com/huggingface/safetensors
//
// Files are memory-mapped and untrusted: open() checks the whole header, and Error(bad_data) names
// the file and a byte offset in the file. Tensor data is read only when a caller accesses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/view.hpp"

namespace atoll_v1::atoll::fsdp {

struct SafetensorsEntry {
  std::string name;
  std::vector<std::uint64_t> shape;
  // A read-only view of the mapping, valid as long as the file object. The format does not
  // guarantee alignment to the element size: copy the bytes before use.
  ConstView data;
};

class SafetensorsFile {
 public:
  // Throws Error(io) when the file cannot be opened or mapped, Error(bad_data) when it is not a
  // safetensors file or when tensors overlap or exceed the file, and Error(unsupported) when DType
  // has no value for the dtype of a tensor.
  static SafetensorsFile open(const std::filesystem::path& path);

  // Returns all tensors in the order of their data in the file.
  std::span<const SafetensorsEntry> tensors() const noexcept;
  // find() returns null, and at() throws Error(not_found), when there is no tensor with this name.
  const SafetensorsEntry* find(std::string_view name) const noexcept;
  const SafetensorsEntry& at(std::string_view name) const;
  const std::map<std::string, std::string, std::less<>>& metadata() const noexcept;
  const std::filesystem::path& path() const noexcept;

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

// Writes a file front to back: the constructor declares all tensors, and write() appends their data
// in the same order, in pieces of any size. Every function throws Error(io) that names the file.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& file,
                    std::span<const SafetensorsDeclaration> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  void write(std::span<const std::byte> data);
  // Syncs the file to disk; without close() the file is incomplete. Throws if the bytes written
  // differ from the bytes declared.
  void close();

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  std::uint64_t expected_ = 0;
  std::uint64_t written_ = 0;
};

// Flushes a file or folder to disk. Throws Error(io), which names the path.
void sync_to_disk(const std::filesystem::path& path);

}  // namespace atoll_v1::atoll::fsdp
