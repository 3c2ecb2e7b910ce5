// A shared library that is looked for when it is first needed: one build runs with and without it.
#pragma once

#include <string>
#include <string_view>

namespace train::cuda {

class Library {
 public:
  // Throws Error(not_found) that names the library and says that it is `needed_for`.
  Library(std::string name, std::string_view needed_for);

  template <class Function>
  void find(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address(symbol));
  }
  const std::string& name() const noexcept { return name_; }
  void* handle() const noexcept { return handle_; }

 private:
  void* address(const char* symbol) const;

  std::string name_;
  void* handle_;  // never closed: it has threads and state of its own
};

}  // namespace train::cuda
