#include "model/cuda/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>

#include "atoll/error.hpp"

namespace train::cuda {

Library::Library(std::string name, std::string_view needed_for)
    : name_(std::move(name)), handle_(::dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* const why = ::dlerror();
  throw atoll::Error(
      atoll::ErrorCode::not_found,
      fmt::format("{} is needed for {} but was not found ({}): install it or add its folder to "
                  "LD_LIBRARY_PATH; Python's NVIDIA packages contain it in nvidia/*/lib",
                  name_, needed_for, why ? why : "no reason given"));
}

void* Library::address(const char* symbol) const {
  void* const found = ::dlsym(handle_, symbol);
  if (found != nullptr) return found;
  throw atoll::Error(
      atoll::ErrorCode::not_found,
      fmt::format("{} has no {}: install the version that this build expects", name_, symbol));
}

}  // namespace train::cuda
