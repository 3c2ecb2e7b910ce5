// Tests registered memory of the host backend: windows on all ranks or only on some, shared work on
// oversubscribed hosts, and failures in both cases when a rank disappears.
//
// If the job reports 1000 ranks per host, ranks share work on any machine. If it reports 1 rank per
// host, they share work only if the group has more ranks than cores.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

const std::vector<Layout> window_layouts = {{0},          {0, 0},          {0, 0, 0},
                                            {0, 0, 0, 0}, {0, 0, 0, 0, 0}, {0, 0, 1, 1}};
// Values of atoll_group::host_ranks with which the tests run.
const std::vector<int> neighbours = {1, 1000};

// Numbers of elements over all ranks. The largest counts need several jobs and several staging
// rounds.
constexpr std::uint64_t largest = 200'003;
const std::vector<std::uint64_t> sizes = {0, 1, 1031, 3001, 20'011, largest};

// Offsets in elements: a registered range begins inside an allocation, and a buffer begins inside a
// registered range.
constexpr std::size_t registered_at = 3;
constexpr std::size_t data_at = 8;
constexpr std::size_t capacity = data_at + largest + 16;
constexpr std::size_t registered_bytes = (capacity - registered_at) * sizeof(float);

// Memory of a rank for f32 elements: either memory of mem_alloc(), which becomes a window, or plain
// memory. Plain memory is registered as well, because registration is collective over the ranks of
// a host.
class Buffer {
 public:
  Buffer(Rank& rank, bool window) : rank_(rank) {
    if (window) {
      const std::size_t bytes = capacity * sizeof(float);
      REQUIRE(backend().mem_alloc(bytes, ATOLL_MEMORY_CPU, -1, &window_) == ATOLL_OK);
    } else {
      plain_.resize(capacity);
    }
    enlist();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  // Frees the memory but does not deregister it, because the communicator may be closed already.
  ~Buffer() {
    if (window_ != nullptr) backend().mem_free(window_);
  }

  float* data() { return base() + data_at; }

  void enlist() { expect_ok(rank_.register_memory(base() + registered_at, registered_bytes)); }
  void delist() { expect_ok(rank_.deregister_memory(base() + registered_at)); }

 private:
  float* base() { return window_ != nullptr ? static_cast<float*>(window_) : plain_.data(); }

  Rank& rank_;
  void* window_ = nullptr;
  std::vector<float> plain_;
};

// Which of a rank's two buffers are windows.
struct Windows {
  bool in = true;
  bool out = true;
};

struct Buffers {
  Buffers(Rank& rank_, Windows which) : rank(rank_), in(rank_, which.in), out(rank_, which.out) {}
  Rank& rank;
  Buffer in;
  Buffer out;
};

// Returns numbers that differ between ranks, jobs and rounds, so that a test detects a misplaced
// piece. They are whole and small, so that sums are exact.
std::vector<float> numbers(int factor, std::uint64_t first, std::uint64_t count) {
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<std::uint64_t>(factor) * ((first + i) % 1021 + 1));
  }
  return values;
}

std::vector<float> numbers_of(const Rank& rank, std::uint64_t count) {
  return numbers(rank.rank() + 1, 0, count);
}

std::vector<float> sums(const Rank& rank, std::uint64_t first, std::uint64_t count) {
  return numbers(rank.size() * (rank.size() + 1) / 2, first, count);
}

float* put(float* at, const std::vector<float>& values) {
  std::copy(values.begin(), values.end(), at);
  return at;
}

// Fills the destination of `count` elements, and one element after it that must stay unchanged,
// with a marker.
float* blank(Buffer& buffer, std::uint64_t count) {
  std::fill_n(buffer.data(), count + 1, -1.0F);
  return buffer.data();
}

