// Tests memory that is registered with the host backend: windows on all ranks or only on some,
// memory of the caller, shared work on oversubscribed hosts, and ranks that disappear.
//
// If the job reports 1000 ranks per host, ranks share work on any machine. If it reports 1 rank per
// host, they share work only if the group has more ranks than cores.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

// Values of atoll_group::host_ranks with which the tests run.
const std::vector<int> neighbours = {1, 1000};
// Enough elements for several units of shared work and several rounds through staging memory.
constexpr std::uint64_t largest = 200'003;

// The kinds of memory that the ranks of a group use.
enum class Kind {
  window,         // memory of mem_alloc(), registered
  deregistered,   // the same, but no longer registered
  plain,          // memory of malloc
  mixed_by_rank,  // even ranks have windows, odd ranks plain memory
};

// Memory of a rank for f32 elements. Registering is collective, so ranks with plain memory register
// it if others have windows.
class Memory {
 public:
  Memory(Rank& rank, Kind kind, std::uint64_t count) : plain_(count) {
    const bool is_plain =
        kind == Kind::plain || (kind == Kind::mixed_by_rank && rank.rank() % 2 != 0);
    const std::size_t bytes = count * sizeof(float);
    if (!is_plain) REQUIRE(backend().mem_alloc(bytes, ATOLL_MEMORY_CPU, -1, &window_) == ATOLL_OK);
    if (kind != Kind::plain) expect_ok(rank.register_memory(data(), bytes));
    if (kind != Kind::deregistered) return;
    expect_ok(rank.deregister_memory(data()));
    CHECK(rank.deregister_memory(data()).status == ATOLL_NOT_FOUND);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  // Frees the memory but does not deregister it, because the communicator may be closed already.
  ~Memory() {
    if (window_ != nullptr) backend().mem_free(window_);
  }
  float* data() { return window_ != nullptr ? static_cast<float*>(window_) : plain_.data(); }

 private:
  void* window_ = nullptr;
  std::vector<float> plain_;
};

using Hashes = std::vector<std::size_t>;

// Sums fractions, whose sum depends on the order, in place and out of place, by each collective
// that reduces. Returns hashes of the memory of this rank after each sum.
Hashes sums_of(Rank& rank, Kind kind, std::uint64_t count) {
  const std::uint64_t whole = count * static_cast<std::uint64_t>(rank.size());
  Memory in(rank, kind, whole), out(rank, kind, whole);
  const Bytes mine = noisy_input(rank.rank(), whole);
  Hashes results;
  for (const auto collective : {ATOLL_REDUCE_SCATTER, ATOLL_ALL_REDUCE, ATOLL_REDUCE}) {
    const bool scatters = collective == ATOLL_REDUCE_SCATTER;
    for (const bool in_place : {false, true}) {
      std::memcpy(in.data(), mine.data(), mine.size());
      std::memset(out.data(), 0, mine.size());
      float* const own = in.data() + static_cast<std::uint64_t>(rank.rank()) * count;
      float* const dst = !in_place ? out.data() : scatters ? own : in.data();
      auto o = rank.operation(collective, ATOLL_F32, in.data(), dst, scatters ? count : whole);
      if (collective == ATOLL_REDUCE) o.peer = rank.size() - 1;
      if (collective == ATOLL_REDUCE && rank.rank() != o.peer) o.dst = nullptr;
      expect_ok(rank.submit(o));
      for (Memory* const memory : {&in, &out})
        results.push_back(std::hash<std::string_view>{}(
            {reinterpret_cast<const char*>(memory->data()), mine.size()}));
    }
  }
  return results;
}

std::vector<Hashes> sums_on(const Layout& layout, Kind kind, std::uint64_t count,
                            const GroupOptions& options) {
  std::vector<Hashes> results(layout.size());
  run_ranks(
      backend(), layout,
      [&](Rank& rank) {
        results[static_cast<std::size_t>(rank.rank())] = sums_of(rank, kind, count);
      },
      options);
  return results;
}

// Two windows of a rank, between which it sums and gathers.
struct Windows {
  explicit Windows(Rank& its_rank)
      : rank(its_rank), in(its_rank, Kind::window, largest), out(its_rank, Kind::window, largest) {}

