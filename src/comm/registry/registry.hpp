// Finds and loads backends. load_plugin() keeps the list of loaded plugins, which is the only
// mutable global variable of the library. A shared object is opened once per process and never
// closed, because its threads and callbacks may outlive every other object.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// A loaded backend. If the plugin has a smaller table than this version of plugin.h, the remaining
// slots of `table` are null.
struct Plugin {
  std::string name;
  std::filesystem::path file;
  atoll_backend table{};
};

// Opens the plugin `file`, unless it is already open. Throws Error(not_found) with the loader's
// reason when the file cannot be opened, and Error(mismatch) for a different major ABI version or
// an incomplete table. The reference stays valid until the process exits.
const Plugin& load_plugin(const std::filesystem::path& file);

// Returns the libatoll-*.so files in config.plugin_path and then in the `atoll` folder beside this
// library. If the program links the library statically, that folder is lib/atoll in the program's
// prefix. If several files have the same name, only the first is returned.
std::vector<std::filesystem::path> find_plugins(const Config& config);

// Returns the message of the calling thread's last failure in `plugin`.
std::string last_error(const Plugin& plugin, const atoll_comm* comm);

// Call this when a communicator of the World has opened on the plugin. When the last World ends for
// which it was called, the plugin's shutdown() is called.
void use(World& world, const Plugin& plugin);

// Returns the services that libatoll offers to plugins: log, store and the choice of adapters
// (atoll_core in plugin.h). The table must not outlive `world`.
atoll_core core_services(World& world);

}  // namespace atoll_v1::atoll
