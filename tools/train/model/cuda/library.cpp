#include "model/cuda/library.hpp"

#include <dlfcn.h>

#include <utility>

#include "fail.hpp"

namespace train::cuda {

Library::Library(std::string name, std::string_view needed_for)
    : name_(std::move(name)), handle_(::dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* const why = ::dlerror();
  fail(ErrorCode::not_found,
       "{} is needed for {} but was not found ({}): install it or add its folder to "
       "LD_LIBRARY_PATH; Python's NVIDIA packages contain it in nvidia/*/lib",
       name_, needed_for, why ? why : "no reason given");
}

void* Library::address(const char* symbol) const {
  void* const found = ::dlsym(handle_, symbol);
  if (found != nullptr) return found;
  fail(ErrorCode::not_found, "{} has no function {}: install the version that this build expects",
       name_, symbol);
}

}  // namespace train::cuda
