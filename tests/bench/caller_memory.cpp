// Compares collectives on memory that the caller owns (malloc) with the same collectives on memory
// from allocate(), inside one host.
//   caller_memory [--collectives NAME,...] [--sizes BYTES,...] [--rounds N] [--json FILE]
// Runs as the ranks of a job; the script caller_memory starts it with 2 and 4 ranks. Every round
// measures both kinds of memory once. A time is the median over the rounds of the time of the
// slowest rank. `share` is the time in memory from allocate() divided by the time in memory of
// malloc. Exits with 1 if a result is wrong, or if the geometric mean of the shares of a collective
// misses its target.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/world.hpp"

namespace {

using Clock = std::chrono::steady_clock;

enum class Collective {
  all_gather,
  reduce_scatter,
  all_reduce
};
struct Target {
  Collective collective;
  std::string_view name;
  double share;  // least share of the speed in memory from allocate()
};
constexpr std::array<Target, 3> targets{{{Collective::all_gather, "all_gather", 0.45},
                                         {Collective::reduce_scatter, "reduce_scatter", 0.60},
                                         {Collective::all_reduce, "all_reduce", 0.60}}};

enum class Place {
  out,
  in
};

struct Row {
  Collective collective;
  Place place;
  std::uint64_t bytes;  // size of the whole tensor
};

struct Times {
  double allocated = 0, owned = 0;  // seconds per operation
};

struct Free {
  void operator()(float* memory) const noexcept { std::free(memory); }
};
using Owned = std::unique_ptr<float, Free>;

// Two buffers of one kind of memory.
struct Memory {
  float* src;
  float* dst;
};

class Bench {
 public:
  explicit Bench(std::uint64_t most_bytes)
      : allocated_src_(allocate(most_bytes)),
        allocated_dst_(allocate(most_bytes)),
        owned_src_(own(most_bytes)),
        owned_dst_(own(most_bytes)) {}
  const atoll::World& world() const { return world_; }

  Times measure(const Row& row, int rounds) {
    const Memory allocated{allocated_src_.view(atoll::DType::f32).as<float>(),
                           allocated_dst_.view(atoll::DType::f32).as<float>()};
    const Memory owned{owned_src_.get(), owned_dst_.get()};
    for (const Memory& memory : {allocated, owned}) check(row, memory);
    std::vector<double> times_allocated, times_owned;
    for (int round = 0; round < rounds; ++round) {
      if (round % 2 == 0) times_allocated.push_back(turn(row, allocated));
      times_owned.push_back(turn(row, owned));
      if (round % 2 == 1) times_allocated.push_back(turn(row, allocated));
    }
    return {median(times_allocated), median(times_owned)};
  }

 private:
  atoll::Buffer allocate(std::uint64_t bytes) {
    return atoll::allocate(communicator_.device(), bytes, {communicator_});
  }
  static Owned own(std::uint64_t bytes) {
    Owned memory(static_cast<float*>(std::malloc(bytes)));
    if (!memory) throw std::runtime_error("malloc returned no memory");
    std::fill_n(memory.get(), bytes / sizeof(float), 0.0F);  // makes the pages resident
    return memory;
  }
  static double median(std::vector<double>& times) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }

  std::uint64_t ranks() const { return static_cast<std::uint64_t>(world_.size()); }
  static std::uint64_t whole(const Row& row) { return row.bytes / sizeof(float); }
  std::uint64_t share(const Row& row) const { return whole(row) / ranks(); }
  std::uint64_t mine(const Row& row) const {
    return share(row) * static_cast<std::uint64_t>(world_.rank());
  }
  static atoll::View view(float* data, std::uint64_t count) {
    return {data, count, atoll::DType::f32};
  }

  atoll::Work start(const Row& row, const Memory& memory) {
    const bool in_place = row.place == Place::in;
    const std::uint64_t n = share(row), all = n * ranks();
    float* const dst = in_place ? memory.src : memory.dst;
    switch (row.collective) {
      case Collective::all_gather:
        return communicator_.all_gather(view(in_place ? dst + mine(row) : memory.src, n),
                                        view(dst, all), stream_);
      case Collective::reduce_scatter:
        return communicator_.reduce_scatter(view(memory.src, all),
                                            view(in_place ? dst + mine(row) : dst, n),
                                            atoll::ReduceOp::sum, stream_);
      case Collective::all_reduce:
        return communicator_.all_reduce(view(memory.src, all), view(dst, all), atoll::ReduceOp::sum,
                                        stream_);
    }
    throw std::logic_error("unknown collective");
  }

