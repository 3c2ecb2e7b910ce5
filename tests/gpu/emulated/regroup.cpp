// Checks that a job goes on with the nccl backend after a rank has stopped. The ranks are threads,
// because the fake NCCL joins the ranks of one process.
#include <doctest/doctest.h>

#include <chrono>
#include <latch>
#include <random>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/device.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"

namespace {

using namespace std::chrono_literals;
using atoll::World;

// All-reduces a one of each rank `rounds` times and returns the last sum.
float sum_of_ones(World& world, int rounds) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  const auto device = atoll::Device::cuda(world.rank());
  auto all = atoll::Communicator::open(world, ranks, "all", {.backend = "nccl", .device = device});
  auto stream = device.stream();
  const auto values = device.allocate(4096);
  std::vector<float> ones(1024, 1.0f), result(1024);
  for (int round = 0; round < rounds; ++round) {
    stream.copy(values.data(), ones.data(), values.bytes());
    const auto data = values.view(atoll::DType::f32);
    all.all_reduce(data, data, atoll::ReduceOp::sum, stream).synchronize();
  }
  stream.copy(result.data(), values.data(), values.bytes());
  stream.synchronize();
  return result.back();
}

}  // namespace

TEST_CASE("the ranks that are left use NCCL in the next epoch") {
  constexpr int ranks = 4, trials = 5;
  std::mt19937 random(3);
  for (int trial = 0; trial < trials; ++trial) {
    CAPTURE(trial);
    const int victim = std::uniform_int_distribution(1, ranks - 1)(random);
    const int rounds = std::uniform_int_distribution(1, 200)(random);
    std::latch have_gone_on{ranks - 1}, has_ended{1};
    atoll_test::run_thread_ranks(
        ranks,
        [&](World& world) {
          if (world.rank() == victim) {
            CHECK(sum_of_ones(world, rounds) == 4.0f);
            have_gone_on.wait();
            CHECK(atoll_test::has(atoll_test::error_of([&] { World::regroup(world); }), "epoch 1"));
            has_ended.count_down();
            return;
          }
          CHECK(atoll_test::has(atoll_test::error_of([&] { sum_of_ones(world, 1000); }),
                                "all_reduce"));
          auto next = World::regroup(world, {.grace = 300ms});
          CHECK(next.size() == ranks - 1);
          CHECK(sum_of_ones(next, 3) == 3.0f);
          have_gone_on.count_down();
          has_ended.wait();
        },
        [](atoll::Config& config) {
          config.failure_scope = "communicator";
          config.timeout = 2s;
          config.log = "off";
        });
  }
}
