// observed_job CASE: a job for the test top_tool, whose ranks add numbers in steps.
//   ends     80 steps, with a pause of 100 ms before each
//   hangs    in step 3, rank 1 calls its collective only after the other ranks have timed out
//   stopped  in step 3, the last rank stops itself (SIGSTOP)
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <thread>

#include "atoll/communicator.hpp"
#include "atoll/device.hpp"
#include "atoll/error.hpp"
#include "atoll/flight.hpp"
#include "atoll/mesh.hpp"
#include "atoll/world.hpp"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t count = 1 << 18;

}  // namespace

// The test looks for this name in the stack of rank 1.
extern "C" __attribute__((noinline, visibility("default"))) void atoll_test_slow_part(
    const atoll::World& world) {
  while (!world.failure()) std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(500ms);
}

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  try {
    atoll::World world = atoll::World::from_env();
    const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = world.size()});
    auto comm = atoll::Communicator::open(mesh.axis("shard"), {.backend = "host"});
    auto stream = comm.device().stream();
    auto memory = atoll::allocate(comm.device(), count * sizeof(float), {comm});
    const auto data = memory.view(atoll::DType::f32);
    for (int step = 0; step < 80; ++step) {
      atoll::mark_step(world, step);
      if (name == "ends") std::this_thread::sleep_for(100ms);
      if (name == "hangs" && step == 3 && world.rank() == 1) atoll_test_slow_part(world);
      if (name == "stopped" && step == 3 && world.rank() + 1 == world.size()) ::raise(SIGSTOP);
      comm.all_reduce(data, data, atoll::ReduceOp::sum, stream).synchronize();
    }
    fmt::print("rank {} done\n", world.rank());
    return 0;
  } catch (const atoll::Error& error) {
    fmt::print("{}\n", error.what());
    return 3;
  }
}
