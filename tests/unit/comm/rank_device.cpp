// Tests of choose_rank_device() that need no GPU.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/rank_device.hpp"
#include "thread_ranks.hpp"

namespace {

// Returns, for each rank, the name of the chosen device or the text of the error.
std::vector<std::string> choices(const std::vector<std::string>& wishes) {
  std::vector<std::string> results(wishes.size());
  atoll_test::run_thread_ranks(static_cast<int>(wishes.size()), [&](atoll::World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    try {
      const auto place = atoll::choose_rank_device(
          world, {.wanted = wishes[rank], .backend = "host", .communicates = false});
      CHECK(place.sharing == static_cast<int>(wishes.size()));
      CHECK(place.memory_bytes() == 0);
      results[rank] = std::string(place.device.name());
    } catch (const atoll::Error& error) {
      results[rank] = error.what();
    }
  });
  return results;
}

}  // namespace

TEST_CASE("the host is chosen if all ranks request the host") {
  for (const auto& name : choices({"host", "host"})) {
    CHECK(name == atoll::Device::cpu().name());
  }
}

TEST_CASE("different requests are an error on every rank") {
  for (const auto& wish : {"auto", "cuda", "gpu"}) {
    CAPTURE(wish);
    for (const auto& why : choices({"host", "host", wish})) {
      CHECK(why.find("rank 0 chose host, rank 2 chose " + std::string(wish)) != std::string::npos);
    }
  }
}

TEST_CASE("the error for an unknown device lists the known devices") {
  for (const auto& why : choices({"gpu", "gpu"})) {
    CHECK(why.find("unknown device \"gpu\": use auto, cpu or cuda") != std::string::npos);
  }
}
