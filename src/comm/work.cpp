#include <fmt/core.h>

#include "comm/work_state.hpp"

namespace atoll_v1::atoll {

void Work::State::fail(const Error& reason) {
  const std::lock_guard lock(mutex);
  if (!error) error = reason;
  failed = true;
}

void Work::State::check() {
  if (!failed) return;
  const std::lock_guard lock(mutex);
  throw *error;
}

void Work::wait(Stream& stream) const {
  if (!state_) return;
  state_->check();
  stream.wait(state_->event, WaitReason::communication);
}

void Work::synchronize() const {
  if (!state_) return;
  try {
    state_->event.synchronize();
  } catch (...) {
    state_->check();  // the operation's own error says more than the error of its stream
    throw;
  }
  state_->check();
}

bool Work::done() const { return !state_ || state_->event.happened(); }

Work Work::local_copy(ConstView src, View dst, Stream& stream) {
  if (src.dtype != dst.dtype || src.count != dst.count) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a collective of one rank: {} elements of {} into {} of {}", src.count,
                            atoll::name(src.dtype), dst.count, atoll::name(dst.dtype)));
  }
  const auto from = reinterpret_cast<std::uintptr_t>(src.data),
             to = reinterpret_cast<std::uintptr_t>(dst.data);
  if (from != to && from < to + dst.bytes() && to < from + src.bytes()) {
    throw Error(ErrorCode::invalid_argument,
                "a collective of one rank: src and dst overlap in part");
  }
  if (src.data != dst.data) stream.copy(dst.data, src.data, dst.bytes());
  auto state = std::make_shared<State>();
  state->event = stream.record();
  return Work(std::move(state));
}

}  // namespace atoll_v1::atoll
