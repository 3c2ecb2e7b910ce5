#include "data/file.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "fail.hpp"

namespace train {

std::string read_file(const std::filesystem::path& path, std::uintmax_t limit) {
  const std::string name = path.string();
  std::error_code status;
  if (!std::filesystem::exists(path, status)) fail(ErrorCode::not_found, "{}: no such file", name);
  // A pipe or device has no size to check and may never end.
  if (!std::filesystem::is_regular_file(path, status)) {
    fail(ErrorCode::bad_data, "{}: not a regular file", name);
  }
  const std::uintmax_t size = std::filesystem::file_size(path, status);
  if (status) fail(ErrorCode::io, "{}: {}", name, status.message());
  if (size == 0) fail(ErrorCode::bad_data, "{}: empty file", name);
  if (size > limit) {
    fail(ErrorCode::bad_data, "{}: {} bytes; at most {} are accepted", name, size, limit);
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::io, "{}: {}", name, std::strerror(errno));
  std::string bytes(static_cast<std::size_t>(size), '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::uintmax_t>(in.gcount()) != size) {
    fail(ErrorCode::io, "{}: read {} of {} bytes", name, in.gcount(), size);
  }
  return bytes;
}

}  // namespace train
