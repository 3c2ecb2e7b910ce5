// Emulates a disk that turns a bit, in a process that preloads this library: the first write to a
// file whose path fits the pattern BAD_DISK_FILE stores another first byte.
#include <dlfcn.h>
#include <fnmatch.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

bool is_bad(int fd) {
  static bool done = false;
  const char* pattern = std::getenv("BAD_DISK_FILE");
  if (pattern == nullptr || done) return false;
  std::vector<char> path(4096);
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size() - 1);
  done = length > 0 && ::fnmatch(pattern, path.data(), 0) == 0;
  return done;
}

using Write = ssize_t (*)(int, const void*, std::size_t);
using Writev = ssize_t (*)(int, const iovec*, int);

// Stores only one byte, like an interrupted write, so that the caller writes the rest.
ssize_t store_turned(int fd, const void* data) {
  const char turned = static_cast<char>(*static_cast<const char*>(data) ^ 1);
  return ::pwrite(fd, &turned, 1, 0) == 1 ? ::lseek(fd, 1, SEEK_SET) : -1;
}

}  // namespace

extern "C" ssize_t write(int fd, const void* data, std::size_t size) {
  static const auto next = reinterpret_cast<Write>(::dlsym(RTLD_NEXT, "write"));
  return size > 0 && is_bad(fd) ? store_turned(fd, data) : next(fd, data, size);
}
extern "C" ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto next = reinterpret_cast<Writev>(::dlsym(RTLD_NEXT, "writev"));
  for (int i = 0; i < count; ++i) {
    if (parts[i].iov_len > 0) {
      return is_bad(fd) ? store_turned(fd, parts[i].iov_base) : next(fd, parts, count);
    }
  }
  return next(fd, parts, count);
}
