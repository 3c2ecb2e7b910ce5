// Two streams of the verbs backend and a wire in memory between them. The wire does what RDMA
// allows: writes of one queue stay in order, those of other queues overtake them; a write lands
// before its immediate word is polled, and its completion may come much later. Like an adapter, the
// wire reads and writes registered memory only, with the key of the right rail.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <span>
#include <vector>

#include "verbs/stream.hpp"

namespace verbs_test {

using namespace atoll_verbs_backend;
using Bytes = std::vector<std::byte>;
using Random = std::mt19937;

inline std::size_t below(Random& random, std::size_t limit) { return random() % limit; }

// The registered memory of a rank.
class Memory {
 public:
  const Region& add(std::span<std::byte> bytes) {
    static std::uint32_t last_key = 0;
    Region& region = regions_.emplace_back(Region{bytes, {}, {}});
    for (auto& key : region.local) key = ++last_key;
    for (auto& key : region.remote) key = ++last_key;
    return region;
  }
  const Region* find(std::span<const std::byte> bytes) const {
    for (const auto& region : regions_) {
      if (contains(region, bytes.data(), bytes.size())) return &region;
    }
    return nullptr;
  }
  bool allows(const std::byte* at, std::size_t bytes, std::uint32_t key, Keys Region::*keys,
              std::size_t rail) const {
    return std::ranges::any_of(regions_, [&](const Region& region) {
      return (region.*keys)[rail] == key && contains(region, at, bytes);
    });
  }

 private:
  static bool contains(const Region& region, const std::byte* at, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(region.memory.data());
    const auto first = reinterpret_cast<std::uintptr_t>(at);
    return first >= begin && bytes <= region.memory.size() &&
           first - begin <= region.memory.size() - bytes;
  }
  std::deque<Region> regions_;
};

struct WireOptions {
  std::size_t queues = 1;  // each queue belongs to another rail
  std::size_t depth = 64;
  bool is_inline = true;  // small writes are copied when they are posted
};

class MemoryWire final : public Wire {
 public:
  MemoryWire(WireOptions options, const Memory& own, const Memory& peer)
      : options_(options), own_(own), peer_(peer), queues_(options.queues) {}

  bool has_room(bool is_ordered) const override {
    if (is_blocked) return false;
    if (is_ordered) return free(queues_[0]) > 0;
    return std::ranges::any_of(queues_, [this](const Queue& queue) { return free(queue) > 8; });
  }

  Ticket write(const Write& write) override {
    if (!has_room(write.is_ordered)) FAIL("a write without room");
    if (write.data.empty()) FAIL("an empty write");
    std::size_t at = 0;
    while (!write.is_ordered && free(queues_[at = next_++ % queues_.size()]) <= 8) continue;
    Queue& queue = queues_[at];
    if (!own_.allows(write.data.data(), write.data.size(), (*write.local)[at], &Region::local,
                     at)) {
      FAIL("a read of memory that is not registered");
    }
    Posted posted{write.data, {}, write.address, (*write.remote)[at], write.immediate};
    if (options_.is_inline && write.data.size() <= 128) {
      posted.copy.assign(write.data.begin(), write.data.end());
    }
    queue.posted.push_back(std::move(posted));
    const auto kind = static_cast<Kind>(write.immediate >> 30);
    if (kind == Kind::ring) ring_bytes += write.data.size();
    if (kind == Kind::placed) placed_bytes += write.data.size();
    return {at, ++queue.count};
  }

  bool is_done(Ticket ticket) const override { return queues_[ticket.queue].done >= ticket.index; }

  // Lets the first write of a queue land in the peer's memory. Returns false if there is none.
  bool land(std::size_t at) {
    Queue& queue = queues_[at];
    if (queue.posted.empty()) return false;
    const Posted posted = std::move(queue.posted.front());
    queue.posted.pop_front();
    const auto data = posted.copy.empty() ? posted.data : std::span(posted.copy);
    auto* const to = reinterpret_cast<std::byte*>(posted.address);
    if (!peer_.allows(to, data.size(), posted.key, &Region::remote, at)) {
      FAIL("a write to memory that is not registered");
    }
    std::memcpy(to, data.data(), data.size());
    queue.arrivals.push_back(posted.immediate);
    ++queue.landed;
    return true;
  }
  // Completes all writes of the queue that have landed in the peer's memory.
  void complete(std::size_t at) { queues_[at].done = queues_[at].landed; }
  void land_all() {
    for (std::size_t at = 0; at < queues_.size(); ++at) {
      while (land(at)) complete(at);
    }
  }
  // Gives the receiver the oldest immediate word of a queue. Returns false if there is none.
  bool poll(std::size_t at, Stream& receiver) {
    auto& arrivals = queues_[at].arrivals;
    if (arrivals.empty()) return false;
    const std::uint32_t immediate = arrivals.front();
    arrivals.pop_front();
    receiver.arrived(immediate);
    return true;
  }
  void poll_all(Stream& receiver) {
    for (std::size_t at = 0; at < queues_.size(); ++at) {
      while (poll(at, receiver)) continue;
    }
  }
  std::size_t queues() const { return queues_.size(); }

  bool is_blocked = false;
  std::size_t ring_bytes = 0, placed_bytes = 0;  // bytes of posted writes

