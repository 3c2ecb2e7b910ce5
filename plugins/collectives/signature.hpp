// A signature describes the operation that a rank has called. Ranks compare signatures before any
// data moves, so that a mismatch is reported instead of corrupting data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "atoll/plugin.h"
#include "sdk/backend.hpp"

namespace atoll_collectives {

using namespace atoll_sdk;

// Signatures are sent in the byte order of the machine, because all ranks of a job run on one
// architecture.
struct Signature {
  std::uint32_t magic;
  std::int32_t kind;   // kind of operation; ATOLL_SEND for the sender and the receiver of a message
  std::int32_t dtype;  // element type; dtype, op and root are -1 if the kind does not use them
  std::int32_t op;
  std::int32_t root;
  std::uint32_t layout;  // hash of the per-rank counts of a _v collective; 0 for other kinds
  std::uint64_t count;
  // Index of the collective in the communicator, or of the message among all messages from the
  // sender to the receiver.
  std::uint64_t ordinal;
  // atoll_operation::sequence. Used only in error texts, because ranks count messages differently.
  std::uint64_t sequence;
  double factor;  // factor by which the sender's data is scaled; ranks may have different factors
  std::uint64_t label;              // hash of the label; 0 without a label
  std::array<char, 32> label_text;  // null-terminated beginning of the label, for error texts
};
static_assert(sizeof(Signature) == 96);

constexpr std::uint32_t signature_magic = 0x4c4f5441;  // identifies a signature: "ATOL"

Signature make_signature(const atoll_operation& operation, int nranks, std::uint64_t ordinal);
// Returns true if two ranks called the same operation. Ignores `sequence`, `factor` and the text of
// the label.
bool agree(const Signature& a, const Signature& b) noexcept;
// Returns a hash of the fields that agree() compares. Signatures that differ in exactly one field
// always have different hashes; signatures that differ in several fields collide with a probability
// of about 2^-64.
std::uint64_t digest(const Signature& signature) noexcept;
// Returns a text such as "all_reduce 42 (1024 x f32, sum)", with the label in quotes at the end.
std::string describe(const Signature& signature);
// Throws Error(ATOLL_MISMATCH) with a text that shows the calls of two ranks. `mine` and `theirs`
// are the names of the ranks.
[[noreturn]] void throw_mismatch(const std::string& communicator, const std::string& mine,
                                 const Signature& my_call, const std::string& theirs,
                                 const Signature& their_call);

}  // namespace atoll_collectives
