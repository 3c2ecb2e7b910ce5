// Checks memory from atoll::allocate: every operation gives the same result as in plain memory,
// at any offset of src and dst, and also when only some ranks use registered memory. Checks
// atoll::register_memory, for memory of the caller, in the same way.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "atoll/error.hpp"
#include "checks.hpp"

namespace conformance {
namespace {

using atoll::Buffer;

constexpr std::size_t page = 4096;

std::span<std::byte> bytes_of(const Buffer& buffer) {
  return {static_cast<std::byte*>(buffer.data()), buffer.bytes()};
}

Buffer allocate(Rank& self, std::size_t bytes) {
  return atoll::allocate(self.comm.device(), bytes, {self.comm});
}

// Returns the size of an arena for src and dst of operations over `ranks` ranks with up to about 1
// MiB per rank.
std::size_t arena_bytes(int ranks) { return (unsigned_of(ranks) + 1) * (9u << 18) + (1u << 16); }

bool on_gpus(const Rank& self) { return self.comm.device().kind() == atoll::DeviceKind::cuda; }

// Restarts the arenas on GPUs. Operations on GPUs require the same offset into registered memory on
// all ranks (see communicator.hpp), but earlier operations took different amounts from the arena on
// each rank.
void at_one_offset(Rank& self) {
  if (!on_gpus(self)) return;
  for (Arena* arena : {self.source, self.target}) {
    if (arena) arena->restart();
  }
}

void exercise_small(Rank& self) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
    for (const std::uint64_t count :
         {std::uint64_t{0}, std::uint64_t{1}, unsigned_of(self.size()), std::uint64_t{1009}}) {
      at_one_offset(self);
      move(self, dtype, count);
      move_rooted(self, dtype, count, self.size() - 1);
      for (const auto& counts : uneven_counts(self.size(), count)) move_uneven(self, dtype, counts);
      at_one_offset(self);
      reduce(self, dtype, ReduceOp::sum, count);
      reduce_rooted(self, dtype, ReduceOp::max, count, 0);
      for (const auto& counts : uneven_counts(self.size(), count)) {
        reduce_uneven(self, dtype, ReduceOp::avg, counts);
      }
    }
  }
}

void exercise_large(Rank& self, DType dtype) {
  const std::uint64_t count = mebibyte_of(dtype);
  const std::uint64_t share = count / unsigned_of(self.size());
  at_one_offset(self);
  move(self, dtype, share);
  reduce(self, dtype, ReduceOp::sum, share);
  move_rooted(self, dtype, share, 0);
  reduce_rooted(self, dtype, ReduceOp::sum, count, self.size() - 1);
  const auto counts = uneven_counts(self.size(), share / 2)[1];
  move_uneven(self, dtype, counts);
  reduce_uneven(self, dtype, ReduceOp::sum, counts);
}

// Returns a copy of `self` whose operations place src in `source` and dst in `target`. A null arena
// means that the operations allocate plain memory.
Rank placed(const Rank& self, Arena* source, Arena* target) {
  return {self.world, self.comm, self.stream, self.report, source, target};
}

void fresh(Rank& self, const Buffer& buffer, std::size_t bytes) {
  self.report.expect(buffer.bytes() >= bytes, "allocate: size");
  self.report.expect(reinterpret_cast<std::uintptr_t>(buffer.data()) % page == 0,
                     "allocate: alignment");
  std::vector<std::byte> all(buffer.bytes());
  self.stream.copy(all.data(), buffer.data(), all.size());
  self.stream.synchronize();
  self.report.expect(std::ranges::all_of(all, [](std::byte b) { return b == std::byte{0}; }),
                     "allocate: not filled with zeros");
}