 private:
  struct Posted {
    std::span<const std::byte> data;
    Bytes copy;
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t immediate;
  };
  struct Queue {
    std::deque<Posted> posted;
    std::deque<std::uint32_t> arrivals;
    std::uint64_t count = 0, landed = 0, done = 0;
  };
  std::size_t free(const Queue& queue) const { return options_.depth - (queue.count - queue.done); }

  WireOptions options_;
  const Memory& own_;
  const Memory& peer_;
  std::vector<Queue> queues_;
  std::size_t next_ = 0;
};

// A rank: its stream, and the wire that carries its writes to the peer.
struct Side {
  Side(std::size_t own_ring, std::size_t peer_ring, WireOptions options, Memory& own_memory,
       const Memory& peer_memory)
      : memory(own_memory),
        mailbox(mailbox_bytes(own_ring)),
        image(mailbox_bytes(peer_ring)),
        wire(options, own_memory, peer_memory) {}

  void attach(const Side& peer) {
    stream.attach(wire, own, image_region,
                  {reinterpret_cast<std::uintptr_t>(peer.mailbox.data()), peer.own.remote,
                   image.size() - sizeof(MailboxHead), peer.credits},
                  credits);
  }

  Memory& memory;
  std::size_t credits = most_credits;  // of the other side
  Bytes mailbox, image;
  const Region& own = memory.add(mailbox);
  const Region& image_region = memory.add(image);
  MemoryWire wire;
  Stream stream{[this](std::span<const std::byte> data) { return memory.find(data); }};
};

class Pair {
  Memory memory_a_, memory_b_;

 public:
  // `ring` is the ring size of `a`, and `other_ring` that of `b`; 0 means the same size.
  explicit Pair(WireOptions options = {}, std::size_t ring = 16384, std::size_t other_ring = 0)
      : a(ring, other_ring == 0 ? ring : other_ring, options, memory_a_, memory_b_),
        b(other_ring == 0 ? ring : other_ring, ring, options, memory_b_, memory_a_) {}

  void attach() {
    a.attach(b);
    b.attach(a);
  }
  // Delivers all writes in flight, in both directions.
  void settle() {
    for (int turn = 0; turn < 4; ++turn) {
      for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
        from->wire.land_all();
        from->wire.poll_all(to->stream);
        to->stream.pump();
      }
    }
  }
  Side a, b;
};

struct AttachedPair : Pair {
  explicit AttachedPair(WireOptions options = {}, std::size_t ring = 16384,
                        std::size_t other_ring = 0)
      : Pair(options, ring, other_ring) {
    attach();
  }
};

inline Bytes pattern(std::size_t count, Random& random) {
  Bytes result(count);
  for (auto& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

struct Piece {
  std::size_t bytes;
  bool is_registered;
};
using Pieces = std::vector<Piece>;

// Bytes that move from one rank to another. Each rank splits them into pieces in its own way.
class Traffic {
 public:
  Traffic(Side& from, Side& to, const Pieces& out, const Pieces& in, Random& random)
      : from_(from), to_(to), source_(pattern(total(out), random)), target_(total(in)) {
    REQUIRE(source_.size() == target_.size());
    cut(source_, out, from.memory, out_);
    cut(target_, in, to.memory, in_);
  }

  // Announces up to `ahead` pieces more than have been received.
  void expect(std::size_t ahead) {
    for (; announced_ < in_.size() && announced_ < in_at_ + ahead; ++announced_) {
      to_.stream.expect(in_[announced_]);
    }
  }
  // One call of send(); returns what it returned.
  std::size_t send() {
    if (out_at_ == out_.size()) return 0;
    const std::size_t n = from_.stream.send(out_[out_at_].subspan(sent_));
    sent_ += n;
    if (sent_ > out_[out_at_].size()) FAIL("send() has returned too much");
    if (sent_ == out_[out_at_].size()) ++out_at_, sent_ = 0;
    return n;
  }
  // One call of recv() for at most `most` bytes.
  std::size_t recv(std::size_t most = SIZE_MAX) {
    expect(1);
    if (in_at_ == in_.size()) return 0;
    const auto rest = in_[in_at_].subspan(received_);
    const std::size_t n = to_.stream.recv(rest.first(std::min(most, rest.size())));
    received_ += n;
    if (received_ == in_[in_at_].size()) ++in_at_, received_ = 0;
    return n;
  }
  bool is_over() const { return out_at_ == out_.size() && in_at_ == in_.size(); }
  bool is_intact() const { return source_ == target_; }
  std::size_t size() const { return source_.size(); }

 private:
  static std::size_t total(const Pieces& pieces) {
    std::size_t bytes = 0;
    for (const auto& piece : pieces) bytes += piece.bytes;
    return bytes;
  }
  static void cut(Bytes& bytes, const Pieces& pieces, Memory& memory,
                  std::vector<std::span<std::byte>>& result) {
    std::size_t at = 0;
    for (const auto& piece : pieces) {
      result.push_back(std::span(bytes).subspan(at, piece.bytes));
      if (piece.is_registered) memory.add(result.back());
      at += piece.bytes;
    }
  }
  Side& from_;
  Side& to_;
  Bytes source_, target_;
  std::vector<std::span<std::byte>> out_, in_;
  std::size_t out_at_ = 0, sent_ = 0, in_at_ = 0, received_ = 0, announced_ = 0;
};

}  // namespace verbs_test
