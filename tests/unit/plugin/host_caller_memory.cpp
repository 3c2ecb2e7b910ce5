// Tests memory of the caller, which the host backend did not allocate: data that it copies through
// staging buffers, and registrations of such memory.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;

namespace {

constexpr const char* staged =
    "other processes cannot map this memory, so its data goes through staging buffers; memory from "
    "allocate() or a shared mapping of a file is faster";

const std::vector<Layout> caller_layouts = {{0, 0}, {0, 0, 0}, {0, 0, 0, 0, 0}, {0, 0, 1, 1}};
// Elements per rank. With the larger caller_counts the data forms several pieces, and the last
// piece ends within a cache line.
const std::vector<std::uint64_t> caller_counts = {1000, 30'001, 70'001};

// The kinds of memory that the ranks of a group use.
enum class Kind {
  window,         // memory of mem_alloc(), registered
  plain,          // memory of malloc
  mixed_by_rank,  // even ranks have windows, odd ranks plain memory
};

// Memory of a rank. Registering is collective, so windows are registered on all ranks.
class Memory {
 public:
  Memory(Rank& rank, Kind kind, std::size_t bytes) : plain_(bytes) {
    const bool window =
        kind == Kind::window || (kind == Kind::mixed_by_rank && rank.rank() % 2 == 0);
    if (window) REQUIRE(backend().mem_alloc(bytes, ATOLL_MEMORY_CPU, -1, &window_) == ATOLL_OK);
    if (kind != Kind::plain) expect_ok(rank.register_memory(data(), bytes));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (window_ != nullptr) backend().mem_free(window_);
  }
  void* data() { return window_ != nullptr ? window_ : plain_.data(); }

 private:
  void* window_ = nullptr;
  Bytes plain_;
};

using Hashes = std::vector<std::size_t>;

std::size_t hash_of(const void* memory, std::size_t bytes) {
  return std::hash<std::string_view>{}({static_cast<const char*>(memory), bytes});
}

// Performs every collective with fractions whose sum depends on the order. Returns hashes of both
// buffers of this rank after each operation.
Hashes results_of(Rank& rank, Kind kind, std::uint64_t count) {
  const auto ranks = static_cast<std::uint64_t>(rank.size());
  const std::uint64_t whole = count * ranks;
  const std::size_t bytes = whole * sizeof(float);
  Memory in(rank, kind, bytes), out(rank, kind, bytes);
  const Bytes mine = noisy_input(rank.rank(), whole);
  Hashes results;
  const auto run = [&](std::int32_t operation_kind, int root, bool in_place, std::uint64_t n) {
    std::memcpy(in.data(), mine.data(), bytes);
    std::memset(out.data(), 0, bytes);
    auto* src = static_cast<std::byte*>(in.data());
    auto* dst = static_cast<std::byte*>(out.data());
    const std::size_t own = static_cast<std::size_t>(rank.rank()) * count * sizeof(float);
    if (in_place) {
      dst = operation_kind == ATOLL_REDUCE_SCATTER ? src + own : src;
      if (operation_kind == ATOLL_ALL_GATHER) src += own;
    }
    auto o = rank.operation(operation_kind, ATOLL_F32, src, dst, n);
    o.peer = root;
    const bool rooted = operation_kind == ATOLL_REDUCE || operation_kind == ATOLL_GATHER;
    if (rooted && rank.rank() != root) o.dst = nullptr;
    if (operation_kind == ATOLL_BROADCAST && rank.rank() != root) o.src = o.dst;
    if (operation_kind == ATOLL_SCATTER && rank.rank() != root) o.src = nullptr;
    expect_ok(rank.submit(o));
    for (void* memory : {in.data(), out.data()}) results.push_back(hash_of(memory, bytes));
  };
  const int last = rank.size() - 1;
  for (const bool in_place : {false, true}) {
    run(ATOLL_ALL_GATHER, 0, in_place, count);
    run(ATOLL_REDUCE_SCATTER, 0, in_place, count);
    run(ATOLL_ALL_REDUCE, 0, in_place, whole);
    run(ATOLL_BROADCAST, last, in_place, whole);
    run(ATOLL_REDUCE, last, in_place, whole);
  }
  run(ATOLL_ALL_TO_ALL, 0, false, count);
  run(ATOLL_GATHER, last, false, count);
  run(ATOLL_SCATTER, 0, false, count);
  return results;
}

std::vector<Hashes> results_on(const Layout& layout, Kind kind, std::uint64_t count,
                               const GroupOptions& options) {
  std::vector<Hashes> results(layout.size());
  run_ranks(
      backend(), layout,
      [&](Rank& rank) {
        results[static_cast<std::size_t>(rank.rank())] = results_of(rank, kind, count);
      },
      options);
  return results;
}

// A file in memory that a rank maps, like tensors that a framework shares between processes.
class SharedMapping {
 public:
  explicit SharedMapping(std::size_t bytes)
      : bytes_(bytes), fd_(::memfd_create("test", MFD_CLOEXEC)) {
    REQUIRE(::ftruncate(fd_, static_cast<off_t>(bytes)) == 0);
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    REQUIRE(memory_ != MAP_FAILED);
  }
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping() {
    ::munmap(memory_, bytes_);
    ::close(fd_);
  }
  float* data() { return static_cast<float*>(memory_); }

