#include "collectives/shared_memory/memory_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "sdk/backend.hpp"

namespace atoll_collectives {

using namespace atoll_sdk;

namespace {

struct Allocation {
  std::size_t bytes;
  std::shared_ptr<const Fd> file;
  Mapping mapping;
};

// All allocations of this process. The map is global because the plugin's C functions receive only
// an address to free or register memory. It is never destroyed, because operations may still use
// the memory when a program calls exit().
struct Allocations {
  std::mutex mutex;
  std::map<std::uintptr_t, Allocation> by_address;
};

Allocations& allocations() {
  static auto* const all = new Allocations;
  return *all;
}

std::uintptr_t address(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

constexpr std::size_t huge_page = std::size_t{1} << 21;

// Each large mapping begins on a huge page, and any 16 consecutive mappings begin on huge pages
// with different low four bits in their page numbers ("colours"). Without colours the kernel would
// place the mappings side by side, so that mappings of 256 MiB would be a power of two apart. A
// reduction that reads them in lockstep would then miss in the L1 cache of an EPYC, which selects
// lines by a hash of address bits 12 to 27: reductions of 256 MiB took 1.7 times as long.
constexpr std::size_t colours = 16;

// Returns the size of the address range to reserve for a mapping of `length` bytes. Addresses of
// the range outside the mapping stay unused.
std::size_t reserved_for(std::size_t length) {
  return length < huge_page ? length : length + (colours + 1) * huge_page;
}

// Returns the address in the range `reserved` at which to map a file from offset `start`. For large
// mappings the address allows huge pages, and successive mappings get different colours (low four
// bits of their huge-page numbers).
std::byte* first_address(void* reserved, std::size_t start, std::size_t length) {
  static std::atomic<std::size_t> mappings = 0;
  auto* first = static_cast<std::byte*>(reserved);
  if (length < huge_page) return first;
  first += (huge_page - address(first) % huge_page) % huge_page;
  const std::size_t wanted = mappings.fetch_add(1, std::memory_order_relaxed) + colours;
  const std::size_t colour = address(first) / huge_page % colours;
  return first + (wanted - colour) % colours * huge_page + start % huge_page;
}

}  // namespace

Mapping::Mapping(int fd, std::size_t offset, std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t start = offset / page * page;
  const std::size_t length = bytes + (offset - start);
  const std::size_t reserved = reserved_for(length);
  void* at =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at != MAP_FAILED) {
    reserved_ = std::unique_ptr<void, Unmap>(at, Unmap{reserved});
    at = ::mmap(first_address(at, start, length), length, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_POPULATE | MAP_FIXED, fd, static_cast<off_t>(start));
  }
  if (at == MAP_FAILED) {
    const int error = errno;
    throw Error(error == ENOMEM ? ATOLL_OUT_OF_MEMORY : ATOLL_IO,
                fmt::format("cannot map {} bytes of shared memory: {}", bytes,
                            std::generic_category().message(error)));
  }
  data_ = static_cast<std::byte*>(at) + (offset - start);
}

void Mapping::Unmap::operator()(void* range) const noexcept { ::munmap(range, length); }

int reserve_file(int fd, std::size_t bytes) noexcept {
  // Memory files count as files: beyond this limit the kernel would end the process by SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) return EFBIG;
  int error = 0;
  do {
    error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

namespace shared_memory {

void* allocate(std::size_t bytes) {
  auto file = std::make_shared<Fd>(::memfd_create("atoll", MFD_CLOEXEC));
  if (!*file) throw system_error("memfd_create", errno);
  if (const int error = reserve_file(file->get(), bytes); error != 0) {
    throw Error(ATOLL_OUT_OF_MEMORY, fmt::format("cannot reserve {} bytes of shared memory: {}",
                                                 bytes, std::generic_category().message(error)));
  }
  Mapping mapping(file->get(), 0, bytes);
  void* data = mapping.data();
  auto& all = allocations();
  const std::lock_guard lock(all.mutex);
  all.by_address.emplace(address(data), Allocation{bytes, std::move(file), std::move(mapping)});
  return data;
}

void free(void* memory) {
  auto& all = allocations();
  const std::lock_guard lock(all.mutex);
  if (all.by_address.erase(address(memory)) == 0) {
    throw Error(ATOLL_NOT_FOUND, "mem_free: mem_alloc did not return this address");
  }
}

std::optional<Range> find(const void* memory, std::size_t bytes) {
  auto& all = allocations();
  const std::lock_guard lock(all.mutex);
  const auto after = all.by_address.upper_bound(address(memory));
  if (after == all.by_address.begin()) return std::nullopt;
  const auto& [begin, allocation] = *std::prev(after);
  const std::size_t offset = address(memory) - begin;
  if (offset > allocation.bytes || bytes > allocation.bytes - offset) return std::nullopt;
  return Range{allocation.file, offset};
}

}  // namespace shared_memory
}  // namespace atoll_collectives
