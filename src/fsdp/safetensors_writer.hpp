// Writes safetensors files (format: see safetensors.hpp), front to back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/view.hpp"

namespace atoll_v1::atoll::fsdp {

struct SafetensorsDeclaration {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
};

// The tensors are declared first; their data follows in the same order, in pieces of any size.
class SafetensorsWriter {
 public:
  // Throws Error(io) that names the file, as every function here does.
  SafetensorsWriter(const std::filesystem::path& file,
                    std::span<const SafetensorsDeclaration> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  void write(std::span<const std::byte> data);
  // Syncs the file to disk; without it the file is incomplete. Throws when less or more was written
  // than declared.
  void close();

 private:
  [[noreturn]] void fail(std::string_view action) const;

  std::filesystem::path path_;
  std::ofstream file_;
  std::uint64_t expected_ = 0;
  std::uint64_t written_ = 0;
};

// Flushes a file or folder to disk.
void sync_to_disk(const std::filesystem::path& path);

}  // namespace atoll_v1::atoll::fsdp
