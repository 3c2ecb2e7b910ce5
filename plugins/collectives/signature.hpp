// A signature describes the operation that a rank has called. Ranks compare signatures before any
// data moves, so that a mismatch is reported instead of corrupting data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "atoll/plugin.h"
#include "sdk/guard.hpp"
#include "sdk/operation.hpp"

namespace atoll_collectives {

using namespace atoll_sdk;

// Sent in the byte order of the machine: all ranks of a job run on one architecture.
struct Signature {
  std::uint32_t magic;
  std::int32_t kind;   // ATOLL_SEND on both sides of a message
  std::int32_t dtype;  // -1 if unused by the kind, as for op and root
  std::int32_t op;
  std::int32_t root;
  std::uint32_t layout;  // hash of the counts of a _v form
  std::uint64_t count;
  std::uint64_t ordinal;   // number of the collective in the communicator, or of the message
                           // between the two ranks
  std::uint64_t sequence;  // atoll_operation::sequence, for texts only: ranks count messages
                           // differently
  double factor;           // factor of the sending rank; ranks may differ
};
static_assert(sizeof(Signature) == 56);

constexpr std::uint32_t signature_magic = 0x4c4f5441;  // "ATOL"

Signature make_signature(const atoll_operation& operation, int nranks, std::uint64_t ordinal);
bool agree(const Signature& a, const Signature& b) noexcept;
// Equal for signatures that agree, different for signatures that differ in one field. Signatures
// that differ in several fields collide with a probability of about 2^-64.
std::uint64_t digest(const Signature& signature) noexcept;
// "all_reduce 42 (1024 x f32, sum)"
std::string describe(const Signature& signature);
// Throws Error(ATOLL_MISMATCH). `mine` and `theirs` name the two ranks.
[[noreturn]] void throw_mismatch(const std::string& communicator, const std::string& mine,
                                 const Signature& my_call, const std::string& theirs,
                                 const Signature& their_call);

}  // namespace atoll_collectives
