// The label of the operations that a thread enqueues. Backends on CPU memory compare it between
// ranks, and so notice ranks that call two operations of equal size in different orders.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Labels the operations that this thread enqueues while the object exists. Labels of scopes within
// each other are joined: "train" and "layers.0" give "train layers.0". An empty text adds nothing.
// The text must outlive the object.
class OperationLabel {
 public:
  explicit OperationLabel(std::string_view text)
      : outer_(std::exchange(innermost, this)), text_(text) {}
  OperationLabel(const OperationLabel&) = delete;
  OperationLabel& operator=(const OperationLabel&) = delete;
  ~OperationLabel() { innermost = outer_; }

  static std::string of_this_thread() {
    std::string joined;
    for (const OperationLabel* label = innermost; label; label = label->outer_) {
      if (!joined.empty() && !label->text_.empty()) joined.insert(0, " ");
      joined.insert(0, label->text_);
    }
    return joined;
  }

 private:
  static inline thread_local const OperationLabel* innermost = nullptr;

  const OperationLabel* outer_;
  std::string_view text_;
};

}  // namespace atoll_v1::atoll