// Sums a value per rank with an all_reduce in part of the buffer. The part starts at a different
// offset on each rank, except on GPUs, which require the same offset on all ranks.
void use(Rank& self, const Buffer& buffer) {
  const std::uint64_t count = buffer.bytes() / sizeof(float) / 2 - 8;
  const std::uint64_t first = on_gpus(self) ? 3 : unsigned_of(self.rank() % 7);
  const atoll::View data = buffer.view(DType::f32).part(first, count);
  std::vector<float> values(count, static_cast<float>(self.rank() + 1));
  self.stream.copy(data.data, values.data(), data.bytes());
  self.comm.all_reduce(data, data, ReduceOp::sum, self.stream).wait(self.stream);
  self.stream.copy(values.data(), data.data, data.bytes());
  self.stream.synchronize();
  const auto sum = static_cast<float>(self.size() * (self.size() + 1) / 2);
  self.report.expect(std::ranges::all_of(values, [&](float v) { return v == sum; }),
                     "all_reduce in memory that was allocated again");
}

// Memory in a file that this rank maps, like tensors that a framework shares between processes.
class SharedMapping {
 public:
  explicit SharedMapping(std::size_t bytes)
      : fd_(::memfd_create("conformance", MFD_CLOEXEC)), bytes_(bytes) {
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("ftruncate");
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (data_ == MAP_FAILED) throw std::runtime_error("mmap");
  }
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping() {
    ::munmap(data_, bytes_);
    ::close(fd_);
  }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  int fd_;
  std::size_t bytes_;
  void* data_ = nullptr;
};

void expect_invalid(Rank& self, void* memory, std::size_t bytes,
                    std::initializer_list<std::reference_wrapper<atoll::Communicator>> who,
                    const std::string& text) {
  try {
    const auto registration = atoll::register_memory(memory, bytes, who);
    self.report.expect(false, "register_memory accepted a wrong argument");
  } catch (const atoll::Error& error) {
    self.report.expect(error.code() == atoll::ErrorCode::invalid_argument && error.what() == text,
                       error.what());
  }
}

}  // namespace

void check_caller_memory(Rank& self) {
  const std::string no_memory =
      "rank 0: register_memory on communicator " + std::string(self.comm.name()) +
      ": the memory is null or has 0 bytes: pass memory that is allocated";
  int word = 0;
  expect_invalid(self, nullptr, 4, {self.comm}, no_memory);
  expect_invalid(self, &word, 0, {self.comm}, no_memory);
  expect_invalid(self, &word, 4, {},
                 "register_memory: no communicator is given: name those that will use the memory");
  const Buffer plain = self.comm.device().allocate(arena_bytes(self.size()));
  atoll::Registration registration =
      atoll::register_memory(plain.data(), plain.bytes(), {self.comm});
  self.report.expect(registration.fast() == registration.slow().empty(),
                     "register_memory: no reason for slow memory");
  const auto& places = self.world.placements();
  const int here = places[static_cast<std::size_t>(self.world.rank())].host;
  const bool alone = std::ranges::count(places, here, &atoll::Placement::host) == 1;
  const bool shares = self.backend() == "host" || self.backend() == "verbs";
  if (shares && !alone) {
    const bool told = registration.slow().find("goes through staging buffers") != std::string::npos;
    self.report.expect(told, "memory of malloc: " + registration.slow());
  }
  Arena arena(bytes_of(plain));
  Rank inside = placed(self, &arena, &arena);
  exercise_large(inside, DType::f32);
  const atoll::Registration moved = std::move(registration);
  self.report.expect(moved.fast() == moved.slow().empty(), "a registration that was moved");
  {
    auto other = self.comm.split(0, 0);
    auto second = atoll::register_memory(plain.data(), plain.bytes(), {*other});
    Rank member{self.world, *other, self.stream, self.report, &arena, &arena};
    exercise_large(member, DType::bf16);
    second.deregister();
    self.report.expect(!second.fast() && second.slow() == "no memory is registered",
                       "a registration that has ended");
    exercise_large(member, DType::f32);
  }
  if (!shares) return;
  const SharedMapping file(arena_bytes(self.size()));
  const auto shared = atoll::register_memory(file.bytes().data(), file.bytes().size(), {self.comm});
  self.report.expect(shared.fast(), "a shared mapping is not fast: " + shared.slow());
  Arena mapped(file.bytes());
  Rank in_file = placed(self, &mapped, &mapped);
  exercise_large(in_file, DType::f32);
}

