// Finds and loads backends. The only mutable global of the library is the list behind
// load_plugin(): a shared object is opened once per process and never closed, because its threads
// and callbacks may outlive everything else.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "atoll/config.hpp"
#include "atoll/plugin.h"

namespace atoll_v1::atoll {

// A loaded backend. Slots of `table` beyond the plugin's own size are NULL.
struct Plugin {
  std::string name;
  std::filesystem::path file;
  atoll_backend table{};
};

// Opens `file`, or returns it if it is open. Throws Error(not_found) when it cannot be opened, with
// the loader's reason, and Error(mismatch) for a different major version or a table that ends
// before `shutdown`. The reference stays valid for the life of the process.
const Plugin& load_plugin(const std::filesystem::path& file);

// The libatoll-*.so of config.plugin_path, then of the `atoll` folder beside this library; of equal
// file names the first counts.
std::vector<std::filesystem::path> find_plugins(const Config& config);

// The message of the calling thread's last failure in `plugin`.
std::string last_error(const Plugin& plugin, const atoll_comm* comm);

// Counts users of a plugin, so that shutdown() is called once, when the last World that opened a
// communicator on it ends.
void retain(const Plugin& plugin);
void release(const Plugin& plugin, bool failed);

}  // namespace atoll_v1::atoll
