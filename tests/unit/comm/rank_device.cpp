// Tests of choose_rank_device() that need no GPU.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "atoll/rank_device.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"

using atoll_test::has;

namespace {

// Returns, for each rank, the name of the chosen device or the text of the error.
std::vector<std::string> choices(const std::vector<std::string>& wishes) {
  std::vector<std::string> results(wishes.size());
  atoll_test::run_thread_ranks(static_cast<int>(wishes.size()), [&](atoll::World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const std::string error = atoll_test::error_of([&] {
      const auto place = atoll::choose_rank_device(
          world, {.wanted = wishes[rank], .backend = "host", .communicates = false});
      CHECK(place.sharing == static_cast<int>(wishes.size()));
      CHECK(place.memory_bytes() == 0);
      results[rank] = std::string(place.device.name());
    });
    if (error != "no error") results[rank] = error;
  });
  return results;
}

}  // namespace

TEST_CASE("the host is chosen if all ranks request the host") {
  for (const auto& name : choices({"cpu", "cpu"})) {
    CHECK(name == atoll::Device::cpu().name());
  }
}

TEST_CASE("different requests, and an unknown device, are an error on every rank") {
  for (const std::string wish : {"auto", "cuda", "gpu"}) {
    for (const auto& why : choices({"cpu", "cpu", wish}))
      CHECK(has(why, "rank 0 chose cpu, rank 2 chose " + wish));
  }
  for (const auto& why : choices({"gpu", "gpu"}))
    CHECK(has(why, "unknown device \"gpu\": use auto, cpu or cuda"));
}
