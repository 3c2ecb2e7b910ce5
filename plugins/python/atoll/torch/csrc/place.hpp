// Types that backend.cpp, collectives.cpp and exchange.cpp share.
#pragma once

#include "backend.hpp"

namespace atoll_torch {

// The communicator and the stream of one call.
struct Backend::Place {
  atoll_communicator* comm;
  atoll_stream* stream;
};

struct Backend::Batch {
  std::vector<atoll_message> messages{};
  Tensors tensors{}, received{};
  std::vector<std::function<void()>> finish{};
  std::vector<c10::intrusive_ptr<c10d::Work>> works{};
};

}  // namespace atoll_torch
