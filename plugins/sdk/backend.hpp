// Code that every backend needs: errors, checks of operations, and the C table.
//
// Inside a backend, errors are C++ exceptions; at the C boundary guard() turns them into a status
// and one line of text. check_operation() checks the arguments of an operation, and describe()
// names it in errors. table_of() fills the C table from a class that represents an open
// communicator:
//   static std::int32_t probe(const atoll_group&)
//     returns the backend's preference, or throws Error
//   static std::int32_t capability(kind, dtype, op, memory)
//     returns 1 if the backend supports the combination, otherwise 0
//   static std::unique_ptr<Communicator> open(const atoll_core&, const atoll_group&)
//     opens a communicator
//   static constexpr std::int32_t memory_kind
//     kind of memory that holds the buffers
//   int rank() const, int size() const
//     rank of the caller in the group, and number of ranks
//   void submit(std::span<atoll_operation* const>)
//     performs one or more operations, whose arguments table_of() has checked
//   void abort() noexcept
//     may be called by any thread
// The destructor of the class closes the communicator. The backend itself sets the optional slots
// of the table.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "atoll/plugin.h"
#include "atoll/plugin_names.hpp"

namespace atoll_sdk {

class Error : public std::runtime_error {
 public:
  Error(atoll_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  atoll_status status() const noexcept { return status_; }

 private:
  atoll_status status_;
};

// Returns an Error with the status ATOLL_IO and the text "WHAT: MEANING", where MEANING describes
// the errno value `error`. If the process has no file descriptor left, the text states the remedy.
inline Error system_error(std::string_view what, int error) {
  const char* remedy = error == EMFILE ? ": no file descriptor is left; raise `ulimit -n`"
                       : error == ENFILE
                           ? ": the host has no file descriptor left; raise fs.file-max"
                           : "";
  return {ATOLL_IO, std::string(what) + ": " + std::generic_category().message(error) + remedy};
}

// Storage for the text that last_error() returns. The array has a fixed size, so that an
// out-of-memory error can be reported without allocating memory.
inline thread_local std::array<char, 2048> last_error_text{};

// Returns the text of the calling thread's most recent failure, or "" if nothing has failed.
inline const char* last_error() noexcept { return last_error_text.data(); }

// Stores the text for last_error(). Texts of 2,048 bytes and more are truncated.
inline void set_last_error(std::string_view message) noexcept {
  const std::size_t length = std::min(message.size(), last_error_text.size() - 1);
  std::copy_n(message.data(), length, last_error_text.data());
  last_error_text[length] = '\0';
}

// Stores the text of the exception that is being handled for last_error(), and returns the matching
// status. Must be called inside a catch block.
inline atoll_status record_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return ATOLL_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return ATOLL_INTERNAL;
  } catch (...) {
    set_last_error("unknown exception");
    return ATOLL_INTERNAL;
  }
}

// Runs `body` and converts any exception into a status and a text for last_error(). Every function
// in a backend's C table that returns a status wraps its work in guard().
template <typename Body>
atoll_status guard(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return ATOLL_OK;
  } catch (...) {
    return record_current_exception();
  }
}

using atoll_abi::dtype_name;
using atoll_abi::dtype_size;
using atoll_abi::has_root;
using atoll_abi::is_message;
using atoll_abi::is_uneven;
using atoll_abi::kind_name;
using atoll_abi::kind_of;
using atoll_abi::op_name;
using atoll_abi::reduces;

// Returns a text such as "all_reduce 17 (1000 x f32, 4000 bytes, sum)". The library adds the rank
// and the communicator to error texts, so this text contains neither.
inline std::string describe(const atoll_operation& operation) {
  std::string text =
      std::string(kind_name(operation.kind)) + " " + std::to_string(operation.sequence);
  if (operation.kind == ATOLL_BARRIER) return text;
  text += " (" + std::to_string(operation.count) + " x ";
  text += dtype_name(operation.dtype);
  text += ", " + std::to_string(operation.count * dtype_size(operation.dtype)) + " bytes";
  if (reduces(operation.kind)) (text += ", ") += op_name(operation.op);
  if (has_root(operation.kind)) text += ", root " + std::to_string(operation.peer);
  if (is_message(operation.kind)) text += ", peer " + std::to_string(operation.peer);
  return text + ")";
}

// Returns the label; "" if there is none.
inline std::string_view label_of(const atoll_operation& operation) noexcept {
  return operation.label != nullptr ? operation.label : "";
}

// Returns true if this kind, dtype and op exist and, for a reduction, the dtype can be reduced.
// The dtype is ignored for a barrier, and the op for a kind that does not reduce.
inline bool is_known(std::int32_t kind, std::int32_t dtype, std::int32_t op) noexcept {
  if (!atoll_abi::within(atoll_abi::kinds, kind)) return false;
  if (kind == ATOLL_BARRIER) return true;
  if (!reduces(kind)) return dtype_size(dtype) > 0;
  return atoll_abi::is_reducible(dtype, op);
}

