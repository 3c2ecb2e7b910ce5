// A log of what a process writes below one folder, and the disks that a power loss may leave.
//
// disk_log.cpp replaces the functions of the C library that create, write, sync, rename and remove
// files, and forwards them. A disk after a power loss holds everything that was synced before, and
// of the rest any part: writes to a file may be absent or be zeros, names may be absent, in any
// order. A rename or an exchange of names in one folder happens as a whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace atoll_test {

// One call that changed the disk.
struct DiskCall {
  enum class Kind {
    create,  // a file
    folder,  // a new folder
    write,
    sync,  // a file or folder
    rename,
    exchange,
    remove
  };
  Kind kind;
  std::string path, second;  // relative to the watched folder
  std::uint64_t offset = 0;
  std::string bytes;
};

// Whether the process pretends that renameat2() cannot exchange names.
enum class Exchange {
  possible,
  impossible
};

// Begins to log below `folder`, an absolute path without links. One log at a time.
void watch_disk(const std::filesystem::path& folder, Exchange exchange);
std::size_t disk_calls();  // number of calls so far
std::vector<DiskCall> stop_watching();

// Calls `examine` with each different disk that a power loss may leave after the first `calls`
// calls of the log, written below `folder`.
class DiskReplay {
 public:
  explicit DiskReplay(const std::vector<DiskCall>& log);
  void after(std::size_t calls, const std::filesystem::path& folder,
             const std::function<void()>& examine);

 private:
  struct Entry {
    std::size_t folder;
    std::string name;
    int node;  // -1: the name is removed
  };
  // The kind of change that one call makes: names, or the bytes of a file.
  struct Change {
    std::vector<Entry> entries;
    int file = -1;
    std::uint64_t offset = 0;
    std::string bytes;
    std::size_t call = 0;
    std::size_t synced = SIZE_MAX;  // the call that made the change durable
  };
  enum class Fate {
    kept,
    lost,
    zeros  // the length of a write is on the disk, but not its bytes
  };
  struct Node {
    bool is_folder;
    std::map<std::string, int> entries;
    std::string bytes;
  };
  using Disk = std::vector<Node>;

  void apply(const DiskCall& call, std::size_t number, Disk& live);
  void add_sync(const DiskCall& call, std::size_t number, const Disk& live);
  Disk disk_after(std::size_t calls, const std::function<Fate(const Change&)>& fate) const;
  static void write(const Disk& disk, std::size_t node, const std::filesystem::path& folder);
  static std::string text_of(const Disk& disk, std::size_t node);

  std::vector<Change> changes_;
  std::vector<bool> is_folder_;  // of each node
  std::set<std::string> seen_;   // disks that were examined, each with the number of calls
};

}  // namespace atoll_test