 private:
  std::size_t bytes_;
  int fd_;
  void* memory_ = nullptr;
};

void check_sum(Rank& rank, float* data, std::uint64_t count) {
  std::fill_n(data, count, static_cast<float>(rank.rank() + 1));
  expect_ok(rank.submit(rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, data, data, count)));
  const auto sum = static_cast<float>(rank.size() * (rank.size() + 1) / 2);
  CHECK(std::all_of(data, data + count, [&](float value) { return value == sum; }));
}

}  // namespace

TEST_CASE("plain memory gives the same bits as windows") {
  for (const Layout& layout : caller_layouts) {
    for (const std::uint64_t count : caller_counts) {
      CAPTURE(text(layout));
      CAPTURE(count);
      const auto expected = results_on(layout, Kind::window, count, {});
      CHECK((results_on(layout, Kind::plain, count, {}) == expected));
      CHECK((results_on(layout, Kind::mixed_by_rank, count, {}) == expected));
      CHECK((results_on(layout, Kind::plain, count, {.host_ranks = 1000}) == expected));
    }
  }
}

TEST_CASE("a shared mapping of a file is fast once it is registered, and may be freed afterwards") {
  constexpr std::uint64_t count = 200'003;
  constexpr std::size_t bytes = count * sizeof(float);
  run_ranks(backend(), {0, 0, 0}, [&](Rank& rank) {
    for (int round = 0; round < 3; ++round) {
      SharedMapping file(2 * bytes);
      std::string slow = "unset";
      // A range within the mapping, which begins within a page.
      expect_ok(rank.register_caller_memory(file.data() + 7, bytes, slow));
      CHECK(slow.empty());
      check_sum(rank, file.data() + 7, count);
      expect_ok(rank.deregister_caller_memory(file.data() + 7));
      check_sum(rank, file.data() + 7, count);
    }
  });
}

TEST_CASE("registered memory of malloc stays slow, and the text says why") {
  run_ranks(backend(), {0, 0}, [&](Rank& rank) {
    std::vector<float> data(100'000);
    std::string slow;
    expect_ok(rank.register_caller_memory(data.data(), 400'000, slow));
    CHECK(slow == staged);
    const Result again = rank.register_caller_memory(data.data() + 10, 4, slow);
    CHECK(again.status == ATOLL_INVALID_ARGUMENT);
    CHECK(again.text ==
          "this memory overlaps memory that is registered already: end that registration first");
    check_sum(rank, data.data(), data.size());
    expect_ok(rank.deregister_caller_memory(data.data()));
    CHECK(rank.deregister_caller_memory(data.data()).status == ATOLL_NOT_FOUND);
    check_sum(rank, data.data(), data.size());
  });
}

TEST_CASE("a rank alone on its host has fast memory; null is refused") {
  run_ranks(backend(), {0}, [&](Rank& rank) {
    std::vector<float> data(1000);
    std::string slow = "unset";
    expect_ok(rank.register_caller_memory(data.data(), 4000, slow));
    CHECK(slow.empty());
    const Result none = rank.register_caller_memory(nullptr, 4, slow);
    CHECK(none.status == ATOLL_INVALID_ARGUMENT);
    CHECK(none.text == "register at least one byte of memory");
  });
}

TEST_CASE("ranks that register different sizes get a mismatch that names both") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 0});
  const auto results = until_one_fails(ranks, [](Rank& rank) {
    std::vector<float> data(100);
    std::string slow;
    return rank.register_caller_memory(data.data(), rank.rank() == 0 ? 400 : 200, slow);
  });
  int mismatches = 0;
  for (const auto& result : results) {
    const bool named = result.text.find("registers 400 bytes") != std::string::npos ||
                       result.text.find("registers 200 bytes") != std::string::npos;
    if (result.status != ATOLL_MISMATCH) continue;
    ++mismatches;
    CHECK_MESSAGE(named, result.text);
  }
  CHECK(mismatches >= 1);
}
