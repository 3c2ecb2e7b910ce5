// Tests of the peak of matrix products, the base of MFU.
#include "loop/peak.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../unit/train_data_temporary.hpp"
#include "atoll/log.hpp"
#include "thread_ranks.hpp"

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

TEST_CASE("peak: measurements are far apart above 25 %") {
  CHECK_FALSE(train::far_apart(100, 100));
  CHECK_FALSE(train::far_apart(100, 125));
  CHECK_FALSE(train::far_apart(125, 100));
  CHECK(train::far_apart(100, 126));
  CHECK(train::far_apart(126, 100));
  CHECK(train::far_apart(0, 1));
}

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

  // A damaged file is as good as none.
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
  // The machine was busy at the start.
  auto warnings = check(1, "measured", [](const train::Peak& peak) {
    CHECK(peak.measured > 1e6);
    CHECK(peak.flops == peak.measured);
  });
  REQUIRE(warnings.size() == 1);  // of rank 0
  CAPTURE(warnings[0]);
  CHECK(warnings[0].find("was 0.00 TFLOP/s per rank at the start and is ") != std::string::npos);
  CHECK(warnings[0].find(" now: other work on this machine disturbs its figures") !=
        std::string::npos);
  // The machine is busy at the end.
  warnings = check(1e18, "measured", [](const train::Peak& peak) { CHECK(peak.flops == 1e18); });
  CHECK(warnings.size() == 1);
  // A published peak stays the base.
  check(1, "datasheet", [](const train::Peak& peak) {
    CHECK(peak.flops == 1);
    CHECK(peak.measured > 1e6);
  });
}