namespace checks {

[[noreturn]] inline void refuse(const atoll_operation& operation, std::string_view why) {
  throw Error(ATOLL_INVALID_ARGUMENT, std::string(kind_name(operation.kind)) + " " +
                                          std::to_string(operation.sequence) + ": " +
                                          std::string(why));
}

inline void check_size(const atoll_operation& operation, int nranks) {
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const int blocks = is_uneven(operation.kind) ? 1 : nranks;
  const std::uint64_t unit = dtype_size(operation.dtype) * static_cast<std::uint64_t>(blocks);
  if (operation.count > limit / unit)
    refuse(operation, "the count is too large: sizes must stay below 2^63 bytes");
}

inline void check_counts(const atoll_operation& operation, int nranks) {
  if (operation.counts == nullptr) refuse(operation, "the counts are NULL");
  std::uint64_t sum = 0;
  for (int rank = 0; rank < nranks; ++rank) {
    if (operation.counts[rank] > operation.count)
      refuse(operation, "one of the counts exceeds `count`, which must be their sum");
    sum += operation.counts[rank];
  }
  if (sum != operation.count) refuse(operation, "the sum of the counts differs from `count`");
}

// Checks the recv_counts and dst of an all_to_all_v.
inline void check_received(const atoll_operation& operation, int rank, int nranks) {
  if (operation.recv_counts == nullptr) refuse(operation, "the recv_counts are NULL");
  const std::uint64_t limit = std::numeric_limits<std::int64_t>::max();
  std::uint64_t left = limit / dtype_size(operation.dtype);
  const std::uint64_t most = left;
  for (int peer = 0; peer < nranks; ++peer) {
    if (operation.recv_counts[peer] > left)
      refuse(operation, "the recv_counts are too large: sizes must stay below 2^63 bytes");
    left -= operation.recv_counts[peer];
  }
  if (left < most && operation.dst == nullptr) refuse(operation, "dst is NULL");
  if (operation.counts[rank] != operation.recv_counts[rank])
    refuse(operation, "the rank's count for itself differs between counts and recv_counts");
}

// Which buffers a rank must pass to an operation.
struct Sides {
  bool src = true;
  bool dst = true;
};

// Returns which buffers the rank must pass. The root of a broadcast may pass src or dst, and the
// other ranks need no src. In all_gather_v and gather_v a rank with a count of 0 needs no src; in
// reduce_scatter_v such a rank needs no dst. check_received() checks the dst of all_to_all_v.
inline Sides sides_of(const atoll_operation& operation, int rank) {
  const bool is_root = operation.peer == rank;
  switch (operation.kind) {
    case ATOLL_SEND:
      return {.dst = false};
    case ATOLL_RECV:
      return {.src = false};
    case ATOLL_BROADCAST:
      return {.src = is_root && operation.dst == nullptr,
              .dst = !is_root || operation.src == nullptr};
    case ATOLL_REDUCE:
    case ATOLL_GATHER:
      return {.dst = is_root};
    case ATOLL_SCATTER:
      return {.src = is_root};
    case ATOLL_ALL_GATHER_V:
      return {.src = operation.counts[rank] > 0};
    case ATOLL_REDUCE_SCATTER_V:
      return {.dst = operation.counts[rank] > 0};
    case ATOLL_GATHER_V:
      return {.src = operation.counts[rank] > 0, .dst = is_root};
    case ATOLL_ALL_TO_ALL_V:
      return {.dst = false};
    default:
      return {};
  }
}

inline void check_buffers(const atoll_operation& operation, int rank) {
  if (operation.count == 0) return;
  const Sides needed = sides_of(operation, rank);
  if (needed.src && operation.src == nullptr) refuse(operation, "src is NULL");
  if (needed.dst && operation.dst == nullptr) refuse(operation, "dst is NULL");
}

inline void check_factor(const atoll_operation& operation) {
  if (operation.factor == 1.0) return;
  const bool floating =
      atoll_abi::is_reducible(operation.dtype) && !atoll_abi::is_integer(operation.dtype);
  const bool sums = operation.op == ATOLL_SUM || operation.op == ATOLL_AVG;
  if (!reduces(operation.kind) || !floating || !sums) {
    refuse(operation,
           "a factor other than 1 is allowed only for sums and averages of floating types");
  }
}

}  // namespace checks

