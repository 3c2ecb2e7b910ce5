// Owners of libibverbs objects, and its errors as exceptions.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <memory>
#include <string_view>

#include "sdk/backend.hpp"

namespace atoll_verbs_backend {

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* object) const noexcept {
    destroy(object);
  }
};
using Context = std::unique_ptr<ibv_context, Destroy<ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Destroy<ibv_dealloc_pd>>;
using CompletionChannel = std::unique_ptr<ibv_comp_channel, Destroy<ibv_destroy_comp_channel>>;
using CompletionQueue = std::unique_ptr<ibv_cq, Destroy<ibv_destroy_cq>>;
using ReceiveQueue = std::unique_ptr<ibv_srq, Destroy<ibv_destroy_srq>>;
using QueuePair = std::unique_ptr<ibv_qp, Destroy<ibv_destroy_qp>>;
using Registration = std::unique_ptr<ibv_mr, Destroy<ibv_dereg_mr>>;

// Returns an error for a call of libibverbs that failed with `error`, an errno value. Names the
// limits of the process that usually cause it.
atoll_sdk::Error verbs_error(std::string_view what, int error);

// Returns `object`; throws verbs_error() with errno if it is null.
template <class T>
T* checked(T* object, std::string_view what) {
  if (object == nullptr) throw verbs_error(what, errno);
  return object;
}

}  // namespace atoll_verbs_backend
