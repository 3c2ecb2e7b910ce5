#include "collectives/signature.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace atoll_collectives {
namespace {

// Returns an FNV-1a hash of the per-rank counts, folded to 32 bits.
std::uint32_t hash_of(const std::uint64_t* counts, int nranks) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (int rank = 0; rank < nranks; ++rank) hash = (hash ^ counts[rank]) * 0x100000001b3u;
  return static_cast<std::uint32_t>(hash ^ (hash >> 32));
}

// Returns an FNV-1a hash, which is not 0.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash == 0 ? 1 : hash;
}

void set_label(Signature& s, std::string_view label) {
  if (label.empty()) return;
  s.label = hash_of(label);
  std::size_t shown = std::min(label.size(), s.label_text.size() - 1);
  // A character of UTF-8 is not cut: its later bytes are 10xxxxxx.
  const auto is_tail = [&](std::size_t i) {
    return i < label.size() && (static_cast<unsigned char>(label[i]) & 0xc0) == 0x80;
  };
  while (shown > 0 && is_tail(shown)) --shown;
  label.copy(s.label_text.data(), shown);
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
  // The counts of all_to_all_v differ between ranks, so its signatures have no hash of them.
  const bool shares_counts = is_uneven(operation.kind) && operation.kind != ATOLL_ALL_TO_ALL_V;
  s.layout = shares_counts ? hash_of(operation.counts, nranks) : 0;
  s.count = barrier ? 0 : operation.count;
  s.ordinal = ordinal;
  s.sequence = operation.sequence;
  s.factor = operation.factor;
  set_label(s, label_of(operation));
  return s;
}

bool agree(const Signature& a, const Signature& b) noexcept {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.layout == b.layout && a.count == b.count && a.ordinal == b.ordinal && a.label == b.label;
}

// The digest is a sum of terms, each multiplied by an odd constant, so a change of a single field
// always changes the digest. The constants come from Knuth's multiplicative hashing (the golden
// ratio) and from the finalizers of MurmurHash3 and SplitMix64.
std::uint64_t digest(const Signature& s) noexcept {
  // Combines two 32-bit values into one 64-bit value and mixes `high` into the lower half as well,
  // because the lower half of a product does not depend on the upper half of a factor.
  const auto both = [](std::uint32_t high, std::uint32_t low) {
    return std::uint64_t{high} << 32 | (high * 0x9e3779b1U ^ low);
  };
  const auto word = [](std::int32_t value) { return static_cast<std::uint32_t>(value); };
  return both(word(s.kind), word(s.dtype)) * 0x9e3779b97f4a7c15U +
         both(word(s.op), word(s.root)) * 0xff51afd7ed558ccdU +
         std::uint64_t{s.layout} * 0xc4ceb9fe1a85ec53U + s.count * 0xbf58476d1ce4e5b9U +
         s.ordinal * 0x94d049bb133111ebU + s.label * 0xd6e8feb86659fd93U;
}

std::string describe(const Signature& s) {
  std::string text = fmt::format("{} {}", kind_name(s.kind), s.sequence);
  if (s.kind == ATOLL_BARRIER) return text;
  // The text may come from another process, and then may lack its null character.
  const std::string_view label(s.label_text.data(), s.label_text.size());
  text += fmt::format(" ({} x {}", s.count, dtype_name(s.dtype));
  if (s.op >= 0) text += fmt::format(", {}", op_name(s.op));
  if (s.root >= 0) text += fmt::format(", root {}", s.root);
  if (s.layout != 0) text += fmt::format(", counts with the hash {:08x}", s.layout);
  if (s.label != 0) text += fmt::format(", \"{}\"", label.substr(0, label.find('\0')));
  return text + ")";
}

namespace {

// Describes the receiver's or the sender's side of a message, for kinds in which every message has
// its own count.
std::string describe_message(const Signature& s, std::string_view direction,
                             const std::string& peer) {
  if (s.kind != ATOLL_SEND && s.kind != ATOLL_ALL_TO_ALL_V) return describe(s);
  const std::string_view kind =
      s.kind == ATOLL_SEND && direction == "from" ? kind_name(ATOLL_RECV) : kind_name(s.kind);
  return fmt::format("{} {} ({} x {} {} {})", kind, s.sequence, s.count, dtype_name(s.dtype),
                     direction, peer);
}

}  // namespace

void throw_mismatch(const std::string& communicator, const std::string& mine,
                    const Signature& my_call, const std::string& theirs,
                    const Signature& their_call) {
  const auto ordinals =
      my_call.ordinal == their_call.ordinal
          ? std::string()
          : fmt::format(" (calls {} and {})", my_call.ordinal, their_call.ordinal);
  throw Error(ATOLL_MISMATCH,
              fmt::format("communicator {}: {} called {} where {} called {}{}", communicator, mine,
                          describe_message(my_call, "from", theirs), theirs,
                          describe_message(their_call, "to", mine), ordinals));
}

}  // namespace atoll_collectives
