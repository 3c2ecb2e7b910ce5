// How move-only classes of this library keep their implementation.
#pragma once

#include <string>
#include <utility>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

// Owns the implementation of one object. Pointer is std::unique_ptr or std::shared_ptr. Moving from
// the object leaves it without an implementation; * and -> then throw Error(invalid_argument).
template <class Pointer>
class Implementation {
 public:
  using Value = typename Pointer::element_type;

  // `name` is a literal: the name of the object's class in messages.
  Implementation(Pointer pointer, const char* name) noexcept
      : pointer_(std::move(pointer)), name_(name) {}

  Value& operator*() const {
    if (!pointer_) refuse();
    return *pointer_;
  }
  Value* operator->() const { return &**this; }
  explicit operator bool() const noexcept { return pointer_ != nullptr; }

 private:
  [[noreturn]] void refuse() const {
    throw Error(ErrorCode::invalid_argument,
                std::string("this ") + name_ +
                    " was moved from: use the object that it was moved to, or assign to it first");
  }

  Pointer pointer_;
  const char* name_;
};

}  // namespace atoll_v1::atoll
