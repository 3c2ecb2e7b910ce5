#include "log.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>

#include "atoll/cuda/environment.hpp"

namespace atoll_nccl {
namespace {

std::atomic<bool> gathered{false}, gathered_by_copy_engines{false};
std::atomic<off_t> forgotten{0};  // number of bytes at the start of the log that are ignored

struct Log {
  int file = -1;
  std::string missing;  // reason why NCCL's log is not captured; empty if the log is captured
};

// Redirects NCCL's log to a memory file, unless the user has set NCCL_DEBUG or a related variable.
// Done only once, because NCCL reads its environment at its first call.
const Log& log(bool may_redirect = false) {
  static const Log log = [may_redirect] {
    if (!may_redirect) return Log{-1, "NCCL's log is captured only with ATOLL_OWNS_PROCESS=1"};
    for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"}) {
      if (const char* value = std::getenv(name)) {
        return Log{-1, fmt::format("{}={} is set, so NCCL's log is not captured", name, value)};
      }
    }
    const int file = ::memfd_create("nccl-log", MFD_CLOEXEC);
    if (file < 0) return Log{-1, "a memory file for NCCL's log could not be created"};
    atoll_abi::add_to_environment({"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,NET",
                                   fmt::format("NCCL_DEBUG_FILE=/proc/self/fd/{}", file)});
    return Log{file, ""};
  }();
  return log;
}

off_t size_of(int file) {
  struct stat info {};
  return ::fstat(file, &info) == 0 ? info.st_size : 0;
}

std::string content(int file, off_t begin) {
  std::string text(static_cast<std::size_t>(std::max<off_t>(0, size_of(file) - begin)), '\0');
  const ssize_t n = ::pread(file, text.data(), text.size(), begin);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

// Collects the networks in log lines such as "... [send] via NET/IB/0(3)/GDRDMA(PCI)/Shared". `all`
// counts the connections, and `direct` those in which the NIC accesses GPU memory directly.
struct Connections {
  std::set<std::string, std::less<>> networks;
  int all = 0, direct = 0;

  void add(std::string_view line) {
    constexpr std::string_view before = " via NET/";
    const std::size_t at = line.find(before);
    if (at == std::string_view::npos) return;
    const std::string_view rest = line.substr(at + before.size());
    networks.emplace(rest.substr(0, rest.find('/')));
    ++all;
    direct += rest.find("/GDRDMA") != std::string_view::npos ? 1 : 0;
  }
};

}  // namespace

void keep_log(bool may_redirect) { log(may_redirect); }

std::int64_t log_size() noexcept { return log().file < 0 ? 0 : size_of(log().file); }

bool opened_copy_engines(std::int64_t since) {
  // The line is from NCCL's ce_coll.cc.
  return log_size() > since &&
         content(log().file, since).find("Init CE, rank") != std::string::npos;
}

void note_gather(bool by_copy_engines) noexcept {
  gathered.store(true, std::memory_order_relaxed);
  if (by_copy_engines) gathered_by_copy_engines.store(true, std::memory_order_relaxed);
}

void forget_log() noexcept {
  gathered.store(false, std::memory_order_relaxed);
  gathered_by_copy_engines.store(false, std::memory_order_relaxed);
  if (log().file >= 0) forgotten.store(size_of(log().file));
}

void release_environment() {
  static std::once_flag once;
  if (log().file < 0) return;
  std::call_once(once, [] {
    atoll_abi::remove_from_environment({"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"});
  });
}

std::string transports() {
  const Log& kept = log();
  if (kept.file < 0) return "unknown=" + kept.missing + '\n';
  std::string text = transports_of(content(kept.file, forgotten.load()));
  if (gathered) text += gathered_by_copy_engines ? "copy_engines=yes\n" : "copy_engines=no\n";
  return text;
}

std::string transports_of(std::string_view log) {
  Connections connections;
  bool available = false, unavailable = false;
  while (!log.empty()) {
    const std::string_view line = log.substr(0, log.find('\n'));
    log.remove_prefix(std::min(line.size() + 1, log.size()));
    connections.add(line);
    available |= line.find("NVLS multicast support is available") != std::string_view::npos &&
                 line.find("transport disabled") == std::string_view::npos;
    unavailable |= line.find("NVLS multicast support is not available") != std::string_view::npos;
  }
  std::string text;
  for (const std::string& network : connections.networks)
    text += fmt::format("network={}\n", network);
  if (connections.all > 0) {
    const bool some = connections.direct > 0 && connections.direct < connections.all;
    text += some ? "gdr=some\n" : connections.direct > 0 ? "gdr=yes\n" : "gdr=no\n";
  }
  if (available || unavailable) text += available && !unavailable ? "nvls=yes\n" : "nvls=no\n";
  return text;
}

}  // namespace atoll_nccl
