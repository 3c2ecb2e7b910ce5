// What a rank believes that an operation is: compared by all ranks before any data moves, so that
// ranks which disagree are told instead of mixing up their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "atoll/plugin.h"

namespace atoll_sdk {

// On the wire in the byte order of the machine; ranks of one job run on one architecture.
struct Signature {
  std::uint32_t magic;
  std::int32_t kind;   // a message is ATOLL_SEND on both sides
  std::int32_t dtype;  // -1 where it means nothing, as in the next two
  std::int32_t op;
  std::int32_t root;
  std::uint32_t layout;  // hash of the counts of a _v form
  std::uint64_t count;
  std::uint64_t ordinal;   // of the collective in the communicator, of the message between the two
  std::uint64_t sequence;  // the caller's number, for people: messages make ranks count differently
  double factor;           // of the rank that sends this: ranks may differ
};
static_assert(sizeof(Signature) == 56);

constexpr std::uint32_t signature_magic = 0x4c4f5441;  // "ATOL"

Signature make_signature(const atoll_operation& operation, int nranks, std::uint64_t ordinal);
bool agree(const Signature& a, const Signature& b) noexcept;
// Equal for calls that agree. Signatures that differ in one field differ in it; two that differ in
// more share it by a chance of some 2^-64.
std::uint64_t digest(const Signature& signature) noexcept;
// "all_reduce 42 (1024 x f32, sum)"
std::string describe(const Signature& signature);
// ATOLL_MISMATCH: both calls in words. `mine` and `theirs` name the ranks.
[[noreturn]] void throw_mismatch(const std::string& communicator, const std::string& mine,
                                 const Signature& my_call, const std::string& theirs,
                                 const Signature& their_call);

}  // namespace atoll_sdk
