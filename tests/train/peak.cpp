// Tests of the peak of matrix products, the base of MFU.
#include "loop/peak.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <string>
#include <vector>

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
        body(world, train::make_machine(world, train::choose_device(world, "host", ""), 1));
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
    const train::Peak peak = train::find_peak(world, machine, atoll::DType::f32, 0.05);
    CHECK(peak.source == "measured");
    CHECK(peak.flops == peak.measured);
    flops[static_cast<std::size_t>(world.rank())] = peak.flops;
  });
  CHECK(warnings.empty());
  CHECK(flops[0] > 1e6);
  CHECK(flops[0] == flops[1]);
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
