// Measures how much time a collective within a host spends on comparing the calls of the ranks.
// Compares the host backend with a copy that neither makes nor compares signatures
// (peers/no_signature.cpp). The two run as two jobs that take turns.
//   signature [--ranks N] [--rounds N] [--json FILE]
// Each printed time is that of the slowest rank in the fastest round, because other load only adds
// time. Times vary between runs by more than the cost of signatures, so the work of a signature is
// also timed alone: making a signature and its digest, and comparing the digest with that of every
// rank. (A signature travels between cores in a cache line that is fetched anyway.) Do not run the
// bench with more ranks than cores, because it would then measure the scheduler.
#include <fmt/core.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "peers/job.hpp"
#include "collectives/shared_memory/control_block.hpp"
#include "collectives/signature.hpp"

namespace {

using namespace atoll_bench;  // NOLINT(google-build-using-namespace): this file is a whole program
namespace fs = std::filesystem;

constexpr std::array<std::uint64_t, 3> sizes{64 << 10, 256 << 10, 1 << 20};
constexpr double target_percent = 2;

// A temporary folder through which the ranks of one job find each other.
struct Folder {
  Folder() {
    if (!::mkdtemp(path.data())) throw std::runtime_error("cannot make a temporary folder");
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path = fs::temp_directory_path() / "bench_signature_XXXXXX";
};

class Contender {
 public:
  Contender(int ranks, const std::string& plugins)
      : job_({{BENCH_RUN_RANKS, "-n", std::to_string(ranks), "--timeout", "7200",
               std::string(BENCH_PROGRAMS) + "/bench_peer_atoll"},
              {{"BENCH_STORE", folder_.path},
               {"ATOLL_LOG", "warn"},
               {"ATOLL_PLUGIN_PATH", plugins}}}) {}

  // Runs a row and returns the microseconds per operation.
  double measure(const Row& row, std::int64_t& operations) {
    Request request;
    request.order = Order::measure;
    request.row = row;
    request.operations = operations;
    const Answer answer = job_.measure(request);
    if (const std::string wrong = job_.difference(); !wrong.empty())
      throw std::runtime_error(wrong);
    operations = answer.operations;
    return answer.seconds[0] / static_cast<double>(answer.operations) * 1e6;
  }

 private:
  Folder folder_;
  Job job_;
};

double work_ns(int ranks) {
  constexpr int repeats = 2'000'000;
  atoll_operation operation{};
  operation.kind = ATOLL_ALL_REDUCE;
  operation.dtype = ATOLL_F32;
  operation.op = ATOLL_SUM;
  operation.count = 1 << 14;
  std::vector<atoll_collectives::Advert> posts(static_cast<std::size_t>(ranks));
  std::uint64_t agreed = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < repeats; ++i) {
    // Tells the compiler that other ranks may have written to `posts`.
    asm volatile("" : : "r"(posts.data()) : "memory");
    auto& mine = posts[i % posts.size()];
    mine.signature = atoll_collectives::make_signature(operation, ranks, i);
    mine.call = digest(mine.signature);
    for (const auto& post : posts) agreed += post.call == mine.call ? 1 : 0;
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  if (agreed < repeats) throw std::runtime_error("a signature does not match itself");
  return took.count() / repeats;
}

struct Figures {
  double with_us, without_us;
  double percent() const { return (with_us / without_us - 1) * 100; }
};

Figures measure(Contender& with, Contender& without, const Row& row, int rounds) {
  std::int64_t operations = 0;  // number of operations per batch, the same for both backends
  std::vector<double> times_with, times_without;
  for (int round = 0; round < rounds; ++round) {
    if (round % 2 == 0) times_with.push_back(with.measure(row, operations));
    times_without.push_back(without.measure(row, operations));
    if (round % 2 == 1) times_with.push_back(with.measure(row, operations));
  }
  return {std::ranges::min(times_with), std::ranges::min(times_without)};
}

int run(int ranks, int rounds, const std::string& json) {
  Contender with(ranks, ""), without(ranks, BENCH_NO_SIGNATURE);
  fmt::print("in place, f32, {} ranks; target: at most {} % from 64 KiB on\n", ranks,
             target_percent);
  fmt::print("{:<15} {:>6} {:>10} {:>11} {:>7} {:>6}\n", "collective", "KiB", "with us",
             "without us", "ns", "%");
  auto rows = nlohmann::json::array();
  double sum = 0, shortest_us = std::numeric_limits<double>::max();
  for (const auto collective :
       {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
    for (const std::uint64_t bytes : sizes) {
      const Row row{collective, Element::f32, Place::in, bytes};
      const Figures figures = measure(with, without, row, rounds);
      sum += figures.percent();
      shortest_us = std::min(shortest_us, figures.without_us);
      fmt::print("{:<15} {:>6} {:>10.3f} {:>11.3f} {:>7.0f} {:>6.2f}\n", name(collective),
                 bytes >> 10, figures.with_us, figures.without_us,
                 (figures.with_us - figures.without_us) * 1e3, figures.percent());
      rows.push_back({{"collective", name(collective)},
                      {"bytes", bytes},
                      {"ranks", ranks},
                      {"with_us", figures.with_us},
                      {"without_us", figures.without_us}});
    }
  }
  const double mean = sum / static_cast<double>(rows.size());
  const double alone_ns = work_ns(ranks), alone = alone_ns / (shortest_us * 1e3) * 100;
  fmt::print(
      "mean of the rows: {:.2f} %; the work alone: {:.1f} ns, {:.2f} % of the shortest row\n", mean,
      alone_ns, alone);
  if (!json.empty()) {
    std::ofstream(json)
        << nlohmann::json{{"rows", rows}, {"mean_percent", mean}, {"alone_ns", alone_ns}}.dump(1)
        << '\n';
  }
  return alone <= target_percent ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 2, rounds = 41;
  std::string json;
  CLI::App app(
      "Measures how much time a collective within a host spends on comparing the ranks' calls.");
  const int cores = std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
  app.add_option("--ranks", ranks, "ranks, one core each")->check(CLI::Range(2, cores));
  app.add_option("--rounds", rounds, "batches of 20 ms for each backend")
      ->check(CLI::Range(1, 1000));
  app.add_option("--json", json, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(ranks, rounds, json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_signature: %s\n", error.what());
    return 1;
  }
}
