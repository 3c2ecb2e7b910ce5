// Fuzzes what a hostile peer writes into the mailbox of a rank, and the immediate words that it
// sends. The input is a script of what the peer and the rank do; each step has a byte that selects
// it, and numbers of 1 to 8 bytes. The stream must not touch memory outside its mailbox, its image
// of the peer's mailbox and the caller's data. Each is a separate allocation, so that
// AddressSanitizer notices an access beyond it. Writes to the peer must come from registered
// memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "script.hpp"
#include "sdk/backend.hpp"
#include "verbs/stream.hpp"

namespace {

using namespace atoll_verbs_backend;
using fuzz::Script;
using Bytes = std::vector<std::byte>;

constexpr std::size_t ring_bytes = 4096;
constexpr std::size_t data_bytes = 300'000;  // more than one write
constexpr std::size_t piece = 20'000;        // too large to be sent without a grant

class CheckedWire final : public Wire {
 public:
  explicit CheckedWire(std::vector<Region*> regions) : regions_(std::move(regions)) {}
  bool has_room(bool) const override { return !is_full; }
  Ticket write(const Write& write) override {
    const bool is_registered = std::ranges::any_of(regions_, [&](const Region* region) {
      const auto* const begin = region->memory.data();
      return write.local == &region->local && write.data.data() >= begin &&
             write.data.data() + write.data.size() <= begin + region->memory.size();
    });
    if (is_full || write.data.empty() || !is_registered) std::abort();
    for (const auto byte : write.data) sum_ = sum_ + static_cast<unsigned>(byte);
    return {0, ++posted_};
  }
  bool is_done(Ticket ticket) const override { return ticket.index <= done_; }
  void complete() { done_ = posted_; }
  bool is_full = false;

 private:
  std::vector<Region*> regions_;
  volatile unsigned sum_ = 0;  // the adapter reads all that is sent
  std::uint64_t posted_ = 0, done_ = 0;
};

struct Rank {
  Bytes own_bytes = Bytes(mailbox_bytes(ring_bytes)), image_bytes = own_bytes;
  Bytes out_bytes = Bytes(data_bytes), in_bytes = Bytes(data_bytes);
  Bytes plain_out = Bytes(piece), plain_in = Bytes(piece);  // not registered
  Region own{own_bytes, {}, {}}, image{image_bytes, {}, {}}, out{out_bytes, {}, {}},
      in{in_bytes, {}, {}};
  CheckedWire wire{{&image, &out}};
  Stream stream{[this](std::span<const std::byte> data) -> const Region* {
    for (const Region* region : {&out, &in}) {
      const auto* const begin = region->memory.data();
      if (data.data() >= begin && data.data() + data.size() <= begin + region->memory.size()) {
        return region;
      }
    }
    return nullptr;
  }};
  MailboxHead& head() { return *reinterpret_cast<MailboxHead*>(own_bytes.data()); }
};

// Sends one message after another, and begins a message only after the one before is complete.
class Sender {
 public:
  explicit Sender(Rank& rank) : rank_(rank) {}
  void send(std::uint16_t choice) {
    if (rest_.empty()) {
      const std::span<const std::byte> from = choice % 2 == 0 ? rank_.out_bytes : rank_.plain_out;
      rest_ = from.first(choice % 8 < 4 ? 1 + choice % piece : from.size());
    }
    const std::size_t n = rank_.stream.send(rest_);
    if (n > rest_.size()) std::abort();
    rest_ = rest_.subspan(n);
  }

 private:
  Rank& rank_;
  std::span<const std::byte> rest_;
};

void receive(Rank& rank, bool is_expected, std::uint32_t choice) {
  const std::span<std::byte> to = choice % 2 == 0 ? rank.in_bytes : rank.plain_in;
  const auto some = to.subspan((choice / 2) % 1000 * (choice % 3 == 0 ? 1 : 0));
  const auto data = some.first(choice % 8 < 4 ? 1 + choice / 8 % piece % some.size() : some.size());
  if (is_expected) return rank.stream.expect(data);
  if (rank.stream.recv(data) > data.size()) std::abort();
}

void step(Script& script, Rank& rank, Sender& sender, std::size_t& grants) {
  auto& counters = rank.head().counters;
  std::uint64_t* const all[] = {&counters.consumed, &counters.requested, &counters.closed,
                                &counters.received, &counters.sorted,    &counters.granted};
  const auto choice = script.number<std::uint8_t>();
  switch (choice % 12) {
    case 0:
      return rank.stream.arrived(script.number<std::uint32_t>());
    case 1:
      *all[choice / 12 % 6] = script.number<std::uint64_t>();
      break;
    case 2:
      *all[choice / 12 % 6] += script.number<std::uint8_t>();
      break;
    case 3:
      return rank.stream.arrived(3u << 30);
    case 4: {
      const auto begin = script.number<std::uint32_t>();
      const auto end = begin + script.number<std::uint32_t>();
      const auto address = choice / 12 % 2 == 0 ? 4096u : 0u;
      rank.head().grants[grants++ % grant_slots] = {begin, end, address, 0, {}};
      return rank.stream.arrived(2u << 30);
    }
    case 5:
      return sender.send(script.number<std::uint16_t>());
    case 6:
      return receive(rank, true, script.number<std::uint32_t>());
    case 7:
      return receive(rank, false, script.number<std::uint32_t>());
    case 8:
      rank.wire.is_full = choice / 12 % 2 != 0;
      break;
    case 9:
      return rank.wire.complete();
    case 10:
      return choice / 12 % 4 == 0 ? static_cast<void>(rank.stream.close()) : rank.stream.probe();
    default: {  // the whole mailbox
      const std::size_t at = script.number<std::uint16_t>() % (rank.own_bytes.size() - 8);
      const auto value = script.number<std::uint64_t>();
      std::memcpy(&rank.own_bytes[at], &value, sizeof(value));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* input, std::size_t size) {
  if (size > 4096) return 0;
  Script script({input, size});
  Rank rank;
  rank.stream.attach(rank.wire, rank.own, rank.image, {4096, {}, ring_bytes}, most_credits);
  Sender sender(rank);
  std::size_t grants = 0;
  while (!script.is_over()) {
    try {
      step(script, rank, sender, grants);
    } catch (const atoll_sdk::Error& error) {
      if (error.status() != ATOLL_BAD_DATA) std::abort();
    }
  }
  return 0;
}