// Submits the operation and compares its result with `expected`. Also checks that the element after
// the result is unchanged.
void expect(Rank& rank, const atoll_operation& o, const float* got,
            const std::vector<float>& expected) {
  const float behind = got[expected.size()];
  expect_ok(rank.submit(o));
  const bool right = std::equal(expected.begin(), expected.end(), got);
  const auto what = "kind " + std::to_string(o.kind) + ", count " + std::to_string(o.count);
  CHECK_MESSAGE((right && got[expected.size()] == behind), what);
}

// The number of elements of each rank. If `even` is true, the test uses the collective without _v.
struct Blocks {
  std::vector<std::uint64_t> counts;  // number of elements of each rank
  bool even;

  std::uint64_t of(int rank) const { return counts[static_cast<std::size_t>(rank)]; }
  std::uint64_t before(int rank) const {
    return std::accumulate(counts.begin(), counts.begin() + rank, std::uint64_t{0});
  }
  std::uint64_t whole() const { return before(static_cast<int>(counts.size())); }
};

Blocks even_blocks(int ranks, std::uint64_t whole) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return {std::vector<std::uint64_t>(n, (whole + n - 1) / n), true};
}

// Returns blocks of different sizes: ranks 1, 4, ... have no elements, and rank 0 has the
// remainder.
Blocks uneven_blocks(int ranks, std::uint64_t whole) {
  Blocks blocks{std::vector<std::uint64_t>(static_cast<std::size_t>(ranks), 0), false};
  for (std::size_t rank = 2; rank < blocks.counts.size(); ++rank) {
    if (rank % 3 != 1) blocks.counts[rank] = whole / (rank + 2);
  }
  blocks.counts[0] = whole - blocks.whole();
  return blocks;
}

// Returns the operation of this kind, or of its _v form if the blocks are uneven.
atoll_operation operation(const Rank& rank, std::int32_t kind, const Blocks& blocks,
                          const float* src, float* dst) {
  const std::int32_t uneven =
      kind == ATOLL_ALL_GATHER ? ATOLL_ALL_GATHER_V : ATOLL_REDUCE_SCATTER_V;
  auto o = rank.operation(blocks.even ? kind : uneven, ATOLL_F32, src, dst,
                          blocks.even ? blocks.of(0) : blocks.whole());
  o.counts = blocks.counts.data();
  return o;
}

atoll_operation rooted(const Rank& rank, std::int32_t kind, int root, const float* src, float* dst,
                       std::uint64_t count) {
  auto o = rank.operation(kind, ATOLL_F32, src, dst, count);
  o.peer = root;
  return o;
}

// Returns the expected result of an all_gather: one block per rank. The block contains the numbers
// of that rank, starting with number `first`.
std::vector<float> gathered(const Blocks& blocks, std::uint64_t first) {
  std::vector<float> all;
  for (int rank = 0; rank < static_cast<int>(blocks.counts.size()); ++rank) {
    const auto part = numbers(rank + 1, first, blocks.of(rank));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void check_all_gather(Buffers& buffers, const Blocks& blocks) {
  Rank& rank = buffers.rank;
  const auto expected = gathered(blocks, 0);
  const auto mine = numbers_of(rank, blocks.of(rank.rank()));
  float* out = blank(buffers.out, expected.size());
  auto o = operation(rank, ATOLL_ALL_GATHER, blocks, put(buffers.in.data(), mine), out);
  expect(rank, o, out, expected);
  blank(buffers.out, expected.size());
  o.src = put(out + blocks.before(rank.rank()), mine);
  expect(rank, o, out, expected);
}

void check_reduce_scatter(Buffers& buffers, const Blocks& blocks) {
  Rank& rank = buffers.rank;
  const std::uint64_t first = blocks.before(rank.rank());
  const auto expected = sums(rank, first, blocks.of(rank.rank()));
  float* in = put(buffers.in.data(), numbers_of(rank, blocks.whole()));
  float* out = blank(buffers.out, expected.size());
  auto o = operation(rank, ATOLL_REDUCE_SCATTER, blocks, in, out);
  expect(rank, o, out, expected);
  o.dst = in + first;
  expect(rank, o, in + first, expected);
}

Result all_reduce_largest(Buffers& buffers) {
  Rank& rank = buffers.rank;
  const float* in = put(buffers.in.data(), numbers_of(rank, largest));
  float* out = blank(buffers.out, largest);
  return rank.submit(rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, in, out, largest));
}

void check_all_reduce(Buffers& buffers, std::uint64_t count) {
  Rank& rank = buffers.rank;
  const auto expected = sums(rank, 0, count);
  float* in = put(buffers.in.data(), numbers_of(rank, count));
  float* out = blank(buffers.out, count);
  auto o = rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, in, out, count);
  expect(rank, o, out, expected);
  o.dst = in;
  expect(rank, o, in, expected);
}

