#include "collectives/shared_memory/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "collectives/auth.hpp"
#include "collectives/shared_memory/memory_file.hpp"

namespace atoll_collectives {
namespace {

// Identifies the shared memory segment of an inbox: "atinbox6".
constexpr std::uint64_t segment_magic = 0x36786f626e697461;
constexpr std::size_t smallest_ring = 16 * 1024;
constexpr std::size_t page = 4096;

constexpr std::size_t header_bytes(std::size_t rings) {
  const std::size_t bytes = sizeof(Inbox) + rings * sizeof(Ring);
  return (bytes + page - 1) / page * page;
}

constexpr std::size_t segment_bytes(std::size_t rings, std::size_t ring_bytes) {
  return header_bytes(rings) + 2 * staging_bytes + rings * ring_bytes;
}

// Throws the error of a failed system call: system_error() if no descriptor is left, which sockets
// would lack as well, and otherwise NoSharedMemory, after which the caller can use sockets.
[[noreturn]] void refuse(const std::string& what, int error) {
  if (error == EMFILE || error == ENFILE) throw system_error(what, error);
  throw NoSharedMemory(system_error(what, error).what());
}

std::string random_name() {
  const auto digest = random_digest();
  std::string name = "atoll-";
  for (std::size_t i = 0; i < 16; ++i) name += fmt::format("{:02x}", digest[i]);
  return name;
}

}  // namespace

Segment::Segment(std::string name, std::size_t rings, std::size_t ring_bytes)
    : name_(std::move(name)), rings_(rings), ring_bytes_(ring_bytes) {}

Segment::~Segment() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

std::unique_ptr<Segment> Segment::create(std::size_t rings, std::size_t ring_bytes) {
  Fd file(::memfd_create("atoll-inbox", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) refuse("memfd_create", errno);
  for (;; ring_bytes /= 2) {
    const std::size_t bytes = segment_bytes(rings, ring_bytes);
    const int error = reserve_file(file.get(), bytes);
    if (error == 0) break;
    const bool full = error == ENOSPC || error == ENOMEM || error == EFBIG;
    if (!full || ring_bytes / 2 < smallest_ring) {
      refuse(fmt::format("reserving {} bytes of shared memory", bytes), error);
    }
    // A failed reservation may have enlarged the file, so the next, smaller one begins at 0 bytes.
    if (::ftruncate(file.get(), 0) != 0) refuse("ftruncate of shared memory", errno);
  }
  // Prevents all processes from shortening the file: an access beyond its end would raise SIGBUS.
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    refuse("sealing shared memory", errno);
  auto segment = std::make_unique<Segment>(random_name(), rings, ring_bytes);
  segment->map(file.get());
  segment->file_ = std::move(file);
  segment->inbox().magic = segment_magic;
  segment->inbox().ring_bytes = ring_bytes;
  segment->inbox().rings = rings;
  return segment;
}

std::unique_ptr<Segment> Segment::attach(int file, const std::string& name, std::size_t rings,
                                         std::size_t ring_bytes) {
  const int seals = ::fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw Error(ATOLL_BAD_DATA,
                "the shared memory of a rank is not sealed, so it could shrink while in use");
  }
  struct stat status {};
  if (::fstat(file, &status) != 0) throw system_error("fstat of shared memory", errno);
  if (static_cast<std::size_t>(status.st_size) != segment_bytes(rings, ring_bytes)) {
    throw Error(ATOLL_MISMATCH, fmt::format("an inbox has {} bytes, but {} were expected",
                                            status.st_size, segment_bytes(rings, ring_bytes)));
  }
  auto segment = std::make_unique<Segment>(name, rings, ring_bytes);
  segment->map(file);
  const Inbox& inbox = segment->inbox();
  if (inbox.magic != segment_magic || inbox.ring_bytes != ring_bytes || inbox.rings != rings) {
    throw Error(ATOLL_MISMATCH,
                "a rank of this host uses another version of atoll: start all ranks with the same "
                "libraries");
  }
  return segment;
}

void Segment::map(int fd) {
  const std::size_t bytes = segment_bytes(rings_, ring_bytes_);
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) refuse(fmt::format("mapping {} bytes of shared memory", bytes), errno);
  memory_ = {static_cast<std::byte*>(address), bytes};
}

Inbox& Segment::inbox() const noexcept { return *reinterpret_cast<Inbox*>(memory_.data()); }

Ring& Segment::ring(std::size_t index) const noexcept {
  return reinterpret_cast<Ring*>(memory_.data() + sizeof(Inbox))[index];
}

std::span<std::byte> Segment::data(std::size_t index) const noexcept {
  return memory_.subspan(header_bytes(rings_) + 2 * staging_bytes + index * ring_bytes_,
                         ring_bytes_);
}

std::byte* Segment::staging(std::size_t half) const noexcept {
  return memory_.data() + header_bytes(rings_) + half * staging_bytes;
}

}  // namespace atoll_collectives
