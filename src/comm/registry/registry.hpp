// Finds and loads backends. load_plugin() keeps the only mutable global of the library, the list of
// loaded plugins: a shared object is opened once per process and never closed, because its threads
// and callbacks may outlive everything else.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "atoll/config.hpp"
#include "atoll/plugin.h"

namespace atoll_v1::atoll {

// A loaded backend. Slots of `table` beyond the plugin's own size are null.
struct Plugin {
  std::string name;
  std::filesystem::path file;
  atoll_backend table{};
};

// Opens `file`, unless it is open already. Throws Error(not_found) with the loader's reason when it
// cannot be opened, and Error(mismatch) for a different major version or a table that ends before
// `shutdown`. The reference stays valid until the process exits.
const Plugin& load_plugin(const std::filesystem::path& file);

// Returns the libatoll-*.so files in config.plugin_path and then in the `atoll` folder beside this
// library. The first file of a name hides later ones.
std::vector<std::filesystem::path> find_plugins(const Config& config);

// The message of the calling thread's last failure in `plugin`.
std::string last_error(const Plugin& plugin, const atoll_comm* comm);

// Counts users of a plugin, so that shutdown() is called once, when the last World that opened a
// communicator on it ends.
void retain(const Plugin& plugin);
void release(const Plugin& plugin, bool failed);

}  // namespace atoll_v1::atoll
