#include "comm/registry/registry.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "core/errors.hpp"
#include "core/folder.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t required_size =
    offsetof(atoll_backend, shutdown) + sizeof(atoll_backend::shutdown);

struct Loaded {
  Plugin plugin;
  int users = 0;
};

struct Registry {
  std::mutex mutex;
  std::map<std::filesystem::path, std::unique_ptr<Loaded>> plugins;
};

// Never destroyed: threads of the library may still run when a program calls exit().
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

std::unique_ptr<Loaded> open_plugin(const std::filesystem::path& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* reason = dlerror();
    throw make_error(ErrorCode::not_found, "cannot load backend {}: {}", file.string(),
                     reason ? reason : "no reason given");
  }
  const auto entry =
      reinterpret_cast<atoll_backend_entry_fn>(dlsym(handle, "atoll_backend_entry_v1"));
  const atoll_backend* table = entry ? entry() : nullptr;
  const auto refuse = [&](const std::string& why) {
    throw make_error(ErrorCode::mismatch, "backend {} {}", file.string(), why);
  };
  if (!table) refuse("does not export atoll_backend_entry_v1");
  if (table->size < offsetof(atoll_backend, name) || table->abi_major != ATOLL_ABI_MAJOR) {
    refuse(
        fmt::format("was built for plugin ABI {}, but this library has ABI {}: rebuild the backend",
                    table->abi_major, ATOLL_ABI_MAJOR));
  }
  if (table->size < required_size) {
    refuse(fmt::format("has a table of {} bytes, but at least {} are required", table->size,
                       required_size));
  }
  if (!table->name || !table->probe || !table->capability || !table->open || !table->submit ||
      !table->abort || !table->close || !table->last_error || !table->shutdown) {
    refuse("has a null pointer in a required slot of its table");
  }
  auto loaded = std::make_unique<Loaded>();
  std::memcpy(&loaded->plugin.table, table, std::min(table->size, sizeof(atoll_backend)));
  loaded->plugin.name = table->name;
  loaded->plugin.file = file;
  log::debug("loaded backend {} from {}", loaded->plugin.name, file.string());
  return loaded;
}

// Returns the folder of the installed backends: `atoll` beside libatoll.so. If atoll is linked
// statically, the folder is lib/atoll in the prefix of the program.
std::filesystem::path installed_folder() {
  Dl_info info{};
  link_map* object = nullptr;  // shared object or program that contains this function
  if (!dladdr1(reinterpret_cast<const void*>(&installed_folder), &info,
               reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) ||
      !info.dli_fname || !object)
    return {};
  // The dynamic linker gives the program an empty l_name, and argv[0] as dli_fname.
  const bool is_program = *object->l_name == '\0';
  std::error_code ignored;
  const auto file =
      std::filesystem::canonical(is_program ? "/proc/self/exe" : info.dli_fname, ignored);
  const auto folder = file.parent_path();
  return is_program ? folder.parent_path() / ATOLL_LIBRARY_FOLDER / "atoll" : folder / "atoll";
}

std::vector<std::filesystem::path> plugin_folders(const Config& config) {
  std::vector<std::filesystem::path> folders;
  for (const std::string_view folder : split(config.plugin_path, ':')) {
    if (!folder.empty()) folders.emplace_back(folder);
  }
  folders.push_back(installed_folder());
  return folders;
}

}  // namespace

const Plugin& load_plugin(const std::filesystem::path& file) {
  std::error_code ignored;
  const auto canonical = std::filesystem::weakly_canonical(file, ignored);
  const std::lock_guard lock(registry().mutex);
  auto& plugins = registry().plugins;
  auto known = plugins.find(canonical);
  if (known == plugins.end()) known = plugins.emplace(canonical, open_plugin(canonical)).first;
  return known->second->plugin;
}

std::vector<std::filesystem::path> find_plugins(const Config& config) {
  std::vector<std::filesystem::path> files;
  std::set<std::string> seen;
  for (const auto& folder : plugin_folders(config)) {
    std::error_code problem;
    std::vector<std::filesystem::path> found;
    const std::vector<std::string> names = names_in(folder, problem);
    require(!problem || problem == std::errc::no_such_file_or_directory ||
                problem == std::errc::not_a_directory,
            ErrorCode::io, "cannot look for backends in {}: {}", folder.string(),
            problem.message());
    for (const std::string& name : names) {
      if (name.starts_with("libatoll-") && name.ends_with(".so")) found.push_back(folder / name);
    }
    std::sort(found.begin(), found.end());
    for (auto& file : found) {
      if (seen.insert(file.filename().string()).second) files.push_back(std::move(file));
    }
  }
  return files;
}

std::string last_error(const Plugin& plugin, const atoll_comm* comm) {
  const char* text = plugin.table.last_error(comm);
  return text && *text ? text : "backend " + plugin.name + " gave no reason";
}

void use(World& world, const Plugin& plugin) {
  WorldInternals::companion(world, "backend " + plugin.name, [&] {
    const std::lock_guard lock(registry().mutex);
    ++registry().plugins.at(plugin.file)->users;
    world.at_exit([&plugin](bool failed) {
      {
        const std::lock_guard inner(registry().mutex);
        if (--registry().plugins.at(plugin.file)->users > 0) return;
      }
      plugin.table.shutdown(failed ? 1 : 0);
    });
    return std::shared_ptr<void>();
  });
}

}  // namespace atoll_v1::atoll
