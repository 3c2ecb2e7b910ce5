// A Segment is the inbox of a rank in shared memory. It contains one ring buffer per other rank of
// the host, a doorbell on which the owner sleeps, a flag that the owner sets when it closes, the
// owner's control block, and the owner's staging buffer.
//
// The owner creates the segment under a random name, the other ranks attach, and then the owner
// removes the name. From then on the memory exists only as long as a process maps it, so a killed
// process leaves nothing behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "collectives/shared_memory/control_block.hpp"
#include "collectives/shared_memory/process_memory.hpp"

namespace atoll_collectives {

// Size of each of the two halves of a staging buffer in bytes. One half is filled while the other
// is read.
constexpr std::size_t staging_bytes = 256 * 1024;

// How the owner of an inbox waits for events.
enum class Sleeper : std::uint32_t {
  awake = 0,
  futex = 1,   // the owner sleeps on the futex Inbox::doorbell
  socket = 2,  // the owner sleeps in poll() on its datagram socket
};

struct Inbox {
  std::uint64_t magic;
  std::uint64_t ring_bytes;  // size of each ring buffer in bytes; a power of two
  std::uint64_t rings;
  ProcessIdentity process;  // the owner's process; set before the name of the inbox is published
  alignas(
      cache_line) std::atomic<std::uint32_t> doorbell;    // futex; each event for the owner adds 1
  std::atomic<std::uint32_t> sleeper;                     // how the owner waits, a value of Sleeper
  alignas(cache_line) std::atomic<std::uint32_t> closed;  // nonzero once the inbox has been closed
  ControlBlock control;
};

// Header of a ring buffer. `written` and `consumed` count bytes since the ring was created; modulo
// ring_bytes they are offsets in the buffer.
struct Ring {
  alignas(cache_line) std::atomic<std::uint64_t> written;
  alignas(cache_line) std::atomic<std::uint64_t> consumed;
  // Nonzero once the rank that writes to the ring has attached to the segment.
  alignas(cache_line) std::atomic<std::uint32_t> attached;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "the doorbell is a futex");

class Segment {
 public:
  // Creates a segment with `rings` ring buffers of `ring_bytes` bytes, which must be a power of
  // two. If /dev/shm is nearly full, tries smaller rings, down to 16 KiB. Reserves all memory, so
  // that a full /dev/shm causes an Error here and not a SIGBUS later.
  static std::unique_ptr<Segment> create(std::size_t rings, std::size_t ring_bytes);
  // Maps the segment that another rank created. Throws Error(ATOLL_MISMATCH) if its size or version
  // differs.
  static std::unique_ptr<Segment> attach(const std::string& name, std::size_t rings,
                                         std::size_t ring_bytes);
  // Only create() and attach() call this constructor, which does not map any memory.
  Segment(std::string name, std::size_t rings, std::size_t ring_bytes);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  const std::string& name() const noexcept { return name_; }
  std::size_t ring_bytes() const noexcept { return ring_bytes_; }
  // Removes the name of the segment, so that no further process can attach. Existing mappings stay
  // valid.
  void unlink() noexcept;

  Inbox& inbox() const noexcept;
  Ring& ring(std::size_t index) const noexcept;
  std::span<std::byte> data(std::size_t index) const noexcept;
  std::byte* staging(std::size_t half) const noexcept;

 private:
  void map(int fd);

  std::string name_;
  std::size_t rings_;
  std::size_t ring_bytes_;
  bool is_named_ = false;  // true while the segment has a name, which this rank must remove
  std::span<std::byte> memory_;
};

}  // namespace atoll_collectives
