#include "fsdp/safetensors_writer.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "atoll/error.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using nlohmann::json;

std::string_view dtype_tag(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::f64:
      return "F64";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
  }
  return "";
}

[[noreturn]] void fail_io(const std::filesystem::path& file, std::string_view action) {
  throw Error(ErrorCode::io,
              fmt::format("{}: cannot {}: {}", file.string(), action, std::strerror(errno)));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& file,
                                     std::span<const SafetensorsDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(file), file_(file, std::ios::binary | std::ios::trunc) {
  if (!file_) fail("create");
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const auto& tensor : tensors) {
    std::uint64_t bytes = size_of(tensor.dtype);
    for (const std::uint64_t extent : tensor.shape) bytes *= extent;
    header[tensor.name] = {{"dtype", dtype_tag(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {expected_, expected_ + bytes}}};
    expected_ += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data aligned to 8 bytes
  const std::uint64_t length = text.size();
  file_.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file_.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file_) fail("write");
}

void SafetensorsWriter::write(std::span<const std::byte> data) {
  written_ += data.size();
  file_.write(reinterpret_cast<const char*>(data.data()),
              static_cast<std::streamsize>(data.size()));
  if (!file_) fail("write");
}

void SafetensorsWriter::close() {
  if (written_ != expected_) {
    throw Error(ErrorCode::io, fmt::format("{}: {} bytes declared, {} written", path_.string(),
                                           expected_, written_));
  }
  file_.close();
  if (!file_) fail("close");
  sync_to_disk(path_);
}

void SafetensorsWriter::fail(std::string_view action) const { fail_io(path_, action); }

void sync_to_disk(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_io(path, "open");
  const int status = ::fsync(descriptor);
  ::close(descriptor);
  if (status != 0) fail_io(path, "sync");
}

}  // namespace atoll_v1::atoll::fsdp
