// A Segment is the inbox of a rank in shared memory. It contains one ring buffer per other rank of
// the host, a doorbell on which the owner sleeps, a flag that the owner sets when it closes, the
// owner's control block, and the owner's staging buffer.
//
// The owner creates the segment as an anonymous memory file (memfd) and passes its descriptor to
// the other ranks, which map it. The memory has no name in a file system: its size does not depend
// on /dev/shm, and it exists only as long as a process maps it, so a process that is killed leaves
// nothing behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "collectives/shared_memory/control_block.hpp"
#include "collectives/shared_memory/lock_free.hpp"
#include "core/descriptor.hpp"
#include "sdk/backend.hpp"

namespace atoll_collectives {

using atoll_v1::atoll::net::Fd;

// Size of each of the two halves of a staging buffer in bytes. One half is filled while the other
// is read.
constexpr std::size_t staging_bytes = 256 * 1024;

struct Inbox {
  std::uint64_t magic;
  std::uint64_t ring_bytes;  // size of each ring buffer in bytes; a power of two
  std::uint64_t rings;
  alignas(cache_line) BellOf<std::atomic> bell;           // bell that wakes the owner of the inbox
  alignas(cache_line) std::atomic<std::uint32_t> closed;  // nonzero once the inbox has been closed
  ControlBlock control;
};

// How far a rank has opened the transport, from the view of another rank. Grows only.
enum class Opened : std::uint32_t {
  not_attached = 0,
  attached = 1,   // the rank has mapped the other rank's inbox
  connected = 2,  // the rank has mapped all inboxes, and all ranks have mapped its inbox
};

using Ring = RingOf<std::atomic>;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "the bell is a futex");

// The reason why ranks of one host cannot share memory. The caller can then use another transport.
class NoSharedMemory : public atoll_sdk::Error {
 public:
  explicit NoSharedMemory(const std::string& reason) : Error(ATOLL_UNSUPPORTED, reason) {}
};

class Segment {
 public:
  // Creates a segment with `rings` ring buffers of `ring_bytes` bytes, which must be a power of
  // two. If memory is short, tries smaller rings, down to 16 KiB. Reserves all memory, so that a
  // lack of memory causes an error here and not a SIGBUS later. Throws NoSharedMemory, or
  // Error(ATOLL_IO) if the process has no file descriptor left.
  static std::unique_ptr<Segment> create(std::size_t rings, std::size_t ring_bytes);
  // Maps the segment that another rank created and passed as `file`. `name` is the name of that
  // segment. Throws Error(ATOLL_MISMATCH) if its size or version differs, Error(ATOLL_BAD_DATA) if
  // its size could change, and NoSharedMemory.
  static std::unique_ptr<Segment> attach(int file, const std::string& name, std::size_t rings,
                                         std::size_t ring_bytes);
  // Only create() and attach() call this constructor, which does not map any memory.
  Segment(std::string name, std::size_t rings, std::size_t ring_bytes);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  // The random name from which the addresses of the owner's sockets are derived.
  const std::string& name() const noexcept { return name_; }
  std::size_t ring_bytes() const noexcept { return ring_bytes_; }
  // The descriptor of a segment that this rank created, until close_file().
  int file() const noexcept { return file_.get(); }
  // Closes the descriptor once all ranks have mapped the segment. Mappings stay valid.
  void close_file() noexcept { file_.reset(); }

  Inbox& inbox() const noexcept;
  Ring& ring(std::size_t index) const noexcept;
  std::span<std::byte> data(std::size_t index) const noexcept;
  std::byte* staging(std::size_t half) const noexcept;

 private:
  void map(int fd);

  std::string name_;
  std::size_t rings_;
  std::size_t ring_bytes_;
  Fd file_;
  std::span<std::byte> memory_;
};

}  // namespace atoll_collectives
