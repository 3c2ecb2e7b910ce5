// The C handles of atoll as C++ objects, and its statuses as exceptions of torch.
#pragma once

#include <atoll/atoll.h>
#include <c10/util/Exception.h>

#include <memory>
#include <string>

namespace atoll_torch {

template <class T>
struct Closer;
#define ATOLL_CLOSER(type)                                              \
  template <>                                                           \
  struct Closer<atoll_##type> {                                         \
    void operator()(atoll_##type* p) const { atoll_##type##_close(p); } \
  }
ATOLL_CLOSER(config);
ATOLL_CLOSER(world);
ATOLL_CLOSER(device);
ATOLL_CLOSER(stream);
ATOLL_CLOSER(communicator);
ATOLL_CLOSER(work);
ATOLL_CLOSER(buffer);
#undef ATOLL_CLOSER
template <class T>
using Handle = std::unique_ptr<T, Closer<T>>;

// Throws DistBackendError: "atoll: WHERE: STATUS: TEXT".
[[noreturn]] void fail(atoll_status status, const std::string& text, const std::string& where = "");
inline void check(atoll_status status) {
  if (status != ATOLL_OK) fail(status, atoll_last_error());
}

// Calls a function of the C API that stores a handle through its last argument.
template <class T, class... Parameters, class... Arguments>
Handle<T> make(atoll_status (*open)(Parameters...), Arguments... arguments) {
  T* result = nullptr;
  check(open(arguments..., &result));
  return Handle<T>(result);
}

}  // namespace atoll_torch
