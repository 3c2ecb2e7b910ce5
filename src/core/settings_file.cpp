#include "core/settings_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/errors.hpp"
#include "core/socket.hpp"
#include "core/terminal_text.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_file_bytes = 1 << 20;

}  // namespace

std::string read_settings_file(std::string_view setting, const std::string& name) {
  const std::string path = terminal_text(name);  // for messages
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const net::Fd file(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  require(static_cast<bool>(file), errno == ENOENT ? ErrorCode::not_found : ErrorCode::io,
          "{}={}: cannot open: {}", setting, path, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(file.get(), &status) == 0;
  require(known && S_ISREG(status.st_mode), ErrorCode::io, "{}={}: is {}; name a regular file",
          setting, path, S_ISDIR(status.st_mode) ? "a folder" : "no regular file");
  std::string text(most_file_bytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    require(got >= 0, ErrorCode::io, "{}={}: cannot read: {}", setting, path, std::strerror(errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  require(size <= most_file_bytes, ErrorCode::io,
          "{}={}: is larger than 1 MiB, so it is no file of settings", setting, path);
  text.resize(size);
  return text;
}

}  // namespace atoll_v1::atoll
