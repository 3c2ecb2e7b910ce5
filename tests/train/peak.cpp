// Tests of the peak of matrix products, the base of MFU, and of the processors of a rank.
#include "loop/peak.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "atoll/log.hpp"
#include "loop/processors.hpp"
#include "thread_ranks.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

// Calls `body` on each of two ranks with the kernels of a CPU. Returns the warnings.
template <class Body>
std::vector<std::string> warnings_of(const Body& body) {
  std::vector<std::string> warnings;
  std::mutex mutex;
  atoll::log::set_sink([&](atoll::log::Level, std::string_view text) {
    const std::lock_guard lock(mutex);
    if (text.find("peak of matrix products") != text.npos) warnings.emplace_back(text);
  });
  atoll_test::run_thread_ranks(
      2,
      [&](atoll::World& world) {
        body(world, train::make_machine(world, train::choose_device(world, "host", ""), {}));
      },
      [](atoll::Config& config) { config.log = "warn"; });
  atoll::log::set_sink(nullptr);
  return warnings;
}

}  // namespace

TEST_CASE("peak: on CPUs it is measured, and all ranks have the same") {
  std::vector<double> flops(2);
  const auto warnings = warnings_of([&](atoll::World& world, const train::Machine& machine) {
    const train::Peak peak =
        train::find_peak(world, machine, atoll::DType::f32, 0.05, train::KnownPeaks({}));
    CHECK(peak.source == "measured");
    CHECK(peak.flops == peak.measured);
    flops[static_cast<std::size_t>(world.rank())] = peak.flops;
  });
  CHECK(warnings.empty());
  CHECK(flops[0] > 1e6);
  CHECK(flops[0] == flops[1]);
}

TEST_CASE("peak: a run on a busy machine is told from earlier runs on this CPU model") {
  const train_test::TemporaryFolder folder;
  const train::KnownPeaks known(folder.path() / "cache" / "peaks.json");
  const auto run = [&] {
    return warnings_of([&](atoll::World& world, const train::Machine& machine) {
      (void)train::find_peak(world, machine, atoll::DType::f32, 0.05, known);
    });
  };
  CHECK(run().empty());
  std::ifstream in(known.file());
  const auto peaks = nlohmann::json::parse(in);
  REQUIRE(peaks.size() == 1);
  const auto [key, flops] = *peaks.items().begin();
  CHECK(key.find(", 2 ranks of 1 threads on ") != key.npos);
  CHECK(key.ends_with(" processors, f32"));
  const double first = flops.get<double>();
  CHECK(known.find(key) == first);
  CHECK(first > 1e6);
  CHECK(known.find("another CPU") == 0);

  known.raise(key, 1);  // lower, so it changes nothing
  CHECK(known.find(key) == first);
  known.raise(key, 1e18);
  const auto warnings = run();
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("but earlier runs on this CPU had 1000000.00: ") != std::string::npos);
  CHECK(warnings[0].find(known.file().string()) != std::string::npos);
  CHECK(known.find(key) == 1e18);

  // A damaged file is treated like a missing one.
  folder.write("cache/peaks.json", "{\"" + key + "\": ");
  CHECK(run().empty());
  CHECK(known.find(key) > 1e6);
  folder.write("cache/peaks.json", "[7]");
  CHECK(known.find(key) == 0);
}

TEST_CASE("peak: a later measurement that is far away is a warning, and the highest counts") {
  const auto check = [](double first, const std::string& source, const auto& expect) {
    return warnings_of([&](atoll::World& world, const train::Machine& machine) {
      train::Peak peak{.flops = first, .measured = first, .source = source};
      train::check_peak(peak, world, machine, atoll::DType::f32, 0.05);
      expect(peak);
    });
  };
  // The peak of the start is too low, as on a machine that was busy, so the later one replaces it.
  auto warnings = check(1, "measured", [](const train::Peak& peak) {
    CHECK(peak.measured > 1e6);
    CHECK(peak.flops == peak.measured);
  });
  REQUIRE(warnings.size() == 1);  // of rank 0
  CAPTURE(warnings[0]);
  CHECK(warnings[0].find("was 0.00 TFLOP/s per rank at the start and is ") != std::string::npos);
  CHECK(warnings[0].find(" now: other work on this machine disturbs its figures") !=
        std::string::npos);
  // The later peak is lower, as on a machine that is busy at the end, so the first one stays.
  warnings = check(1e18, "measured", [](const train::Peak& peak) { CHECK(peak.flops == 1e18); });
  CHECK(warnings.size() == 1);
  // A published peak stays the base of MFU.
  check(1, "datasheet", [](const train::Peak& peak) {
    CHECK(peak.flops == 1);
    CHECK(peak.measured > 1e6);
  });
}

