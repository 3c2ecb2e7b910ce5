#include "unit/disk_log.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string_view>

namespace atoll_test {
namespace {

namespace fs = std::filesystem;

struct Log {
  std::recursive_mutex mutex;
  std::string root;  // empty: nothing is watched
  Exchange exchange = Exchange::possible;
  std::vector<DiskCall> calls;
};
Log& the_log() {
  static Log log;
  return log;
}

// Returns the path below the watched folder, or "" outside of it; "." is the folder itself.
std::string relative(std::string_view path) {
  const std::string& root = the_log().root;
  if (root.empty() || !path.starts_with(root)) return "";
  if (path.size() == root.size()) return ".";
  return path[root.size()] == '/' ? std::string(path.substr(root.size() + 1)) : "";
}

std::string path_of(int fd) {
  std::array<char, 4096> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : "";
}

std::string path_at(int folder, const char* name) {
  return folder == AT_FDCWD || name[0] == '/' ? name : path_of(folder) + "/" + name;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Makes a call, and logs it if it succeeds and concerns the watched folder.
template <class Call>
auto logged(DiskCall call, const Call& make) {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  const auto result = make();
  const int error = errno;
  if (result >= 0 && !call.path.empty()) {
    if (call.kind == DiskCall::Kind::write) call.bytes.resize(static_cast<std::size_t>(result));
    log.calls.push_back(std::move(call));
  }
  errno = error;
  return result;
}

}  // namespace
}  // namespace atoll_test

using namespace atoll_test;
using Kind = DiskCall::Kind;

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list list;
    va_start(list, flags);
    mode = static_cast<mode_t>(va_arg(list, int));
    va_end(list);
  }
  static auto* const real = next<int(const char*, int, ...)>("open");
  if (!(flags & O_CREAT)) return real(path, flags);
  return logged({Kind::create, relative(path), {}, 0, {}}, [&] { return real(path, flags, mode); });
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return logged({Kind::write,
                 relative(path_of(fd)),
                 {},
                 static_cast<std::uint64_t>(offset),
                 std::string(static_cast<const char*>(data), size)},
                [&] { return real(fd, data, size, offset); });
}

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  return logged({Kind::sync, relative(path_of(fd)), {}, 0, {}}, [&] { return real(fd); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = next<int(const char*, mode_t)>("mkdir");
  return logged({Kind::folder, relative(path), {}, 0, {}}, [&] { return real(path, mode); });
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return logged({Kind::rename, relative(from), relative(to), 0, {}},
                [&] { return real(from, to); });
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  static auto* const real = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  if (the_log().exchange == Exchange::impossible) {
    errno = EINVAL;
    return -1;
  }
  return logged({Kind::exchange, relative(from), relative(to), 0, {}},
                [&] { return real(from_folder, from, to_folder, to, flags); });
}

int unlink(const char* path) noexcept {
  static auto* const real = next<int(const char*)>("unlink");
  return logged({Kind::remove, relative(path), {}, 0, {}}, [&] { return real(path); });
}

int unlinkat(int folder, const char* name, int flags) noexcept {
  static auto* const real = next<int(int, const char*, int)>("unlinkat");
  return logged({Kind::remove, relative(path_at(folder, name)), {}, 0, {}},
                [&] { return real(folder, name, flags); });
}

}  // extern "C"

