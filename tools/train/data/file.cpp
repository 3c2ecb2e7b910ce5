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
  const auto fail = [&](ErrorCode code, const std::string& why) {
    throw Error(code, fmt::format("{}: {}", path.string(), why));
  };
  std::error_code status;
  if (!std::filesystem::exists(path, status)) fail(ErrorCode::not_found, "no such file");
  // A pipe or device has no size to check and may never end.
  if (!std::filesystem::is_regular_file(path, status)) {
    fail(ErrorCode::bad_data, "not a regular file");
  }
  const std::uintmax_t size = std::filesystem::file_size(path, status);
  if (status) fail(ErrorCode::io, status.message());
  if (size == 0) fail(ErrorCode::bad_data, "empty file");
  if (size > limit) {
    fail(ErrorCode::bad_data, fmt::format("{} bytes; at most {} are accepted", size, limit));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::io, std::strerror(errno));
  std::string bytes(static_cast<std::size_t>(size), '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::uintmax_t>(in.gcount()) != size) {
    fail(ErrorCode::io, fmt::format("read {} of {} bytes", in.gcount(), size));
  }
  return bytes;
}

}  // namespace train