// Checks the arguments that rank `rank` of a group of `nranks` ranks passes to an operation: kind,
// dtype and op exist, the peer is in the group, the counts have the sum `count`, required buffers
// are not null, a factor is allowed, and sizes stay below 2^63 bytes. Throws
// Error(ATOLL_INVALID_ARGUMENT), or Error(ATOLL_UNSUPPORTED) if the buffers are not in `memory`.
inline void check_operation(const atoll_operation& operation, int rank, int nranks,
                            std::int32_t memory = ATOLL_MEMORY_CPU) {
  using namespace checks;
  if (!atoll_abi::within(atoll_abi::kinds, operation.kind)) {
    refuse(operation, "unknown kind of operation");
  }
  if (operation.memory != memory) {
    throw Error(ATOLL_UNSUPPORTED,
                std::string(kind_name(operation.kind)) + " " + std::to_string(operation.sequence) +
                    ": this backend supports " + (memory == ATOLL_MEMORY_CPU ? "CPU" : "GPU") +
                    " memory only");
  }
  if (operation.kind == ATOLL_BARRIER) return;
  if (dtype_size(operation.dtype) == 0) refuse(operation, "unknown dtype");
  if (reduces(operation.kind) && !atoll_abi::within(atoll_abi::ops, operation.op)) {
    refuse(operation, "unknown reduction");
  }
  if (reduces(operation.kind) && !atoll_abi::is_reducible(operation.dtype)) {
    refuse(operation, "8-bit floating-point elements cannot be reduced: reduce bf16 or f32");
  }
  const bool has_peer = has_root(operation.kind) || is_message(operation.kind);
  const bool is_any = operation.kind == ATOLL_RECV && operation.peer == ATOLL_ANY;
  if (has_peer && !is_any && (operation.peer < 0 || operation.peer >= nranks)) {
    refuse(operation, "peer " + std::to_string(operation.peer) +
                          " is invalid: the group has only " + std::to_string(nranks) + " ranks");
  }
  check_size(operation, nranks);
  if (is_uneven(operation.kind)) check_counts(operation, nranks);
  if (operation.kind == ATOLL_ALL_TO_ALL_V) check_received(operation, rank, nranks);
  check_factor(operation);
  check_buffers(operation, rank);
}

// comm_of() and handle_of() convert between an atoll_comm* and the backend's class: the handle is a
// pointer to an object of that class.
template <class Communicator>
Communicator& comm_of(atoll_comm* comm) {
  if (comm == nullptr) throw Error(ATOLL_INVALID_ARGUMENT, "the communicator is NULL");
  return *reinterpret_cast<Communicator*>(comm);
}
template <class Communicator>
atoll_comm* handle_of(std::unique_ptr<Communicator> comm) {
  return reinterpret_cast<atoll_comm*>(comm.release());
}

// Returns a table in which every required slot is set. Its shutdown() does nothing.
template <class Communicator>
constexpr atoll_backend table_of(const char* name) {
  atoll_backend table{};
  table.size = sizeof(atoll_backend);
  table.abi_major = ATOLL_ABI_MAJOR;
  table.abi_minor = ATOLL_ABI_MINOR;
  table.name = name;
  table.probe = [](const atoll_core*, const atoll_group* world) -> std::int32_t {
    std::int32_t preference = 0;
    const auto status = guard([&] {
      if (world == nullptr) throw Error(ATOLL_INVALID_ARGUMENT, "probe: world must not be NULL");
      preference = Communicator::probe(*world);
    });
    return status == ATOLL_OK ? preference : 0;
  };
  table.capability = [](std::int32_t kind, std::int32_t dtype, std::int32_t op,
                        std::int32_t memory) {
    return Communicator::capability(kind, dtype, op, memory);
  };
  table.open = [](const atoll_core* core, const atoll_group* group, atoll_comm** out) {
    return guard([&] {
      if (core == nullptr || group == nullptr || out == nullptr) {
        throw Error(ATOLL_INVALID_ARGUMENT, "open: core, group and out must not be NULL");
      }
      *out = handle_of(Communicator::open(*core, *group));
    });
  };
  table.submit = [](atoll_comm* comm, atoll_operation* const* operations, std::int32_t n) {
    return guard([&] {
      Communicator& open = comm_of<Communicator>(comm);
      if (n < 0 || (n > 0 && operations == nullptr)) {
        throw Error(ATOLL_INVALID_ARGUMENT, "submit: n is negative, or the operations are NULL");
      }
      if (n == 0) return;
      const std::span all(operations, static_cast<std::size_t>(n));
      for (const atoll_operation* operation : all) {
        if (operation == nullptr)
          throw Error(ATOLL_INVALID_ARGUMENT, "submit: an operation is NULL");
        check_operation(*operation, open.rank(), open.size(), Communicator::memory_kind);
        if (Communicator::capability(operation->kind, operation->dtype, operation->op,
                                     Communicator::memory_kind) == 0) {
          throw Error(ATOLL_UNSUPPORTED,
                      describe(*operation) + ": this backend does not support the operation");
        }
      }
      open.submit(all);
    });
  };
  table.abort = [](atoll_comm* comm) {
    if (comm != nullptr) comm_of<Communicator>(comm).abort();
  };
  table.close = [](atoll_comm* comm) {
    const std::unique_ptr<Communicator> owned(reinterpret_cast<Communicator*>(comm));
  };
  table.last_error = [](const atoll_comm*) { return last_error(); };
  table.shutdown = [](std::int32_t) {};
  return table;
}

}  // namespace atoll_sdk
