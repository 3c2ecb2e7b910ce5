#include <fmt/core.h>

#include "atoll/schedule.hpp"

namespace atoll_v1::atoll {

Rotation::Rotation(std::vector<Buffer> buffers) {
  if (buffers.empty()) throw Error(ErrorCode::invalid_argument, "Rotation: no buffers");
  for (Buffer& buffer : buffers) turns_.push_back({.buffer = std::move(buffer)});
}

const Buffer& Rotation::next(Stream& writer) {
  if (taken_ - released_ == turns_.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Rotation: all of {} buffers are handed out: call release() first",
                            turns_.size()));
  }
  const Turn& turn = turns_[taken_++ % turns_.size()];
  writer.wait(turn.free);
  return turn.buffer;
}

void Rotation::release(const Event& after) {
  if (released_ == taken_) {
    throw Error(ErrorCode::invalid_argument, "Rotation: nothing to release");
  }
  turns_[released_++ % turns_.size()].free = after;
}

}  // namespace atoll_v1::atoll
