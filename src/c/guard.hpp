// What all functions of the C API share: arguments are checked, and exceptions become a status and
// the text of atoll_last_error().
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "atoll/atoll.h"
#include "atoll/error.hpp"

namespace atoll_v1::atoll::c {

// An argument that only the C API can get wrong. The text of the error names the function as well.
struct BadArgument {
  const char* name;
  std::string why = "is NULL";
};

// Makes the exception that is being handled the last error of this thread, and returns its status.
// libatoll_planner calls it too.
ATOLL_API atoll_status status_of_exception(const char* function) noexcept;

// Calls `body`, and turns an exception into a status and the text of atoll_last_error().
template <class Body>
atoll_status guard(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  try {
    std::forward<Body>(body)();
    return ATOLL_OK;
  } catch (...) {
    return status_of_exception(function);
  }
}

// Throws BadArgument for NULL.
template <class T>
T& at(T* pointer, const char* name) {
  if (pointer == nullptr) throw BadArgument{name};
  return *pointer;
}
inline std::string text(const char* argument, const char* name) { return &at(argument, name); }
inline std::string text_or_empty(const char* argument) { return argument ? argument : ""; }

// Makes a handle of the object that `body` returns. The caller of the API owns it.
template <class Handle, class Body>
atoll_status create(Handle** out, const char* name, Body&& body,
                    const char* function = __builtin_FUNCTION()) noexcept {
  return guard(
      [&] {
        Handle*& result = at(out, name);
        result = std::make_unique<Handle>(body()).release();
      },
      function);
}
// Destroys a handle.
template <class Handle>
void release(Handle* handle) noexcept {
  const std::unique_ptr<Handle> owner(handle);
}

// Returns a text that atoll_free() frees.
char* copy_of(const std::string& text);

// Reads a structure of a program that may have been compiled with an older or a newer header.
template <class T>
T options(const T* given, const char* name) {
  T known{};
  if (given == nullptr) return known;
  if (given->size < sizeof(given->size))
    throw BadArgument{name, "has no size: set its first member"};
  std::memcpy(&known, given, std::min(given->size, sizeof(T)));
  return known;
}
// Writes those members of a structure that the program's version of the header has.
template <class T>
void fill(T* out, const char* name, T value) {
  value.size = at(out, name).size;
  if (value.size < sizeof(value.size)) throw BadArgument{name, "has no size: set its first member"};
  std::memcpy(out, &value, std::min(value.size, sizeof(T)));
}

// Passes the outcome of an operation to a callback of the program.
inline std::function<void(const std::optional<Error>&)> outcome(atoll_done_fn callback,
                                                                void* context) {
  at(callback, "callback");
  return [callback, context](const std::optional<Error>& error) {
    callback(context, error ? static_cast<atoll_status>(error->code()) : ATOLL_OK,
             error ? error->what() : "");
  };
}

}  // namespace atoll_v1::atoll::c
