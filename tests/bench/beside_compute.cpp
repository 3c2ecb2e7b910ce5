// Measures how much of an all_reduce is hidden by a computation of the same length. Prints the time
// of the all_reduce alone, of the computation alone, and of both together, and the share that
// running both together saves.
//   beside_compute [--sizes BYTES,...] [--json FILE]
// Runs as the ranks of a job. The script beside_compute starts this program on the local host and
// on two emulated hosts that are joined by 1 Gbit/s.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"
#include "atoll/world.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int rounds = 9;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Computes in registers, so that the computation shares cores with the all_reduce, but not memory
// bandwidth.
std::uint64_t compute(std::uint64_t steps) {
  std::uint64_t value = steps;
  for (std::uint64_t i = 0; i < steps; ++i)
    value = value * 6364136223846793005u + 1442695040888963407u;
  return value;
}

struct Figures {
  // Times in seconds on the slowest rank: of the all_reduce alone, of the computation alone, and of
  // both together.
  double alone = 0, compute = 0, both = 0;
};

class Bench {
 public:
  explicit Bench(std::uint64_t most_bytes)
      : src_(allocate(most_bytes)), dst_(allocate(most_bytes)) {
    std::fill_n(src_.view(atoll::DType::f32).as<float>(), most_bytes / sizeof(float), 1.0F);
  }
  const atoll::World& world() const { return world_; }

  Figures measure(std::uint64_t bytes) {
    const auto reduce = [&] { return all_reduce(bytes); };
    for (int i = 0; i < 3; ++i) reduce().synchronize();
    Figures figures;
    figures.alone = median([&] { reduce().synchronize(); });
    const std::uint64_t steps = steps_of(figures.alone);
    figures.compute = median([&] { result_ += compute(steps); });
    figures.both = median([&] {
      const atoll::Work work = reduce();
      result_ += compute(steps);
      work.synchronize();
    });
    const float sum = dst_.view(atoll::DType::f32).as<float>()[bytes / sizeof(float) - 1];
    if (sum != static_cast<float>(world_.size()))
      throw atoll::Error(atoll::ErrorCode::internal, fmt::format("wrong sum {}", sum));
    return figures;
  }
  // Returns the result of all computations. The program reads it so that the compiler keeps
  // compute().
  std::uint64_t result() const { return result_; }

 private:
  atoll::Buffer allocate(std::uint64_t bytes) {
    return atoll::allocate(communicator_.device(), bytes, {communicator_});
  }
  atoll::Work all_reduce(std::uint64_t bytes) {
    const atoll::View src = src_.view(atoll::DType::f32).part(0, bytes / sizeof(float));
    const atoll::View dst = dst_.view(atoll::DType::f32).part(0, bytes / sizeof(float));
    return communicator_.all_reduce(src, dst, atoll::ReduceOp::sum, stream_);
  }

  // Returns the median over all rounds of the time of `run` on the slowest rank.
  template <class Run>
  double median(const Run& run) {
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      communicator_.barrier(stream_).synchronize();
      const auto begin = Clock::now();
      run();
      times.push_back(most(seconds_since(begin)));
    }
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return times[rounds / 2];
  }
  double most(double mine) {
    std::vector<double> value{mine};
    communicator_.all_reduce(value, value, atoll::ReduceOp::max, stream_).synchronize();
    return value.front();
  }

  // Returns the number of steps of compute() that take `seconds` when all ranks compute. The number
  // is the same on all ranks.
  std::uint64_t steps_of(double seconds) {
    std::uint64_t steps = 1 << 16;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const double once = median([&] { result_ += compute(steps); });
      const double wanted = seconds / once * static_cast<double>(steps);
      steps = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted));
    }
    return steps;
  }

  atoll::World world_ = atoll::World::from_env();
  atoll::Mesh mesh_ = atoll::Mesh::make(world_, {1, world_.size()});
  atoll::Communicator communicator_ =
      atoll::Communicator::open(mesh_.axis("shard"), {.backend = "host"});
  atoll::Stream stream_ = communicator_.device().stream();
  atoll::Buffer src_, dst_;
  std::uint64_t result_ = 0;
};

void measure_here(const std::vector<std::uint64_t>& sizes, const std::string& json) {
  Bench bench(*std::max_element(sizes.begin(), sizes.end()));
  const int ranks = bench.world().size();
  const auto hosts = bench.world().hosts().size();
  auto rows = nlohmann::json::array();
  for (const std::uint64_t bytes : sizes) {
    const Figures f = bench.measure(bytes);
    const double hidden = (f.alone + f.compute - f.both) / std::min(f.alone, f.compute) * 100;
    if (bench.world().rank() != 0) continue;
    fmt::print("{:>5} {:>5} {:>10} {:>12.1f} {:>12.1f} {:>12.1f} {:>8.0f} %\n", ranks, hosts, bytes,
               f.alone * 1e6, f.compute * 1e6, f.both * 1e6, hidden);
    std::fflush(stdout);
    rows.push_back({{"ranks", ranks},
                    {"hosts", hosts},
                    {"bytes", bytes},
                    {"alone_us", f.alone * 1e6},
                    {"compute_us", f.compute * 1e6},
                    {"both_us", f.both * 1e6},
                    {"hidden_percent", hidden}});
  }
  if (bench.result() == 0) throw std::runtime_error("nothing was computed");
  if (json.empty() || bench.world().rank() != 0) return;
  auto all = nlohmann::json{{"rows", nlohmann::json::array()}};
  if (std::ifstream before(json); before) all = nlohmann::json::parse(before);
  for (const auto& row : rows) all["rows"].push_back(row);
  std::ofstream file(json);
  file << all.dump(1) << '\n';
  if (!file) throw std::runtime_error("cannot write " + json);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::uint64_t> sizes{64 << 10, 1 << 20, 16 << 20, 64 << 20};
  std::string json;
  CLI::App app("Measures how much of an all_reduce is hidden beside compute of the same length");
  app.add_option("--sizes", sizes, "bytes of the tensor; several with commas")
      ->delimiter(',')
      ->check(CLI::Range(4, 1 << 30));
  app.add_option("--json", json, "append the rows to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    measure_here(sizes, json);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "beside_compute: {}\n", error.what());
    return 1;
  }
}
