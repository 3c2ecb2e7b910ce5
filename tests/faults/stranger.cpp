// stranger flood RATE HOST PORT...    opens RATE connections per second until it gets SIGTERM
// stranger silent COUNT HOST PORT...  opens COUNT connections, sends a few bytes on half of them,
//                                     and waits
// stranger accept PORT                accepts connections and closes them, until it is killed
//
// A process outside the job. Of each four connections, a flood closes one at once, sends bytes on
// another, and sends nothing on two. It keeps the newest 500 open. At its end it prints how many
// connections it opened, how many were refused because nobody listens, and the time.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t most_open = 500;

volatile std::sig_atomic_t must_end = 0;

sockaddr_in address(const char* host, int port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, host, &result.sin_addr);
  return result;
}

int connect_to(const sockaddr_in& to, int flags) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
  if (fd < 0) return -1;
  // A close with a reset frees the local port at once; otherwise a flood would use up all ports.
  const linger none{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 || errno == EINPROGRESS)
    return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

void send_bytes(int fd) {
  constexpr std::string_view bytes = "atoll? GET / HTTP/1.1\r\n\r\n";
  [[maybe_unused]] const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void flood(int rate, const std::vector<sockaddr_in>& targets) {
  std::signal(SIGTERM, [](int) { must_end = 1; });
  std::deque<int> open;
  long opened = 0, refused = 0;
  const auto start = Clock::now();
  for (long i = 0; must_end == 0; ++i) {
    const auto due = start + std::chrono::nanoseconds(i * 1'000'000'000L / rate);
    if (due > Clock::now() + 1ms) std::this_thread::sleep_until(due);
    const int fd = connect_to(targets[static_cast<std::size_t>(i) % targets.size()], SOCK_NONBLOCK);
    if (fd < 0) {
      refused += errno == ECONNREFUSED ? 1 : 0;
      continue;
    }
    ++opened;
    if (i % 4 == 1) send_bytes(fd);
    if (i % 4 == 0) {
      ::close(fd);
    } else {
      open.push_back(fd);
    }
    if (open.size() <= most_open) continue;
    ::close(open.front());
    open.pop_front();
  }
  const std::chrono::duration<double> seconds = Clock::now() - start;
  std::printf("opened %ld, refused %ld in %.3f s\n", opened, refused, seconds.count());
}

[[noreturn]] void stay_silent(int count, const std::vector<sockaddr_in>& targets) {
  for (int i = 0; i < count; ++i) {
    const int fd = connect_to(targets[static_cast<std::size_t>(i) % targets.size()], 0);
    if (fd >= 0 && i % 2 == 1) send_bytes(fd);
  }
  std::printf("connected\n");
  std::fflush(stdout);
  for (;;) ::pause();
}

[[noreturn]] void accept_all(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const sockaddr_in at = address("127.0.0.1", port);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(fd, 4096) != 0) {
    std::perror("listen");
    std::exit(EXIT_FAILURE);
  }
  for (;;) {
    const int one = ::accept(fd, nullptr, nullptr);
    if (one >= 0) ::close(one);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "accept" && argc == 3) accept_all(std::atoi(argv[2]));
  if (argc < 5) return 2;
  std::vector<sockaddr_in> targets;
  for (int i = 4; i < argc; ++i) targets.push_back(address(argv[3], std::atoi(argv[i])));
  const int number = std::max(1, std::atoi(argv[2]));
  if (what == "silent") stay_silent(number, targets);
  if (what != "flood") return 2;
  flood(number, targets);
  return EXIT_SUCCESS;
}
