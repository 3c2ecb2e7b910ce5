#include "picture.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "atoll/error.hpp"

namespace topo {

void write_picture(const std::string& svg, const std::string& path) {
  const auto fail = [&](atoll::ErrorCode code, std::string_view what) {
    throw atoll::Error(code, fmt::format("{}: {}", path, what));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> input(std::tmpfile(), std::fclose);
  if (!input || std::fwrite(svg.data(), 1, svg.size(), input.get()) != svg.size() ||
      std::fseek(input.get(), 0, SEEK_SET) != 0)
    fail(atoll::ErrorCode::io, fmt::format("no temporary file: {}", std::strerror(errno)));

  // Twice the usual 96 dots per inch keep small texts of a PNG readable.
  std::array<std::string, 5> words{"rsvg-convert", "--dpi-x=192", "--dpi-y=192",
                                   "--format=" + path.substr(path.rfind('.') + 1),
                                   "--output=" + path};
  std::array<char*, words.size() + 1> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  posix_spawn_file_actions_t actions{};
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(input.get()), STDIN_FILENO);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT)
    fail(atoll::ErrorCode::not_found,
         "rsvg-convert is not installed: install the Debian package librsvg2-bin, or write an .svg "
         "file");
  if (error != 0) fail(atoll::ErrorCode::io, fmt::format("rsvg-convert: {}", std::strerror(error)));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (status != 0) fail(atoll::ErrorCode::io, "rsvg-convert could not write the picture");
}

}  // namespace topo
