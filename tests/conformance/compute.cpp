// Checks progress during compute: enqueued operations must make progress while the thread that
// enqueued them computes and makes no calls, even when computing ranks occupy every core.
#include <vector>

#include "checks.hpp"

namespace conformance {
namespace {

// Computes for some milliseconds. Each step depends on the previous one, so the compiler cannot
// remove any step.
std::uint64_t compute(std::uint64_t value) {
  constexpr int rounds = 1 << 20;
  for (int i = 0; i < rounds; ++i) value = value * 6364136223846793005u + 1442695040888963407u;
  return value;
}

// Every rank computes at least `least_steps` steps, so that no rank profits from a core that
// another rank left idle. A rank with unfinished operations then continues. It gives up if it
// computed `most_idle_steps` steps, which take half a minute, and no further operation completed.
// Where ranks share cores, an operation needs many turns of the scheduler, and other programs of
// the machine may use the cores as well. Ranks that share one GPU get the larger limit, because
// they need up to a minute.
constexpr int least_steps = 100;
constexpr int most_idle_steps = 20000, most_idle_steps_of_gpus = 50000;

struct Enqueued {
  Elements src, gathered, scattered, reduced_data;
  std::vector<atoll::Work> works{};
};

Enqueued enqueue(Rank& self, std::uint64_t slice) {
  const std::uint64_t whole = slice * unsigned_of(self.size());
  Enqueued all{Elements(DType::f32, whole), Elements(DType::f32, whole),
               Elements(DType::f32, slice), Elements(DType::f32, whole)};
  all.src.fill(
      [&](std::uint64_t i) { return contribution(DType::f32, ReduceOp::sum, self.rank(), i); });
  const atoll::ConstView src = all.src.view();
  constexpr int rounds = 4;
  for (int round = 0; round < rounds; ++round) {
    all.works.push_back(self.comm.all_gather(src.part(0, slice), all.gathered.view(), self.stream));
    all.works.push_back(
        self.comm.reduce_scatter(src, all.scattered.view(), ReduceOp::sum, self.stream));
    all.works.push_back(
        self.comm.all_reduce(src, all.reduced_data.view(), ReduceOp::sum, self.stream));
  }
  return all;
}

void check_results(Rank& self, const Enqueued& all, std::uint64_t slice) {
  const auto sum = [&](std::uint64_t i) {
    return reduced(DType::f32, ReduceOp::sum, self.size(), i);
  };
  const std::uint64_t first = slice * unsigned_of(self.rank());
  const std::string wrong = all.gathered.difference([&](std::uint64_t i) {
    return contribution(DType::f32, ReduceOp::sum, static_cast<int>(i / slice), i % slice);
  }) + all.scattered.difference([&](std::uint64_t i) { return sum(first + i); }) +
                            all.reduced_data.difference(sum);
  self.report.expect(wrong.empty(), "beside compute: " + wrong);
}

void go_on_beside_compute(Rank& self, std::uint64_t slice) {
  const Enqueued all = enqueue(self, slice);
  std::uint64_t value = unsigned_of(self.rank());
  const bool on_gpu = self.comm.device().kind() == atoll::DeviceKind::cuda;
  const int most_idle = on_gpu ? most_idle_steps_of_gpus : most_idle_steps;
  int steps = 0, last_progress = 0;
  std::size_t completed = 0;
  while (steps < least_steps ||
         (completed < all.works.size() && steps - last_progress < most_idle)) {
    value = compute(value);
    ++steps;
    while (completed < all.works.size() && all.works[completed].done()) {
      ++completed;
      last_progress = steps;
    }
  }
  self.report.expect(value != 0 && completed == all.works.size(),
                     std::to_string(completed) + " of " + std::to_string(all.works.size()) +
                         " operations complete after " + std::to_string(steps) +
                         " steps of compute, and nothing went on beside the last " +
                         std::to_string(steps - last_progress) + ", slices of " +
                         std::to_string(slice) + " x f32");
  for (const auto& work : all.works) work.synchronize();
  check_results(self, all, slice);
}

}  // namespace

void check_progress_beside_compute(Rank& self) {
  go_on_beside_compute(self, 3);
  go_on_beside_compute(self, mebibyte_of(DType::f32));
}

}  // namespace conformance
