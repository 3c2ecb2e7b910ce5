#include "memory_rate.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace busbw {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using traffic::Stores;

// Length of a batch: long enough to make a late start of a rank negligible, short enough for an
// interactive tool.
constexpr double batch_seconds = 0.02;
constexpr double warm_seconds = 2e-4;
constexpr int most_batches = 3;
constexpr double most_passes = 1e6;
constexpr std::uint64_t line = 64;
constexpr std::uint64_t word = 4;
// Smaller traffic stays in the caches, where non-temporal stores cannot win.
constexpr double streaming_from = 1 << 20;

double now() { return Seconds(Clock::now().time_since_epoch()).count(); }

// Rounds to whole cache lines where possible, since non-temporal stores need them.
std::uint64_t measured_bytes(const Traffic& traffic) {
  if (traffic.bytes() <= 0) return 0;
  const auto bytes = static_cast<std::uint64_t>(traffic.array_bytes);
  return std::max(bytes >= line ? bytes / line * line : bytes / word * word, word);
}

template <class Pass>
void go_over(const Pass& pass, Traffic::Pass kind, std::uint64_t bytes, traffic::Element element,
             Stores stores) {
  if (kind == Traffic::Pass::sum) {
    const std::uint64_t size = element == traffic::Element::f32 ? 4 : 2;
    return traffic::sum(pass.to, pass.from, bytes / size, element, stores);
  }
  for (std::size_t i = 0; i < pass.to.size(); ++i)
    traffic::copy(pass.to[i], pass.from[pass.from.size() > 1 ? i : 0], bytes, stores);
}

double single_pass(const std::function<void(std::size_t, Stores)>& go, Stores stores) {
  double once = std::numeric_limits<double>::max();
  const double begin = now();
  for (double then = begin; then - begin < warm_seconds;) {
    go(0, stores);
    const double end = now();
    once = std::min(once, end - then);
    then = end;
  }
  return once;
}

bool on_line(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % line == 0;
}

}  // namespace

double MemoryRate::gbyte_s(const Traffic& traffic, traffic::Element element,
                           std::span<const Memory> slots, Known known) {
  const Question question{traffic, element, slots.size()};
  const auto found = std::ranges::find(known_, question, &std::pair<Question, double>::first);
  if (found == known_.end()) {
    return known_.emplace_back(question, measure(question, slots)).second;
  }
  if (known == Known::improve) found->second = std::max(found->second, measure(question, slots));
  return found->second;
}

double MemoryRate::measure(const Question& question, std::span<const Memory> slots) {
  Traffic measured = question.traffic;
  const std::uint64_t bytes = measured_bytes(measured);
  if (bytes == 0 || slots.empty()) return 0;
  std::vector<Pass> passes;
  for (const Memory& memory : slots) passes.push_back(pass_at(measured, bytes, memory));
  measured.array_bytes = static_cast<double>(bytes);
  return measured.bytes() / seconds_of(question, bytes, passes) / 1e9;
}

MemoryRate::Pass MemoryRate::pass_at(const Traffic& traffic, std::uint64_t bytes,
                                     Memory memory) const {
  const auto ranks = static_cast<std::uint64_t>(job_.group_size());
  const auto rank = static_cast<std::uint64_t>(job_.communicator->rank());
  const bool in = traffic.place == Place::in;
  const std::byte* inputs = in ? memory.recv : memory.send;
  Pass pass;
  if (traffic.pass == Traffic::Pass::sum) {
    for (std::uint64_t i = 0; i < ranks; ++i) pass.from.push_back(inputs + i * bytes);
    for (int i = 0; i < traffic.outputs; ++i) {
      const std::uint64_t part = traffic.outputs > 1 ? static_cast<std::uint64_t>(i) : rank;
      pass.to.push_back(memory.recv + part * bytes);
    }
    return pass;
  }
  // The outputs begin with the rank's own slice; in place they begin with the next one, because the
  // rank's own slice is the input.
  for (int i = 0; i < traffic.outputs; ++i) {
    const std::uint64_t part = (rank + static_cast<std::uint64_t>(i) + (in ? 1 : 0)) % ranks;
    pass.to.push_back(memory.recv + part * bytes);
    if (traffic.inputs > 1) pass.from.push_back(inputs + part * bytes);
  }
  if (traffic.inputs == 1) pass.from.push_back(inputs + rank * bytes);
  return pass;
}

double MemoryRate::seconds_of(const Question& question, std::uint64_t bytes,
                              const std::vector<Pass>& passes) {
  const Go go = [&](std::size_t i, Stores stores) {
    go_over(passes[i % passes.size()], question.traffic.pass, bytes, question.element, stores);
  };
  const bool fits =
      bytes % line == 0 && question.traffic.bytes() >= streaming_from &&
      std::ranges::all_of(passes, [](const Pass& pass) {
        return std::ranges::all_of(pass.to, on_line) && std::ranges::all_of(pass.from, on_line);
      });
  std::vector<Stores> kernels{Stores::cached};
  if (question.traffic.pass == Traffic::Pass::copies) kernels.push_back(Stores::library);
  // Streaming stores are measured last. A rank with unaligned addresses cannot use them, so its
  // list of times only lacks the last entry.
  if (fits) kernels.push_back(Stores::streaming);
  std::vector<double> mine;
  for (const Stores stores : kernels) mine.push_back(single_pass(go, stores));
  const auto all = job_.exchange(mine);
  double best = std::numeric_limits<double>::max();
  for (std::size_t kernel = 0; kernel < kernels.size(); ++kernel) {
    double once = 0;
    for (const auto& rank : all) {
      if (rank.size() <= kernel) return best;
      once = std::max(once, rank[kernel]);
    }
    best = std::min(best, best_batch(go, kernels[kernel], once));
  }
  return best;
}

double MemoryRate::best_batch(const Go& go, Stores stores, double once) {
  const auto passes =
      static_cast<std::size_t>(std::clamp(batch_seconds / std::max(once, 1e-9), 1.0, most_passes));
  const int batches = once < batch_seconds ? most_batches : most_batches - 1;
  std::vector<double> times;
  for (int batch = 0; batch < batches; ++batch) {
    job_.meet();
    times.push_back(now());
    for (std::size_t i = 0; i < passes; ++i) go(i, stores);
    times.push_back(now());
  }
  return best_span(job_.exchange(times)) / static_cast<double>(passes);
}

double MemoryRate::best_span(const std::vector<std::vector<double>>& begins_and_ends) const {
  double best = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < begins_and_ends.front().size(); i += 2) {
    double slowest = 0;
    for (const atoll::HostInfo& host : job_.world.hosts()) {
      double begin = std::numeric_limits<double>::max(), end = 0;
      for (const int rank : host.ranks) {
        const auto& times = begins_and_ends[static_cast<std::size_t>(rank)];
        begin = std::min(begin, times[i]);
        end = std::max(end, times[i + 1]);
      }
      slowest = std::max(slowest, end - begin);
    }
    best = std::min(best, slowest);
  }
  return best;
}

}  // namespace busbw