void check_registered_memory(Rank& self) {
  const Buffer one = allocate(self, arena_bytes(self.size()));
  const Buffer two = allocate(self, arena_bytes(self.size()));
  fresh(self, one, arena_bytes(self.size()));
  Arena first(bytes_of(one)), second(bytes_of(two));
  Rank same = placed(self, &first, &first);
  Rank apart = placed(self, &first, &second);
  exercise_small(same);
  exercise_small(apart);
  exercise_large(same, DType::f32);
  exercise_large(apart, DType::bf16);
}

void check_mixed_memory(Rank& self) {
  const Buffer one = allocate(self, arena_bytes(self.size()));
  Arena arena(bytes_of(one));
  const int last = self.size() - 1;
  // The five mixtures are: only src is registered; only dst is registered; rank 0 uses plain
  // memory; all ranks except the last use plain memory; even ranks register src and odd ranks
  // register dst.
  Rank mixtures[] = {
      placed(self, &arena, nullptr), placed(self, nullptr, &arena),
      self.rank() == 0 ? self : placed(self, &arena, &arena),
      self.rank() == last ? placed(self, &arena, &arena) : self,
      self.rank() % 2 == 0 ? placed(self, &arena, nullptr) : placed(self, nullptr, &arena)};
  for (Rank& mixture : mixtures) exercise_small(mixture);
  for (const std::size_t i : {0u, 1u, 4u}) exercise_large(mixtures[i], DType::f32);
}

void check_allocation(Rank& self) {
  self.report.expect(allocate(self, 0).data() == nullptr, "allocate: 0 bytes");
  // Keeps several buffers alive at once and frees them in an order that differs by rank, while new
  // buffers reuse the freed memory.
  std::deque<Buffer> alive;
  for (std::size_t round = 0; round < 40; ++round) {
    const std::size_t bytes = 1000 + round % 5 * 70001;
    alive.push_back(allocate(self, bytes));
    fresh(self, alive.back(), bytes);
    use(self, alive.back());
    if (alive.size() < 4) continue;
    const bool oldest = (round + unsigned_of(self.rank())) % 2 == 0;
    if (round % 8 < 4 || oldest) {
      alive.pop_front();
    } else {
      alive.pop_back();
    }
  }
  // Allocates one buffer for two communicators, one of which is destroyed before the buffer.
  Buffer shared;
  {
    auto other = self.comm.split(0, 0);
    shared = atoll::allocate(self.comm.device(), 300000, {self.comm, *other});
    use(self, shared);
    Rank member{self.world, *other, self.stream, self.report};
    use(member, shared);
  }
  use(self, shared);
  // Lets a task on the stream free a buffer before the next operation of its communicator.
  auto kept = std::make_shared<Buffer>(allocate(self, 50000));
  self.stream.enqueue([kept] {});
  kept.reset();
  self.comm.barrier(self.stream).synchronize();
  use(self, shared);
  // Keeps a buffer after its only communicator has been destroyed.
  Buffer orphan;
  {
    auto other = self.comm.split(0, 0);
    orphan = atoll::allocate(self.comm.device(), 300000, {*other});
    Rank member{self.world, *other, self.stream, self.report};
    use(member, orphan);
  }
  use(self, orphan);
  // Allocates on each rank alone; only rank 0 does it twice.
  if (self.rank() == 0)
    self.report.expect(atoll::allocate_alone(self.comm.device(), 5000, {self.comm}).data(),
                       "alone");
  const Buffer own = atoll::allocate_alone(self.comm.device(), 300000, {self.comm});
  use(self, own);
}

}  // namespace conformance
