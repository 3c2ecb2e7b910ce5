#include "sdk/signature.hpp"

#include <fmt/format.h>

#include "sdk/describe.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk {
namespace {

// FNV-1a (Fowler, Noll, Vo) over whole numbers.
std::uint32_t layout_of(const std::uint64_t* counts, int nranks) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (int rank = 0; rank < nranks; ++rank) hash = (hash ^ counts[rank]) * 0x100000001b3u;
  return static_cast<std::uint32_t>(hash ^ (hash >> 32));
}

}  // namespace

Signature make_signature(const atoll_operation& operation, int nranks, std::uint64_t ordinal) {
  const bool barrier = operation.kind == ATOLL_BARRIER;
  Signature s{};
  s.magic = signature_magic;
  s.kind = operation.kind == ATOLL_RECV ? ATOLL_SEND : operation.kind;
  s.dtype = barrier ? -1 : operation.dtype;
  s.op = reduces(operation.kind) ? operation.op : -1;
  s.root = has_root(operation.kind) ? operation.peer : -1;
  s.layout = is_uneven(operation.kind) ? layout_of(operation.counts, nranks) : 0;
  s.count = barrier ? 0 : operation.count;
  s.ordinal = ordinal;
  s.sequence = operation.sequence;
  s.factor = factor_of(operation);
  return s;
}

bool agree(const Signature& a, const Signature& b) noexcept {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.layout == b.layout && a.count == b.count && a.ordinal == b.ordinal;
}

std::string describe(const Signature& s) {
  std::string text = fmt::format("{} {}", kind_name(s.kind), s.sequence);
  if (s.kind == ATOLL_BARRIER) return text;
  text += fmt::format(" ({} x {}", s.count, dtype_name(s.dtype));
  if (s.op >= 0) text += fmt::format(", {}", op_name(s.op));
  if (s.root >= 0) text += fmt::format(", root {}", s.root);
  if (s.layout != 0) text += fmt::format(", counts {:08x}", s.layout);
  return text + ")";
}

void throw_mismatch(const std::string& communicator, const std::string& mine,
                    const Signature& my_call, const std::string& theirs,
                    const Signature& their_call) {
  const auto ordinals =
      my_call.ordinal == their_call.ordinal
          ? std::string()
          : fmt::format(" (numbers {} and {} of their kind)", my_call.ordinal, their_call.ordinal);
  throw Error(ATOLL_MISMATCH,
              fmt::format("communicator {}: {} called {} where {} called {}{}", communicator, mine,
                          describe(my_call), theirs, describe(their_call), ordinals));
}

}  // namespace atoll_sdk
