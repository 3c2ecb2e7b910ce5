// Tests the verbs backend through its table, with threads as ranks on adapters that exist only in
// this process. All ranks use all adapters.
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "unit/fake_verbs.hpp"
#include "unit/plugin/collectives.hpp"
#include "unit/plugin/ranks.hpp"
#include "verbs/stream.hpp"

extern "C" const atoll_backend* atoll_backend_entry_v1();

using namespace plugin_ranks;

namespace {

const atoll_backend& backend() { return *atoll_backend_entry_v1(); }

// A core that keeps the lines of the log, and has no topology to choose adapters by.
struct Core : FakeCore {
  Core() {
    services().log = [](void*, std::int32_t, const char* line) {
      const std::lock_guard lock(mutex);
      lines.emplace_back(line);
    };
    services().adapters = [](void*, std::int32_t, char*, std::size_t*) -> atoll_status {
      return ATOLL_UNSUPPORTED;
    };
  }
  static inline std::mutex mutex;
  static inline std::vector<std::string> lines;  // of all cores, as the process has one log
};

struct Job {
  explicit Job(const Layout& layout) : ranks(open_ranks(backend(), core, layout)) {}
  ~Job() { close_ranks(ranks); }
  Core core;
  std::vector<Rank> ranks;
};

// Bytes that were written to mailboxes, including counters and grants.
std::uint64_t staged(const fake_verbs::Fabric& fabric) {
  std::uint64_t bytes = 0;
  for (const auto& [range, landed] : fabric.landed) {
    if (range.second == atoll_verbs_backend::mailbox_bytes(256 * 1024)) bytes += landed;
  }
  return bytes;
}
std::uint64_t all(const fake_verbs::Fabric& fabric) {
  std::uint64_t bytes = 0;
  for (const auto& [range, landed] : fabric.landed) bytes += landed;
  return bytes;
}

}  // namespace

TEST_CASE("collectives between hosts are right") {
  fake_verbs::Fabric fabric;
  fabric.add("one");
  fabric.add("two");
  for (const Layout& layout : {Layout{0, 1}, Layout{0, 1, 2}, Layout{0, 0, 1, 1}}) {
    CAPTURE(text(layout));
    Job job(layout);
    on_ranks(job.ranks, [&](Rank& self) {
      for (const std::uint64_t count : {1U, 5'000U, 100'003U}) {
        check_all_gather(self, ATOLL_F32, count);
        check_reduce_scatter(self, ATOLL_F32, ATOLL_SUM, count);
        check_all_to_all(self, ATOLL_F32, count);
        check_messages(self, count);
      }
    });
  }
  CHECK(fabric.devices()[0]->bytes > 1'000'000);
  CHECK(fabric.devices()[1]->bytes > 1'000'000);
}

TEST_CASE("all_gather and reduce_scatter between hosts use no staging copy of registered memory") {
  constexpr std::uint64_t count = 500'000;  // f32 elements of one rank
  constexpr std::uint64_t bytes = 4 * count;
  for (const std::int32_t kind : {ATOLL_ALL_GATHER, ATOLL_REDUCE_SCATTER}) {
    for (const Layout& layout : {Layout{0, 1}, Layout{0, 1, 2, 3}}) {
      CAPTURE(kind);
      CAPTURE(text(layout));
      const auto n = layout.size();
      fake_verbs::Fabric fabric;
      fabric.add("one");
      Job job(layout);
      std::vector<Bytes> large(n, Bytes(n * bytes)), small(n, Bytes(bytes));
      in_threads(static_cast<int>(n), [&](int rank) {
        const auto i = static_cast<std::size_t>(rank);
        Rank& self = job.ranks[i];
        expect_ok(self.register_memory(large[i].data(), large[i].size()));
        expect_ok(self.register_memory(small[i].data(), small[i].size()));
        const bool gathers = kind == ATOLL_ALL_GATHER;
        expect_ok(
            self.submit(self.operation(kind, ATOLL_F32, gathers ? small[i].data() : large[i].data(),
                                       gathers ? large[i].data() : small[i].data(), count)));
      });
      // Each rank receives the data of the others once.
      CHECK(all(fabric) - staged(fabric) == n * (n - 1) * bytes);
      CHECK(staged(fabric) < n * (n - 1) * bytes / 100);
      if (kind != ATOLL_ALL_GATHER) continue;
      for (const auto& memory : large) {
        CHECK(fabric.landed[{memory.data(), memory.size()}] == (n - 1) * bytes);
      }
    }
  }
}

TEST_CASE("the store holds no address once two ranks are connected") {
  fake_verbs::Fabric fabric;
  fabric.add("one");
  Job job({0, 1, 2});
  connect_ranks(job.ranks);
  on_ranks(job.ranks, [&](Rank& rank) { check_all_to_all(rank, ATOLL_F32, 100); });
  for (const char* const pair : {"0.1", "0.2", "1.2"}) {
    CHECK(job.core.get(std::string("group/verbs/") + pair) == "");
  }
}

TEST_CASE("a process says once which adapters it uses, and why") {
  fake_verbs::Fabric fabric;
  fabric.add("one");
  for (int i = 0; i < 3; ++i) Job({0, 1});
  const std::lock_guard lock(Core::mutex);
  const auto is_report = [](const std::string& line) {
    return line.starts_with("verbs: RDMA through ");
  };
  REQUIRE(std::ranges::count_if(Core::lines, is_report) == 1);
  const auto& line = *std::ranges::find_if(Core::lines, is_report);
  CHECK(line.ends_with(
      ", MTU 4096 (all active ports; the topology of this host cannot be discovered)"));
  CHECK(line.starts_with("verbs: RDMA through one port 1, GID 0 (RoCE v2 10.0.0."));
}
