// The label of the operations that a thread enqueues. Backends on CPU memory compare it between
// ranks, so that two operations of one size in another order are not taken for each other.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Labels the operations that this thread enqueues while the object exists. Labels of scopes within
// each other are joined: "train" and "layers.0" give "train layers.0". An empty text adds nothing.
class OperationLabel {
 public:
  explicit OperationLabel(std::string_view text) : outer_(std::exchange(innermost, this)) {
    if (outer_) text_ = outer_->text_;
    if (!text_.empty() && !text.empty()) text_ += ' ';
    text_ += text;
  }
  OperationLabel(const OperationLabel&) = delete;
  OperationLabel& operator=(const OperationLabel&) = delete;
  ~OperationLabel() { innermost = outer_; }

  static std::string of_this_thread() { return innermost ? innermost->text_ : std::string(); }

 private:
  static inline thread_local const OperationLabel* innermost = nullptr;

  const OperationLabel* outer_;
  std::string text_;
};

}  // namespace atoll_v1::atoll
