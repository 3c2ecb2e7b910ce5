// A rank's inbox in shared memory: one ring of bytes per other rank of the host, a bell that its
// owner sleeps on, a flag that the owner raises when it goes, its seat on the board, and a stage
// where it lays out data for the others to read.
//
// The owner creates the segment under a random name, the others attach, and the owner removes the
// name when all have: from then on the memory lives as long as somebody maps it, and no killed
// process leaves anything behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "collectives/seat.hpp"

namespace atoll_sdk {

// A stage has two halves: one is filled while the other is read.
constexpr std::size_t stage_bytes = 256 * 1024;  // of a half

enum class Sleeper : std::uint32_t {
  awake = 0,
  futex = 1,   // on Inbox::bell
  socket = 2,  // in poll(), with its datagram socket
};

struct Inbox {
  std::uint64_t magic;
  std::uint64_t ring_bytes;  // power of two
  std::uint64_t rings;
  alignas(cache_line) std::atomic<std::uint32_t> bell;  // counts changes that concern the owner
  std::atomic<std::uint32_t> sleeper;                   // a Sleeper
  alignas(cache_line) std::atomic<std::uint32_t> closed;
  Seat seat;
};

// Positions count bytes since the beginning; modulo ring_bytes they are offsets.
struct Ring {
  alignas(cache_line) std::atomic<std::uint64_t> written;
  alignas(cache_line) std::atomic<std::uint64_t> consumed;
  alignas(cache_line) std::atomic<std::uint32_t> attached;  // its writer maps the segment
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "the bell is a futex");

class Segment {
 public:
  // Reserves the memory, so that a full /dev/shm is an Error here and not a SIGBUS later; takes
  // smaller rings, down to 16 KiB, before it gives up. `ring_bytes` is a power of two.
  static std::unique_ptr<Segment> create(std::size_t rings, std::size_t ring_bytes);
  static std::unique_ptr<Segment> attach(const std::string& name, std::size_t rings,
                                         std::size_t ring_bytes);
  // For the two functions above: maps nothing.
  Segment(std::string name, std::size_t rings, std::size_t ring_bytes);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  const std::string& name() const noexcept { return name_; }
  std::size_t ring_bytes() const noexcept { return ring_bytes_; }
  // Removes the name; the memory stays for those who map it.
  void unlink() noexcept;

  Inbox& inbox() const noexcept;
  Ring& ring(std::size_t index) const noexcept;
  std::span<std::byte> data(std::size_t index) const noexcept;
  std::byte* stage(std::size_t half) const noexcept;

 private:
  enum class Named {
    no,
    yes,
  };
  void map(int fd);

  std::string name_;
  std::size_t rings_;
  std::size_t ring_bytes_;
  Named named_ = Named::no;
  std::span<std::byte> memory_;
};

}  // namespace atoll_sdk
