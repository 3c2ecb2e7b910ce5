#include "data/file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "atoll/error.hpp"

namespace train {

using atoll::Error;
using atoll::ErrorCode;

std::string read_file(const std::filesystem::path& path, std::uintmax_t limit) {
  std::error_code status;
  if (!std::filesystem::exists(path, status)) {
    throw Error(ErrorCode::not_found, fmt::format("{}: no such file", path.string()));
  }
  // A pipe or device has no size to check and may never end.
  if (!std::filesystem::is_regular_file(path, status)) {
    throw Error(ErrorCode::bad_data, fmt::format("{}: not a regular file", path.string()));
  }
  const std::uintmax_t size = std::filesystem::file_size(path, status);
  if (status) {
    throw Error(ErrorCode::io, fmt::format("{}: {}", path.string(), status.message()));
  }
  if (size == 0) throw Error(ErrorCode::bad_data, fmt::format("{}: empty file", path.string()));
  if (size > limit) {
    throw Error(ErrorCode::bad_data,
                fmt::format("{}: {} bytes; at most {} are accepted", path.string(), size, limit));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw Error(ErrorCode::io, fmt::format("{}: {}", path.string(), std::strerror(errno)));
  }
  std::string bytes(static_cast<std::size_t>(size), '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::uintmax_t>(in.gcount()) != size) {
    throw Error(ErrorCode::io,
                fmt::format("{}: read {} of {} bytes", path.string(), in.gcount(), size));
  }
  return bytes;
}

}  // namespace train