namespace atoll_test {

void watch_disk(const fs::path& folder, Exchange exchange) {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log.root = folder.string();
  log.exchange = exchange;
  log.calls.clear();
}

std::size_t disk_calls() {
  const std::lock_guard lock(the_log().mutex);
  return the_log().calls.size();
}

std::vector<DiskCall> stop_watching() {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log.root.clear();
  log.exchange = Exchange::possible;
  return std::move(log.calls);
}

namespace {

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Returns the node with a path, or -1.
template <class Disk>
int find(const Disk& disk, const std::string& path) {
  int node = 0;
  for (std::size_t begin = 0; path != "." && node >= 0 && begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const auto& entries = disk[static_cast<std::size_t>(node)].entries;
    const auto found = entries.find(path.substr(begin, end - begin));
    node = found == entries.end() ? -1 : found->second;
    begin = end + 1;
  }
  return node;
}

template <class Disk, class Entry>
void set(Disk& disk, const Entry& entry) {
  auto& entries = disk[entry.folder].entries;
  if (entry.node < 0) {
    entries.erase(entry.name);
  } else {
    entries[entry.name] = entry.node;
  }
}

}  // namespace

DiskReplay::DiskReplay(const std::vector<DiskCall>& log) : is_folder_{true} {
  Disk live = {Node{true, {}, {}}};
  for (std::size_t i = 0; i < log.size(); ++i) apply(log[i], i, live);
}

void DiskReplay::apply(const DiskCall& call, std::size_t number, Disk& live) {
  if (call.kind == DiskCall::Kind::sync) return add_sync(call, number, live);
  Change change;
  change.call = number;
  const int node = find(live, call.path);
  const auto entry = [&](const std::string& path, int target) {
    const int folder = find(live, parent_of(path));
    if (folder < 0) throw std::logic_error("no folder for " + path);
    change.entries.push_back({static_cast<std::size_t>(folder), name_of(path), target});
  };
  switch (call.kind) {
    case DiskCall::Kind::create:
    case DiskCall::Kind::folder:
      is_folder_.push_back(call.kind == DiskCall::Kind::folder);
      live.push_back({is_folder_.back(), {}, {}});
      entry(call.path, static_cast<int>(live.size() - 1));
      break;
    case DiskCall::Kind::write:
      change.file = node;
      change.offset = call.offset;
      change.bytes = call.bytes;
      break;
    case DiskCall::Kind::rename:
      entry(call.path, -1);
      entry(call.second, node);
      break;
    case DiskCall::Kind::exchange:
      entry(call.path, find(live, call.second));
      entry(call.second, node);
      break;
    case DiskCall::Kind::remove:
      entry(call.path, -1);
      break;
    case DiskCall::Kind::sync:
      break;
  }
  for (const Entry& one : change.entries) set(live, one);
  changes_.push_back(std::move(change));
}

void DiskReplay::add_sync(const DiskCall& call, std::size_t number, const Disk& live) {
  const int node = find(live, call.path);
  for (Change& change : changes_) {
    bool concerned = change.file == node;
    for (const Entry& entry : change.entries)
      concerned = concerned || static_cast<int>(entry.folder) == node;
    if (concerned && change.synced == SIZE_MAX) change.synced = number;
  }
}

DiskReplay::Disk DiskReplay::disk_after(std::size_t calls,
                                        const std::function<Fate(const Change&)>& fate) const {
  Disk disk;
  for (const bool is_folder : is_folder_) disk.push_back({is_folder, {}, {}});
  for (const Change& change : changes_) {
    if (change.call >= calls) break;
    const Fate what = change.synced < calls ? Fate::kept : fate(change);
    if (what == Fate::lost) continue;
    for (const Entry& entry : change.entries) set(disk, entry);
    if (change.file < 0) continue;
    std::string& bytes = disk[static_cast<std::size_t>(change.file)].bytes;
    if (bytes.size() < change.offset + change.bytes.size())
      bytes.resize(change.offset + change.bytes.size());
    bytes.replace(change.offset, change.bytes.size(),
                  what == Fate::kept ? change.bytes : std::string(change.bytes.size(), '\0'));
  }
  return disk;
}

std::string DiskReplay::text_of(const Disk& disk, std::size_t node) {
  const Node& one = disk[node];
  if (!one.is_folder) return std::to_string(one.bytes.size()) + ":" + one.bytes;
  std::string text = "{";
  for (const auto& [name, child] : one.entries)
    text += name + "=" + text_of(disk, static_cast<std::size_t>(child)) + ";";
  return text + "}";
}

void DiskReplay::write(const Disk& disk, std::size_t node, const fs::path& folder) {
  fs::create_directories(folder);
  for (const auto& [name, child] : disk[node].entries) {
    const Node& one = disk[static_cast<std::size_t>(child)];
    if (one.is_folder) {
      write(disk, static_cast<std::size_t>(child), folder / name);
    } else {
      std::ofstream(folder / name, std::ios::binary) << one.bytes;
    }
  }
}

void DiskReplay::after(std::size_t calls, const fs::path& folder,
                       const std::function<void()>& examine) {
  std::vector<const Change*> pending;
  for (const Change& change : changes_) {
    if (change.call < calls && change.synced >= calls) pending.push_back(&change);
  }
  std::vector<std::function<Fate(const Change&)>> fates = {
      [](const Change&) { return Fate::kept; }, [](const Change&) { return Fate::lost; },
      [](const Change& c) { return c.file < 0 ? Fate::kept : Fate::lost; },
      [](const Change& c) { return c.file < 0 ? Fate::kept : Fate::zeros; },
      [](const Change& c) { return c.file < 0 ? Fate::lost : Fate::kept; }};
  for (const Change* one : pending) {
    fates.push_back([one](const Change& c) { return &c == one ? Fate::lost : Fate::kept; });
    fates.push_back([one](const Change& c) { return &c == one ? Fate::kept : Fate::lost; });
    // Keeps all writes, and loses the changes of names by this call and all later ones.
    fates.push_back([one](const Change& c) {
      return c.file < 0 && c.call >= one->call ? Fate::lost : Fate::kept;
    });
  }
  for (const auto& fate : fates) {
    const Disk disk = disk_after(calls, fate);
    if (!seen_.insert(std::to_string(calls) + text_of(disk, 0)).second) continue;
    fs::remove_all(folder);
    write(disk, 0, folder);
    examine();
  }
}

}  // namespace atoll_test
