// Reads environment variables, the folder for the user's caches, and the name of the host.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace train {

// The value of a variable; "" if it is not set.
inline std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Whether a launcher has made this process rank 0, or no launcher has started it.
inline bool is_first_rank() {
  for (const char* name :
       {"ATOLL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"}) {
    if (const std::string rank = variable(name); !rank.empty()) return rank == "0";
  }
  return true;
}

// The name of this host; "" if it cannot be read.
inline std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

// XDG_CACHE_HOME, otherwise ~/.cache.
inline std::filesystem::path user_cache() {
  const std::string caches = variable("XDG_CACHE_HOME");
  return caches.empty() ? std::filesystem::path(variable("HOME")) / ".cache"
                        : std::filesystem::path(caches);
}

}  // namespace train