  Result sum(std::uint64_t count = largest) {
    std::fill_n(in.data(), count, static_cast<float>(rank.rank() + 1));
    return rank.submit(rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, in.data(), out.data(), count));
  }
  bool has_sums(std::uint64_t count = largest) {
    const auto sum = static_cast<float>(rank.size() * (rank.size() + 1) / 2);
    return std::all_of(out.data(), out.data() + count, [&](float value) { return value == sum; });
  }
  void check_sum(std::uint64_t count) {
    expect_ok(sum(count));
    CHECK(has_sums(count));
  }
  void check_gather(std::uint64_t count) {
    std::fill_n(in.data(), count, static_cast<float>(rank.rank() + 1));
    expect_ok(
        rank.submit(rank.operation(ATOLL_ALL_GATHER, ATOLL_F32, in.data(), out.data(), count)));
    bool is_right = true;
    for (std::uint64_t i = 0; i < count * static_cast<std::uint64_t>(rank.size()); ++i)
      is_right = is_right && out.data()[i] == static_cast<float>(i / count + 1);
    CHECK(is_right);
  }

  Rank& rank;
  Memory in, out;
};

}  // namespace

// The conformance suite compares the results of all collectives with closed forms.
TEST_CASE("sums in every kind of memory have the same bits") {
  for (const Layout& layout :
       {Layout{0, 0}, Layout{0, 0, 0}, Layout{0, 0, 0, 0, 0}, Layout{0, 0, 1, 1}}) {
    // With the larger counts the data forms several pieces, and the last ends within a cache line.
    for (const std::uint64_t count : {1000u, 30'001u, 70'001u}) {
      CAPTURE(text(layout));
      CAPTURE(count);
      const auto expected = sums_on(layout, Kind::window, count, {});
      for (const Kind kind : {Kind::plain, Kind::deregistered, Kind::mixed_by_rank})
        CHECK((sums_on(layout, kind, count, {}) == expected));
      for (const Kind kind : {Kind::plain, Kind::window})
        CHECK((sums_on(layout, kind, count, {.host_ranks = 1000}) == expected));
    }
  }
}

TEST_CASE("registered memory of malloc stays slow, and the text says why") {
  run_ranks(backend(), {0, 0}, [&](Rank& rank) {
    std::vector<float> data(100'000);
    std::string slow;
    expect_ok(rank.register_caller_memory(data.data(), 400'000, slow));
    CHECK(contains(slow, "memory from allocate() or a shared mapping of a file is faster"));
    const Result again = rank.register_caller_memory(data.data() + 10, 4, slow);
    CHECK(again.status == ATOLL_INVALID_ARGUMENT);
    CHECK(contains(again.text, "end that registration first"));
    expect_ok(rank.deregister_caller_memory(data.data()));
    CHECK(rank.deregister_caller_memory(data.data()).status == ATOLL_NOT_FOUND);
  });
}

TEST_CASE("a rank alone on its host has fast memory; null is refused") {
  run_ranks(backend(), {0}, [&](Rank& rank) {
    std::vector<float> data(1000);
    std::string slow = "unset";
    expect_ok(rank.register_caller_memory(data.data(), 4000, slow));
    CHECK(slow.empty());
    CHECK(rank.register_caller_memory(nullptr, 4, slow).status == ATOLL_INVALID_ARGUMENT);
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
    if (result.status != ATOLL_MISMATCH) continue;
    ++mismatches;
    CHECK_MESSAGE((contains(result.text, "registers 400 bytes") ||
                   contains(result.text, "registers 200 bytes")),
                  result.text);
  }
  CHECK(mismatches >= 1);
}

// In many consecutive steps, some ranks are late. A late rank may find that other ranks have done
// all the shared work of its step, or that they already work on the next step.
TEST_CASE("many consecutive steps are correct") {
  for (const Layout& layout : {Layout{0, 0}, Layout{0, 0, 0, 0, 0}}) {
    for (const int host_ranks : neighbours) {
      run_ranks(backend(), layout,
                [](Rank& rank) {
                  Windows windows(rank);
                  for (int round = 0; round < 100; ++round) {
                    windows.check_sum(3001);
                    windows.check_gather(20'011);
                    windows.check_sum(5);
                  }
                },
                {.host_ranks = host_ranks});
    }
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
          Windows windows(rank);
          windows.check_sum(largest);
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
          auto result = windows.sum();
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
      Windows windows(rank);
      if (r == 0) {
        const std::jthread aborting([&] {
          std::this_thread::sleep_for(50ms);
          rank.abort();
        });
        const auto result = windows.sum();
        CHECK_MESSAGE(result.status == ATOLL_ABORTED, result.text);
        gone = true;
        return;
      }
      while (r == 2 && !gone) std::this_thread::sleep_for(1ms);
      rank.timeout_ns = second / 2;
      auto result = windows.sum();
      if (result.status == ATOLL_OK) {
        CHECK(windows.has_sums());
        result = windows.sum();
      }
      CHECK_MESSAGE(result.status == ATOLL_TIMEOUT, result.text);
    });
  }
}