void check_all_to_all(Buffers& buffers, const Blocks& blocks) {
  Rank& rank = buffers.rank;
  const auto expected = gathered(blocks, blocks.before(rank.rank()));
  const float* in = put(buffers.in.data(), numbers_of(rank, blocks.whole()));
  float* out = blank(buffers.out, blocks.whole());
  expect(rank, rank.operation(ATOLL_ALL_TO_ALL, ATOLL_F32, in, out, blocks.of(0)), out, expected);
}

void check_broadcast(Buffers& buffers, std::uint64_t count, int root) {
  Rank& rank = buffers.rank;
  const bool is_root = rank.rank() == root;
  const auto expected = numbers(root + 1, 0, count);
  const float* in = is_root ? put(buffers.in.data(), expected) : nullptr;
  float* out = blank(buffers.out, count);
  auto o = rooted(rank, ATOLL_BROADCAST, root, in, out, count);
  expect(rank, o, out, expected);
  blank(buffers.out, count);
  if (is_root) put(out, expected);
  o.src = out;
  expect(rank, o, out, expected);
}

// Checks a reduce: the root has the sums, and the dst of all other ranks is unchanged.
void check_reduce(Buffers& buffers, std::uint64_t count, int root) {
  Rank& rank = buffers.rank;
  const bool is_root = rank.rank() == root;
  const auto mine = numbers_of(rank, count);
  const auto expected = is_root ? sums(rank, 0, count) : mine;
  float* in = put(buffers.in.data(), mine);
  float* out = blank(buffers.out, count);
  auto o = rooted(rank, ATOLL_REDUCE, root, in, is_root ? out : nullptr, count);
  expect(rank, o, is_root ? out : in, expected);
  if (is_root) o.dst = in;
  expect(rank, o, in, expected);
}

void check_gather(Buffers& buffers, const Blocks& blocks, int root) {
  Rank& rank = buffers.rank;
  const bool is_root = rank.rank() == root;
  const auto mine = numbers_of(rank, blocks.of(rank.rank()));
  const auto expected = is_root ? gathered(blocks, 0) : mine;
  float* in = put(buffers.in.data(), mine);
  float* out = blank(buffers.out, blocks.whole());
  auto o = rooted(rank, ATOLL_GATHER, root, in, is_root ? out : nullptr, blocks.of(root));
  expect(rank, o, is_root ? out : in, expected);
  blank(buffers.out, blocks.whole());
  if (is_root) o.src = put(out + blocks.before(root), mine);
  expect(rank, o, is_root ? out : in, expected);
}

void check_scatter(Buffers& buffers, const Blocks& blocks, int root) {
  Rank& rank = buffers.rank;
  const bool is_root = rank.rank() == root;
  const std::uint64_t count = blocks.of(root);
  const auto expected = numbers(root + 1, blocks.before(rank.rank()), count);
  float* in = put(buffers.in.data(), numbers_of(rank, blocks.whole()));
  float* out = blank(buffers.out, count);
  auto o = rooted(rank, ATOLL_SCATTER, root, is_root ? in : nullptr, out, count);
  expect(rank, o, out, expected);
  blank(buffers.out, count);
  float* place = is_root ? in + blocks.before(root) : out;
  o.dst = place;
  expect(rank, o, place, expected);
}

