// Stream: the byte stream between two ranks, moved by RDMA writes. It contains the protocol only;
// a Wire posts the writes, so that tests need no adapter.
//
// Each side offers the other a mailbox: a registered block of memory with a ring buffer for data, a
// table of grants, and counters. Everything that a rank sends is an RDMA write with immediate data
// into the mailbox of its peer, or into memory that the peer has granted. Small data, and data from
// or to memory that is not registered, goes through the ring: the sender copies it into its image
// of the peer's ring, from which the adapter writes it to the ring, and the receiver copies it out.
// Large data goes to its destination directly: the receiver grants a range of the byte stream, with
// the address and the keys of the memory where it belongs, and the sender writes it there. A grant
// without an address directs its range to the ring.
//
// A sender that needs a grant and has none asks for it. Ranges before the next grant go through the
// ring. So sender and receiver may divide the byte stream into messages differently.
//
// The immediate word of a write has its kind in the two highest bits:
//   placed, ring  number of the write (10 bits) and its bytes (20 bits). Writes of several queue
//                 pairs may arrive in another order, so the receiver sorts them by number. The
//                 receiver reports how many writes it has put in order. The sender may have at most
//                 `credits` writes beyond that number in flight, so that the writes of all peers
//                 fit into the receives.
//   grant         a grant was written into the next slot of the table. The receiver of the grant
//                 reports how many it has read; their slots are used again.
//   control       a counter has changed
// Grants and controls use the first queue pair, which keeps their order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace atoll_verbs_backend {

constexpr std::size_t most_rails = 8;
using Keys = std::array<std::uint32_t, most_rails>;  // one memory key per rail

// Memory that is registered with the adapter of each rail.
struct Region {
  std::span<std::byte> memory;
  Keys local{};   // keys for this rank's requests
  Keys remote{};  // keys for the peer's requests
};

struct Grant {
  std::uint64_t begin = 0, end = 0;  // range of the byte stream that may be written
  std::uint64_t address = 0;         // destination in the receiver's memory; 0: the ring
  std::uint64_t unused = 0;
  Keys keys{};
};
static_assert(sizeof(Grant) == 64);

// Counters that a rank writes into the mailbox of its peer.
struct Counters {
  std::uint64_t consumed = 0;   // bytes that this rank has read from its ring
  std::uint64_t requested = 0;  // end of the byte range for which this rank needs grants
  std::uint64_t closed = 0;     // 1 + number of data writes of this rank; 0 while it is open
  std::uint64_t received = 0;   // bytes of the byte stream that this rank has received
  std::uint64_t sorted = 0;     // number of data writes that this rank has put in order
  std::uint64_t granted = 0;    // number of grants that this rank has read
  std::array<std::uint64_t, 2> unused{};
};
static_assert(sizeof(Counters) == 64);

constexpr std::size_t grant_slots = 32;
struct MailboxHead {
  Counters counters;
  std::array<Grant, grant_slots> grants;
};
constexpr std::size_t mailbox_bytes(std::size_t ring) { return sizeof(MailboxHead) + ring; }

constexpr std::size_t most_credits = 1024;  // the numbers of data writes wrap at this value

// Where the peer's mailbox lies, and how much this rank may send to it.
struct Target {
  std::uint64_t address = 0;
  Keys keys{};
  std::size_t ring_bytes = 0;
  std::size_t credits = most_credits;  // data writes that may be in flight unconfirmed
};

// Identifies a posted write.
struct Ticket {
  std::size_t queue = 0;
  std::uint64_t index = 0;
};

class Wire {
 public:
  enum class Kind : std::uint32_t {
    placed = 0,
    ring = 1,
    grant = 2,
    control = 3,
  };
  struct Write {
    std::span<const std::byte> data;
    const Keys* local;      // keys of `data`
    std::uint64_t address;  // address in the peer's memory to write to
    const Keys* remote;     // keys of the memory at `address`
    std::uint32_t immediate;
    bool is_ordered;  // true if the write must use the first queue pair
    bool is_awaited;  // true if the caller will ask is_done()
  };

  virtual ~Wire() = default;
  // Returns true if write() may be called.
  virtual bool has_room(bool is_ordered) const = 0;
  virtual Ticket write(const Write& write) = 0;
  // Returns true once the peer has the data of an awaited write; the data may then change.
  virtual bool is_done(Ticket ticket) const = 0;
};

class Stream {
 public:
  // Returns the region that contains all of [data, data + bytes), or null.
  using Find = std::function<const Region*(std::span<const std::byte>)>;

  explicit Stream(Find find) : find_(std::move(find)) {}

  // Starts to move bytes. `own` is this rank's mailbox, zeroed; `image` has the same size as the
  // peer's mailbox. Both are registered and outlive the stream. The peer may have `credits` data
  // writes in flight without a confirmation.
  void attach(Wire& wire, const Region& own, const Region& image, const Target& peer,
              std::size_t credits);

