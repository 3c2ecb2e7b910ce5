// One operation of a communicator, as a user or a fallback passes it to a backend, and the state of
// a Work.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"
#include "atoll/plugin.h"
#include "atoll/plugin_names.hpp"
#include "flight/recorder.hpp"

namespace atoll_v1::atoll {

class Watchdog;

struct Operation {
  std::int32_t kind;  // ATOLL_ALL_GATHER or another kind of plugin.h
  ConstView src;
  View dst;
  std::uint64_t count;  // number of elements, which plugin.h defines for each kind
  DType dtype;
  Reduction reduction = ReduceOp::sum;
  int peer = 0;  // root of a collective, or other rank of a send or recv
  // Number of elements of each rank; used by the _v kinds only. In all_to_all_v, the number of
  // elements that this rank sends to each rank.
  std::vector<std::uint64_t> counts{};
  // Kind of the collective of which this operation is a part; -1 when it is not a part of another.
  std::int32_t part_of = -1;
  // Number of elements that this rank receives from each rank; used by all_to_all_v only.
  std::vector<std::uint64_t> recv_counts{};
  std::chrono::milliseconds timeout{-1};  // -1: the time limit of the communicator
  int tag = 0;                            // of a send or recv
  std::string label{};  // set when the operation is enqueued (core/operation_label.hpp)

  bool is_message() const { return atoll_abi::is_message(kind); }
  FlightCall flight_call() const { return {kind, count, dtype, reduction.op, peer, part_of}; }
};

inline bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
inline bool is_integer(DType dtype) {
  return atoll_abi::is_integer(static_cast<std::int32_t>(dtype));
}

// The operation is complete when `event` has happened. An error is stored before the event happens.
struct Work::State {
  Event event;
  std::optional<Operation> operation;  // set only by BackendCommunicator::submit() on CPU memory
  std::atomic<bool> failed{false};
  atoll_arrival arrived{ATOLL_ANY, ATOLL_ANY};  // source and tag of a single receive with tags
  std::mutex mutex;
  std::optional<Error> error;

  std::weak_ptr<Watchdog> watchdog{};  // of operations on a GPU

  void fail(const Error& reason);  // stores the first failure and ignores later ones
  std::optional<Error> failure();  // the stored error
  void check();                    // throws the stored error, if there is one
};

}  // namespace atoll_v1::atoll
