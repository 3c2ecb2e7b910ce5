#include "collectives/shared_memory/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "collectives/auth.hpp"
#include "collectives/descriptor.hpp"
#include "collectives/shared_memory/memory_file.hpp"
#include "sdk/guard.hpp"

namespace atoll_collectives {
namespace {

// Identifies the shared memory segment of an inbox: "atinbox4".
constexpr std::uint64_t segment_magic = 0x34786f626e697461;
constexpr std::size_t smallest_ring = 16 * 1024;
constexpr std::size_t page = 4096;

constexpr std::size_t header_bytes(std::size_t rings) {
  const std::size_t bytes = sizeof(Inbox) + rings * sizeof(Ring);
  return (bytes + page - 1) / page * page;
}

constexpr std::size_t segment_bytes(std::size_t rings, std::size_t ring_bytes) {
  return header_bytes(rings) + 2 * staging_bytes + rings * ring_bytes;
}

std::string random_name() {
  const auto digest = random_digest();
  std::string name = "/atoll-";
  for (std::size_t i = 0; i < 16; ++i) name += fmt::format("{:02x}", digest[i]);
  return name;
}

}  // namespace

Segment::Segment(std::string name, std::size_t rings, std::size_t ring_bytes)
    : name_(std::move(name)), rings_(rings), ring_bytes_(ring_bytes) {}

Segment::~Segment() {
  unlink();
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

std::unique_ptr<Segment> Segment::create(std::size_t rings, std::size_t ring_bytes) {
  for (;; ring_bytes /= 2) {
    auto segment = std::make_unique<Segment>(random_name(), rings, ring_bytes);
    const Descriptor fd(
        ::shm_open(segment->name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) throw system_error("shm_open " + segment->name_, errno);
    segment->is_named_ = true;
    const std::size_t bytes = segment_bytes(rings, ring_bytes);
    const int error = reserve_file(fd.get(), bytes);
    if (error == 0) {
      segment->map(fd.get());
      segment->inbox().magic = segment_magic;
      segment->inbox().ring_bytes = ring_bytes;
      segment->inbox().rings = rings;
      return segment;
    }
    const bool full = error == ENOSPC || error == ENOMEM;
    if (!full || ring_bytes / 2 < smallest_ring) {
      throw system_error(fmt::format("reserving {} bytes of /dev/shm", bytes), error);
    }
  }
}

std::unique_ptr<Segment> Segment::attach(const std::string& name, std::size_t rings,
                                         std::size_t ring_bytes) {
  auto segment = std::make_unique<Segment>(name, rings, ring_bytes);
  const Descriptor fd(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600));
  if (!fd) throw system_error("shm_open " + name, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw system_error("fstat " + name, errno);
  if (static_cast<std::size_t>(status.st_size) != segment_bytes(rings, ring_bytes)) {
    throw Error(ATOLL_MISMATCH,
                fmt::format("shared memory {} has {} bytes, but {} were expected", name,
                            status.st_size, segment_bytes(rings, ring_bytes)));
  }
  segment->map(fd.get());
  const Inbox& inbox = segment->inbox();
  if (inbox.magic != segment_magic || inbox.ring_bytes != ring_bytes || inbox.rings != rings) {
    throw Error(ATOLL_MISMATCH,
                "shared memory " + name + " was created by another version of the backend");
  }
  return segment;
}

void Segment::map(int fd) {
  const std::size_t bytes = segment_bytes(rings_, ring_bytes_);
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) throw system_error("mmap " + name_, errno);
  memory_ = {static_cast<std::byte*>(address), bytes};
}

void Segment::unlink() noexcept {
  if (std::exchange(is_named_, false)) ::shm_unlink(name_.c_str());
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
