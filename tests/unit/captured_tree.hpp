// A temporary folder that replaces /sys, /proc, /dev and /etc for one test.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "sources/source.hpp"

namespace machines {

class CapturedTree {
 public:
  CapturedTree()
      : root_(std::filesystem::temp_directory_path() / fmt::format("atoll_tree_{}", getpid())) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  CapturedTree(const CapturedTree&) = delete;
  CapturedTree& operator=(const CapturedTree&) = delete;
  ~CapturedTree() { std::filesystem::remove_all(root_); }

  // Writes a file below the folder, for example "sys/class/net/eth0/mtu".
  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << text;
  }
  // Writes files of one line each into a folder, such as "lid 0x1f; counters/symbol_error 12".
  void write_lines(const std::string& folder, std::string_view files) const {
    while (!files.empty()) {
      const std::string_view one = files.substr(0, files.find("; "));
      files.remove_prefix(std::min(one.size() + 2, files.size()));
      const std::size_t space = one.find(' ');
      write(folder + std::string(one.substr(0, space)), std::string(one.substr(space + 1)) + '\n');
    }
  }
  void make_folder(const std::string& name) const {
    std::filesystem::create_directories(root_ / name);
  }
  void link(const std::string& name, const std::string& target) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::filesystem::create_symlink(root_ / target, root_ / name);
  }
  void remove(const std::string& name) const { std::filesystem::remove_all(root_ / name); }

  // Adds a PCI device and the bridges above it, and returns the folder of the device. `way` is a
  // path as in sysfs, such as "pci0000:15/0000:15:01.0/0000:16:00.0".
  std::string add_pci(const std::string& way) const {
    const std::string folder = "sys/devices/" + way;
    make_folder(folder);
    const std::string busid = std::filesystem::path(way).filename().string();
    link("sys/bus/pci/devices/" + busid, folder);
    return folder + "/";
  }

  std::string path(const std::string& name) const { return (root_ / name).string(); }

  atoll::topology_sources::LiveRequest request() const {
    return {.host_id = "h",
            .host_name = "h",
            .sysfs = path("sys"),
            .procfs = path("proc"),
            .dev = path("dev"),
            .etc = path("etc"),
            .nvml = path("no such library")};
  }

 private:
  std::filesystem::path root_;
};

}  // namespace machines
