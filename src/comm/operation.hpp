// One operation of a communicator, as a caller or a fallback describes it to a backend, and the
// state behind a Work.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"
#include "atoll/plugin.h"
#include "atoll/plugin_names.hpp"
#include "flight/recorder.hpp"

namespace atoll_v1::atoll {

struct Operation {
  std::int32_t kind;  // ATOLL_ALL_GATHER ... of plugin.h
  ConstView src;
  View dst;
  std::uint64_t count;  // elements, as plugin.h counts them for this kind
  DType dtype;
  Reduction reduction = ReduceOp::sum;
  int peer = 0;                         // root, or the other rank of a send or recv
  std::vector<std::uint64_t> counts{};  // elements by rank, for the _v kinds only
  std::int32_t part_of = -1;            // kind that the user called; -1 when it is this kind

  bool is_message() const { return atoll_abi::is_message(kind); }
  FlightCall flight_call() const { return {kind, count, dtype, reduction.op, peer, part_of}; }
};

inline bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
inline bool is_integer(DType dtype) {
  return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
}

// The operation is complete when `event` has happened. An error is stored before the event happens.
struct Work::State {
  Event event;
  std::optional<Operation> operation;  // the only operation of this Work, until it has run
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::optional<Error> error;

  void fail(const Error& reason);  // keeps the first reason
  void check();                    // throws the error if one is known
};

}  // namespace atoll_v1::atoll