  // Performs the collective on ones and checks the last element of the result. Every rank passes
  // ones, so the result is ones as well, or the number of ranks.
  void check(const Row& row, const Memory& memory) {
    const std::uint64_t n = share(row), all = n * ranks();
    std::fill_n(memory.src, all, 1.0F);
    std::fill_n(memory.dst, all, 0.0F);
    start(row, memory).synchronize();
    const float* const dst = row.place == Place::in ? memory.src : memory.dst;
    const bool scatters = row.collective == Collective::reduce_scatter;
    const std::uint64_t first = scatters && row.place == Place::in ? mine(row) : 0;
    const float wanted =
        row.collective == Collective::all_gather ? 1.0F : static_cast<float>(world_.size());
    const std::uint64_t count = scatters ? n : all;
    if (dst[first] != wanted || dst[first + count - 1] != wanted) {
      throw std::runtime_error("a collective gave a wrong result");
    }
    std::fill_n(memory.src, all, 0.0F);  // sums in place would grow without bound otherwise
  }

  // Returns the seconds per operation on the slowest rank.
  double turn(const Row& row, const Memory& memory) {
    constexpr std::uint64_t bytes_per_turn = 64 << 20;
    const std::uint64_t operations = std::clamp<std::uint64_t>(bytes_per_turn / row.bytes, 1, 64);
    start(row, memory).synchronize();  // brings the memory of this turn into the caches
    communicator_.barrier(stream_).synchronize();
    const auto begin = Clock::now();
    for (std::uint64_t i = 0; i < operations; ++i) start(row, memory).synchronize();
    std::vector<double> took{std::chrono::duration<double>(Clock::now() - begin).count()};
    communicator_.all_reduce(took, took, atoll::ReduceOp::max, stream_).synchronize();
    return took.front() / static_cast<double>(operations);
  }

  atoll::World world_ = atoll::World::from_env();
  atoll::Mesh mesh_ = atoll::Mesh::make(world_, {1, world_.size()});
  atoll::Communicator communicator_ =
      atoll::Communicator::open(mesh_.axis("shard"), {.backend = "host"});
  atoll::Stream stream_ = communicator_.device().stream();
  atoll::Buffer allocated_src_, allocated_dst_;
  Owned owned_src_, owned_dst_;
};

void append(const std::string& path, const nlohmann::json& rows) {
  auto all = nlohmann::json{{"rows", nlohmann::json::array()}};
  if (std::ifstream before(path); before) all = nlohmann::json::parse(before);
  for (const auto& row : rows) all["rows"].push_back(row);
  std::ofstream file(path);
  file << all.dump(1) << '\n';
  if (!file) throw std::runtime_error("cannot write " + path);
}

struct Settings {
  std::vector<std::string> collectives;
  std::vector<std::uint64_t> sizes{1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20};
  int rounds = 9;
  std::string json;
};

// Returns 1 if a target is missed.
int measure_here(const Settings& settings) {
  const auto& [collectives, sizes, rounds, json] = settings;
  Bench bench(*std::max_element(sizes.begin(), sizes.end()));
  const bool speaks = bench.world().rank() == 0;
  auto rows = nlohmann::json::array();
  int missed = 0;
  for (const Target& target : targets) {
    if (std::find(collectives.begin(), collectives.end(), target.name) == collectives.end())
      continue;
    double logarithms = 0;
    int count = 0;
    for (const Place place : {Place::out, Place::in}) {
      for (const std::uint64_t bytes : sizes) {
        const Times times = bench.measure({target.collective, place, bytes}, rounds);
        const double share = times.allocated / times.owned;
        logarithms += std::log(share);
        ++count;
        if (!speaks) continue;
        const std::string_view where = place == Place::in ? "in" : "out";
        fmt::print("{:>5} {:<15} {:<5} {:>10} {:>12.1f} {:>12.1f} {:>6.0f} %\n",
                   bench.world().size(), target.name, where, bytes, times.allocated * 1e6,
                   times.owned * 1e6, share * 100);
        std::fflush(stdout);
        rows.push_back({{"ranks", bench.world().size()},
                        {"collective", target.name},
                        {"place", where},
                        {"bytes", bytes},
                        {"allocated_us", times.allocated * 1e6},
                        {"owned_us", times.owned * 1e6},
                        {"share", share}});
      }
    }
    const double mean = std::exp(logarithms / count);
    const bool misses = mean < target.share;
    missed += misses ? 1 : 0;
    if (speaks) {
      fmt::print("{:>5} {:<15} mean {:.0f} %, target {:.0f} %{}\n", bench.world().size(),
                 target.name, mean * 100, target.share * 100, misses ? ": missed" : "");
    }
  }
  if (speaks && !json.empty()) append(json, rows);
  return missed > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  for (const Target& target : targets) settings.collectives.emplace_back(target.name);
  CLI::App app("Compares collectives on memory of malloc with the same on memory of allocate()");
  app.add_option("--collectives", settings.collectives, "collectives to measure (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(settings.collectives));
  app.add_option("--sizes", settings.sizes, "bytes of the whole tensor, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(1 << 10, 1 << 30));
  app.add_option("--rounds", settings.rounds, "rounds; each measures both kinds of memory once")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--json", settings.json, "append the rows to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    return measure_here(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "caller_memory: {}\n", error.what());
    return 1;
  }
}
