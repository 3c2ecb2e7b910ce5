// Reads Hugging Face's safetensors files, memory-mapped: 8 bytes little-endian length N, N bytes of
// JSON header {"name": {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": {text}},
// then the data that the offsets count in. https://github.com/huggingface/safetensors
//
// The file is untrusted: everything is bounded and checked in open(), and an Error(bad_data) names
// the file and a byte offset in it. Nothing is read from the data until a caller does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/view.hpp"

namespace atoll_v1::atoll::fsdp {

struct SafetensorsEntry {
  std::string name;
  std::vector<std::uint64_t> shape;
  // Mapped, read-only, valid as long as the file object. The format does not promise alignment to
  // the element size (common writers keep it): copy bytes unless `aligned`.
  ConstView data;
  bool aligned = true;
};

class SafetensorsFile {
 public:
  // Throws Error(io) when the file cannot be opened or mapped, Error(bad_data) when it is not a
  // safetensors file whose tensors lie inside it without overlap, Error(unsupported) for a dtype
  // that DType does not have.
  static SafetensorsFile open(const std::filesystem::path& path);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  // In the order of their data.
  std::span<const SafetensorsEntry> tensors() const noexcept;
  const SafetensorsEntry* find(std::string_view name) const noexcept;  // nullptr: not there
  const SafetensorsEntry& at(std::string_view name) const;  // Error(not_found) names the file
  const std::map<std::string, std::string, std::less<>>& metadata() const noexcept;
  const std::filesystem::path& path() const noexcept;

 private:
  struct Impl;
  explicit SafetensorsFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll::fsdp