void check_all(Buffers& buffers, std::uint64_t whole) {
  const int ranks = buffers.rank.size();
  const auto even = even_blocks(ranks, whole);
  const auto uneven = uneven_blocks(ranks, whole);
  auto reversed = uneven;
  std::reverse(reversed.counts.begin(), reversed.counts.end());
  for (const auto& blocks : {even, uneven, reversed}) {
    check_all_gather(buffers, blocks);
    check_reduce_scatter(buffers, blocks);
  }
  check_all_reduce(buffers, whole);
  check_all_to_all(buffers, even);
  for (const int root : {0, ranks - 1}) {
    check_broadcast(buffers, whole, root);
    check_reduce(buffers, whole, root);
    check_gather(buffers, even, root);
    check_scatter(buffers, even, root);
  }
}

// Runs body(buffers) on all ranks. On the last rank, only the buffers that `last` selects are
// windows. On all other ranks, both buffers are windows.
void with_buffers(const Layout& layout, Windows last, const std::function<void(Buffers&)>& body) {
  for (const int host_ranks : neighbours) {
    const auto on_rank = [&](Rank& rank) {
      CAPTURE(text(layout));
      CAPTURE(host_ranks);
      Buffers buffers(rank, rank.rank() == rank.size() - 1 ? last : Windows{});
      body(buffers);
    };
    run_ranks(backend(), layout, on_rank, {.host_ranks = host_ranks});
  }
}

std::atomic<bool> next_sum_fails = false;

atoll_status reduce_or_fail(void* ctx, const atoll_reduction* reduction) {
  static const FakeCore working;
  if (next_sum_fails.exchange(false)) return ATOLL_BACKEND;
  return working.host().reduce(ctx, reduction);
}

}  // namespace

TEST_CASE("collectives are correct with windows on all ranks") {
  for (const auto& layout : window_layouts) {
    with_buffers(layout, {}, [](Buffers& buffers) {
      for (const auto whole : sizes) check_all(buffers, whole);
    });
  }
}

