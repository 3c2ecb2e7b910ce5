// Jobs with the nccl backend whose ranks are threads, because the fake NCCL joins the ranks of one
// process. A thread cannot be killed, so lost ranks stop making calls. FAULT_TRIALS sets the number
// of trials of each kind.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/device.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"

namespace {

using namespace std::chrono_literals;
using atoll::World;
using Clock = std::chrono::steady_clock;

constexpr auto limit = 300ms;  // time limit of an operation, which detects a stopped rank

// All-reduces `mine` of each rank `rounds` times and returns the last result of all elements.
template <class T>
T reduce(World& world, atoll::DType dtype, T mine, atoll::Reduction reduction, int rounds = 1,
         std::chrono::milliseconds timeout = 20s) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  const auto device = atoll::Device::cuda(world.rank());
  auto all = atoll::Communicator::open(world, ranks, "all",
                                       {.backend = "nccl", .device = device, .timeout = timeout});
  auto stream = device.stream();
  std::vector<T> values(1024, mine);
  const auto memory = device.allocate(values.size() * sizeof(T));
  for (int round = 0; round < rounds; ++round) {
    stream.copy(memory.data(), values.data(), memory.bytes());
    const auto data = memory.view(dtype);
    all.all_reduce(data, data, reduction, stream).synchronize();
  }
  stream.copy(values.data(), memory.data(), memory.bytes());
  stream.synchronize();
  return values.back();
}

// Runs `body` on ranks that find the fake NCCL.
void run(int ranks, const std::function<void(World&)>& body) {
  atoll_test::run_thread_ranks(ranks, body, [](atoll::Config& config) {
    config.plugin_path = std::getenv("ATOLL_PLUGIN_PATH");
    config.failure_scope = "communicator";
    config.host_id = config.rank < 2 ? "first" : "second";
    config.rendezvous_timeout = 20s;
    config.log = "off";
  });
}

float sum_of_ones(World& world, int rounds) {
  return reduce(world, atoll::DType::f32, 1.0f, atoll::ReduceOp::sum, rounds, limit);
}

// Lets the other threads go on, also after an exception.
class Arrives {
 public:
  explicit Arrives(std::latch& latch) : latch_(latch) {}
  Arrives(const Arrives&) = delete;
  Arrives& operator=(const Arrives&) = delete;
  ~Arrives() { latch_.count_down(); }

 private:
  std::latch& latch_;
};

// One job that loses ranks at a random instant. Returns the seconds from that instant until the
// last remaining rank has run a collective in the next epoch.
double lose(int ranks, const std::vector<int>& victims, int rounds) {
  const auto left = ranks - static_cast<int>(victims.size());
  std::latch have_gone_on{left}, have_ended{static_cast<std::ptrdiff_t>(victims.size())};
  std::mutex mutex;
  Clock::time_point stopped = Clock::time_point::max(), last{};
  run(ranks, [&](World& world) {
    if (std::ranges::count(victims, world.rank()) > 0) {
      CHECK(sum_of_ones(world, rounds) == static_cast<float>(ranks));
      {
        const std::lock_guard lock(mutex);
        stopped = std::min(stopped, Clock::now());
      }
      have_gone_on.wait();
      const Arrives ends{have_ended};
      CHECK(atoll_test::has(atoll_test::error_of([&] { World::regroup(world); }), "epoch 1"));
      return;
    }
    const std::string error = atoll_test::error_of([&] { sum_of_ones(world, 1000); });
    CHECK(atoll_test::has(error, "all_reduce"));
    std::optional<Arrives> goes_on(std::in_place, have_gone_on);
    auto next = World::regroup(world, {.grace = 300ms});
    CHECK(next.size() == left);
    CHECK(sum_of_ones(next, 1) == static_cast<float>(left));
    {
      const std::lock_guard lock(mutex);
      last = std::max(last, Clock::now());
    }
    goes_on.reset();
    have_ended.wait();
  });
  return std::chrono::duration<double>(last - stopped).count();
}

}  // namespace

TEST_CASE("the remaining ranks use NCCL in the next epoch") {
  constexpr int ranks = 5;
  const char* const asked = std::getenv("FAULT_TRIALS");
  const int trials = asked ? std::atoi(asked) : 2;
  std::mt19937 random(3);
  for (const std::string kind : {"one rank", "two ranks", "a host"}) {
    std::vector<double> times;
    for (int trial = 0; trial < trials; ++trial) {
      CAPTURE(trial);
      std::vector<int> victims{1, 2, 3, 4};  // rank 0 serves the store
      std::ranges::shuffle(victims, random);
      victims.resize(kind == "one rank" ? 1 : 2);
      if (kind == "a host") victims = {2, 3, 4};
      times.push_back(lose(ranks, victims, std::uniform_int_distribution(1, 200)(random)));
    }
    std::ranges::sort(times);
    fmt::print("{:10} of {} ranks stopped: {} trials, median {:.3f} s, worst {:.3f} s\n", kind,
               ranks, trials, times[times.size() / 2], times.back());
  }
}

TEST_CASE("natively() lets NCCL sum bf16, which rounds at every rank") {
  // 256, 1 and 1: the sum is 258, but bf16 has no 257.
  constexpr std::uint16_t values[] = {0x4380, 0x3f80, 0x3f80};
  constexpr std::uint16_t exact = 0x4381, rounded = 0x4380;
  run(3, [&](World& world) {
    const auto sum = [&](atoll::Reduction reduction) {
      return reduce(world, atoll::DType::bf16, values[world.rank()], reduction);
    };
    CHECK(sum(atoll::ReduceOp::sum) == exact);
    CHECK(sum(atoll::Reduction(atoll::ReduceOp::sum).natively()) == rounded);
  });
}
