// Loads a shared library on first use, so that one build runs with and without it.
#pragma once

#include <string>
#include <string_view>

namespace train::cuda {

class Library {
 public:
  // Throws Error(not_found) if the library is missing; `needed_for` is part of the message.
  Library(std::string name, std::string_view needed_for);

  template <class Function>
  Function* find(const char* symbol) const {
    return reinterpret_cast<Function*>(address(symbol));
  }
  void* handle() const noexcept { return handle_; }

 private:
  void* address(const char* symbol) const;

  std::string name_;
  void* handle_;  // never closed, because the library has threads and state
};

}  // namespace train::cuda