TEST_CASE("collectives are correct if one rank has plain memory and the others have windows") {
  for (const Layout& layout : {Layout{0, 0}, Layout{0, 0, 0, 0, 0}, Layout{0, 0, 1, 1}}) {
    for (const Windows last : {Windows{false, false}, Windows{false, true}, Windows{true, false}}) {
      with_buffers(layout, last, [](Buffers& buffers) {
        for (const std::uint64_t whole : {std::uint64_t{1031}, std::uint64_t{20'011}, largest})
          check_all(buffers, whole);
      });
    }
  }
}

TEST_CASE("deregistered memory is used like plain memory until it is registered again") {
  for (const Layout& layout : {Layout{0, 0}, Layout{0, 0, 0}, Layout{0, 0, 1, 1}}) {
    with_buffers(layout, {}, [](Buffers& buffers) {
      check_all(buffers, 20'011);
      buffers.out.delist();
      check_all(buffers, 20'011);
      buffers.in.delist();
      check_all(buffers, largest);
      CHECK(buffers.rank.deregister_memory(buffers.in.data()).status == ATOLL_NOT_FOUND);
      // Registers the two windows again, in the opposite order.
      buffers.out.enlist();
      buffers.in.enlist();
      check_all(buffers, 20'011);
    });
  }
}

// In many consecutive steps, some ranks are late. A late rank may find that all jobs of its step
// are done, or that jobs of the next step are in progress.
TEST_CASE("many consecutive steps are correct") {
  for (const Layout& layout : {Layout{0, 0}, Layout{0, 0, 0, 0, 0}}) {
    with_buffers(layout, {}, [](Buffers& buffers) {
      for (int round = 0; round < 100; ++round) {
        check_all_reduce(buffers, 3001);
        check_all_gather(buffers, even_blocks(buffers.rank.size(), 20'011));
        check_all_reduce(buffers, 5);
      }
    });
  }
}

TEST_CASE("if a rank aborts before a step, no other rank waits forever in that step") {
  for (const Layout& layout : {Layout{0, 0, 0}, Layout{0, 0, 1, 1}}) {
    for (const int host_ranks : neighbours) {
      for (const bool closes : {false, true}) {
        CAPTURE(text(layout));
        CAPTURE(host_ranks);
        CAPTURE(closes);
        const int last = static_cast<int>(layout.size()) - 1;
        FakeCore core;
        auto ranks = open_ranks(backend(), core, layout, {.host_ranks = host_ranks});
        const auto body = [&](Rank& rank) -> Result {
          Buffers buffers(rank, {});
          check_all_reduce(buffers, largest);
          if (rank.rank() == last) {
            std::this_thread::sleep_for(50ms);
            rank.abort();
            if (closes) rank.close();
            return {};
          }
          // If the aborted rank does not close its communicator, the other ranks do not notice the
          // abort, and their timeout ends the wait.
          rank.timeout_ns = closes ? 10 * second : second / 2;
          const auto begin = Clock::now();
          auto result = all_reduce_largest(buffers);
          CHECK(Clock::now() - begin < 10s);
          return result;
        };
        auto results = until_one_fails(ranks, body, last);
        results.pop_back();
        const atoll_status missed = closes ? ATOLL_PEER_LOST : ATOLL_TIMEOUT;
        int told = 0;
        for (const auto& result : results) {
          told += result.status == missed ? 1 : 0;
          CHECK_MESSAGE((result.status == missed || result.status == ATOLL_ABORTED), result.text);
        }
        CHECK(told >= 1);
      }
    }
  }
}

// With shared work the other ranks also do the work of the aborted rank, so they wait for that rank
// only in the next step.
TEST_CASE("if a rank aborts within a step, the other ranks wait at most until their deadline") {
  for (const int host_ranks : neighbours) {
    CAPTURE(host_ranks);
    FakeCore core;
    auto ranks = open_ranks(backend(), core, {0, 0, 0}, {.host_ranks = host_ranks});
    std::atomic<bool> gone = false;
    in_threads(3, [&](int r) {
      auto& rank = ranks[static_cast<std::size_t>(r)];
      Buffers buffers(rank, {});
      if (r == 0) {
        const std::jthread aborting([&] {
          std::this_thread::sleep_for(50ms);
          rank.abort();
        });
        const auto result = all_reduce_largest(buffers);
        CHECK_MESSAGE(result.status == ATOLL_ABORTED, result.text);
        gone = true;
        return;
      }
      while (r == 2 && !gone) std::this_thread::sleep_for(1ms);
      rank.timeout_ns = second / 2;
      auto result = all_reduce_largest(buffers);
      if (result.status == ATOLL_OK) {
        const auto expected = sums(rank, 0, largest);
        CHECK(std::equal(expected.begin(), expected.end(), buffers.out.data()));
        result = all_reduce_largest(buffers);
      }
      CHECK_MESSAGE(result.status == ATOLL_TIMEOUT, result.text);
    });
  }
}

TEST_CASE("if a rank fails in a shared job, the ranks that wait for the job are aborted") {
  for (const Layout& layout : {Layout{0, 0}, Layout{0, 0, 0, 0}}) {
    for (const int host_ranks : neighbours) {
      CAPTURE(text(layout));
      CAPTURE(host_ranks);
      FakeCore core;
      core.host().reduce = &reduce_or_fail;
      auto ranks = open_ranks(backend(), core, layout, {.host_ranks = host_ranks});
      next_sum_fails = true;
      const auto results = until_one_fails(ranks, [](Rank& rank) {
        Buffers buffers(rank, {});
        return all_reduce_largest(buffers);
      });
      int failed = 0;
      for (const auto& result : results) {
        failed += result.status == ATOLL_BACKEND ? 1 : 0;
        if (result.status == ATOLL_BACKEND) continue;
        CHECK_MESSAGE(result.status == ATOLL_ABORTED, result.text);
        CHECK_MESSAGE(result.text.find("not finished") != std::string::npos, result.text);
      }
      CHECK(failed == 1);
    }
  }
}