namespace {

using train::Processors;

Processors with(std::vector<int> mask, double quota = 0, int unbound = 0) {
  return {.online = 64,
          .mask = mask,
          .unbound = std::max(unbound, static_cast<int>(mask.size())),
          .quota = quota,
          .group = quota > 0 ? "container" : ""};
}

train::ComputeThreads first_of(const std::vector<Processors>& host, int wanted = 0) {
  return train::choose_threads(host, 0, wanted);
}

}  // namespace

TEST_CASE("compute threads: ranks share the processors that they may run on") {
  const Processors four = with({0, 1, 2, 3}), low = with({0, 1}), high = with({2, 3});
  CHECK(first_of({four}).threads == 4);
  CHECK(first_of({four, four}).threads == 2);
  CHECK(first_of({four, four, four}).threads == 1);
  CHECK(first_of({low, high}).threads == 2);
  CHECK(first_of({low, low, high}).threads == 1);
  CHECK(first_of({low, high}).cores == 2);
  CHECK(first_of({low, low, low, low}).cores == 0.5);
  CHECK(first_of({four, four}).warning.empty());
  CHECK(first_of({four, four}).why == "4 of 64 cores, 2 ranks: 2 threads per rank");
}

TEST_CASE("compute threads: quotas of control groups") {
  const Processors two = with({0, 1}, 1), many = with({0, 1, 2, 3, 4, 5, 6, 7}, 4.5);
  CHECK(first_of({two}).threads == 1);
  CHECK(first_of({two}).why == "2 of 64 cores, 1 CPU of quota: 1 thread");
  CHECK(first_of({many}).threads == 4);
  CHECK(first_of({many, many}).threads == 2);  // both ranks share the quota of one group
  auto other = many;
  other.group = "another container";
  CHECK(first_of({many, other}).threads == 4);
  CHECK(first_of({with({0}, 0.5)}).threads == 1);
  CHECK(first_of({with({0}, 0.5)}, 1).warning.empty());
  CHECK(first_of({two}, 2).warning ==
        "this rank computes with 2 threads but has 2 of 64 cores, 1 CPU of quota: set --threads 1");
}

TEST_CASE("compute threads: only mpirun can leave more processors to a rank") {
  const Processors free = with({3}), bound = with({3}, 0, 64);
  CHECK(first_of({free}).warning.empty());
  CHECK(first_of({free}, 2).warning ==
        "this rank computes with 2 threads but has 1 of 64 cores: set --threads 1");
  CHECK(first_of({bound}, 2).warning ==
        "this rank computes with 2 threads but has 1 of 64 cores: start mpirun with --bind-to "
        "none, or set --threads 1");
  CHECK(first_of({bound, with({4}, 0, 64)}).warning ==
        "mpirun has bound this rank to 1 of 64 cores, so it computes with 1 thread: start mpirun "
        "with --bind-to none, which gives it 32");
  CHECK(first_of({bound}, 1).warning.empty());
}

TEST_CASE("processors: quotas of both versions of control groups, also above the own group") {
  const train_test::TemporaryFolder folder;
  const auto quota = [&] { return train::read_processors(folder.path()).quota; };
  CHECK(quota() == 0);
  for (const char* name : {"proc/self", "sys/fs/cgroup/job/step/task", "sys/fs/cgroup/cpu"}) {
    std::filesystem::create_directories(folder.path() / name);
  }
  folder.write("proc/self/cgroup", "3:cpuset:/\n2:cpu,cpuacct:/docker/5\n0::/job/step/task\n");
  CHECK(quota() == 0);
  folder.write("sys/fs/cgroup/job/step/task/cpu.max", "max 100000\n");
  folder.write("sys/fs/cgroup/job/cpu.max", "350000 100000\n");
  CHECK(quota() == 3.5);
  // A container sees its group of version 1 at the top.
  folder.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
  folder.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  CHECK(quota() == 3.5);
  folder.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "125000\n");
  CHECK(quota() == 2.5);
  const auto own = train::read_processors();
  CHECK(own.mask.size() >= 1);
  CHECK(own.mask.size() <= static_cast<std::size_t>(own.online));
  const auto sent = Processors::decode(own.encode());
  CHECK(sent.mask == own.mask);
  CHECK(sent.quota == own.quota);
  CHECK(sent.group == own.group);
}