  // send() and recv() move what they can without waiting, and return that number of bytes; expect()
  // announces the memory of a later recv() (Transport). After send() has returned less than
  // data.size(), it must be called with the rest before any other data.
  std::size_t send(std::span<const std::byte> data);
  std::size_t recv(std::span<std::byte> data);
  void expect(std::span<std::byte> memory);

  // Handles the immediate word of a write that has arrived. Throws Error(ATOLL_BAD_DATA) if the
  // peer breaks the protocol.
  void arrived(std::uint32_t immediate);
  // Sends counters and grants that could not be sent before.
  void pump();
  // Writes a counter again: if the peer is gone, the adapter reports that.
  void probe() { has_news_ = true, pump(); }
  // Tells the peer that this rank sends no more. Returns false if there is no room yet.
  bool close();
  bool has_closed() const noexcept { return closed_at_ != 0; }
  // Returns true once the peer has closed and all its bytes have been received.
  bool is_over() const noexcept {
    return closed_at_ != 0 && closed_at_ == next_number_ + 1 && chunks_.empty();
  }

 private:
  static constexpr std::size_t first_window = 8;
  struct Chunk {
    std::uint32_t bytes = 0;  // size of the chunk; 0 if it has not arrived
    bool is_in_ring = false;
  };
  struct Segment {
    std::size_t bytes;
    std::uint64_t end;  // end of the segment in the byte stream
    bool is_copied;     // true if the data was copied into the ring
    Ticket ticket;
  };
  struct Expected {
    std::uint64_t begin;
    std::span<std::byte> memory;
    std::uint64_t end() const { return begin + memory.size(); }
  };

  bool is_done(const Segment& segment) const;
  std::size_t post(std::span<const std::byte> data);
  std::size_t post_ring(std::span<const std::byte> data);
  std::size_t post_placed(std::span<const std::byte> data, const Region& region);
  std::uint32_t number_next(Wire::Kind kind, std::size_t bytes);
  void widen_window(std::size_t ahead);
  void pump_grants();
  bool give(const Grant& grant);
  void check_fits(const Chunk& chunk);
  void take_grant();
  void drop_used_grants();
  void read_counters();
  void check_placed(std::span<const std::byte> data) const;

  Find find_;
  Wire* wire_ = nullptr;
  MailboxHead* head_ = nullptr;   // this rank's mailbox
  std::span<std::byte> ring_;     // ring of this rank's mailbox
  MailboxHead* image_ = nullptr;  // this rank's image of the peer's mailbox
  std::span<std::byte> image_ring_;
  const Region* image_region_ = nullptr;
  Target peer_;

  // Sending.
  std::uint64_t posted_ = 0;  // bytes of the byte stream that were posted
  std::uint64_t ring_posted_ = 0;
  std::uint64_t ring_consumed_ = 0;  // bytes of ring_posted_ that the peer has read
  std::uint64_t writes_ = 0;         // number of data writes that were posted
  std::uint64_t sorted_ = 0;         // number of these writes that the peer has put in order
  std::deque<Grant> grants_;         // grants of the peer that are not used up yet
  std::uint64_t grants_taken_ = 0;
  std::uint64_t grants_told_ = 0;  // value of grants_taken_ that the peer knows
  std::uint64_t request_ = 0;      // end of the range for which this rank has asked for grants
  std::deque<Segment> segments_;   // posted data that send() has not reported yet
  std::size_t unreturned_ = 0;     // bytes of segments_
  bool has_news_ = false;          // true if a counter must be sent
  bool is_closing_ = false;

  // Receiving.
  // Writes that have overtaken others, by their number modulo the size of this list, which grows up
  // to most_credits.
  std::vector<Chunk> window_ = std::vector<Chunk>(first_window);
  std::uint64_t next_number_ = 0;        // number of the next write in order
  std::uint64_t number_told_ = 0;        // value of next_number_ that the peer knows
  std::size_t credits_ = most_credits;   // data writes that the peer may have in flight unconfirmed
  std::deque<Chunk> chunks_;             // chunks that recv() has not returned yet, in order
  std::uint64_t sorted_bytes_ = 0;       // bytes of all chunks that were put in order
  std::uint64_t sorted_ring_bytes_ = 0;  // bytes of those chunks that are in the ring
  std::uint64_t received_ = 0;           // bytes that recv() has returned
  std::uint64_t ring_read_ = 0;
  std::uint64_t ring_told_ = 0;    // value of ring_read_ that the peer knows
  std::deque<Expected> expected_;  // memory of expect() for data that is not received yet
  std::uint64_t expected_end_ = 0;
  std::uint64_t granted_end_ = 0;  // end of the last grant
  std::uint64_t requested_ = 0;    // the peer needs grants up to this byte
  std::deque<Grant> given_;        // grants whose range has not been received yet
  std::uint64_t grants_given_ = 0;
  std::uint64_t grants_read_ = 0;  // number of given grants that the peer has read
  std::uint64_t closed_at_ = 0;    // value of the peer's Counters::closed
};

}  // namespace atoll_verbs_backend
