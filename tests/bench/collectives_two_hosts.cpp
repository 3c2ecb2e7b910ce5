// Compares collectives of the host backend between emulated hosts with raw TCP over the same links.
// `collectives_two_hosts --help` lists the options. If no launcher started this program, it starts
// itself on the emulated hosts of tests/cluster/two_hosts. Exits with 77 and prints the reason if
// emulated hosts are not possible here, and exits with 1 if a target is missed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atoll/communicator.hpp>
#include <atoll/world.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "peers/rank.hpp"
#include "two_hosts/hosts.hpp"

namespace {

using atoll_bench::Collective;
using Clock = std::chrono::steady_clock;

// Smallest message size in bytes to which the targets apply.
constexpr std::uint64_t large = std::uint64_t{4} << 20;
constexpr double wanted_share = 0.92;
// Minimum length of a batch. It is long compared to the burst that a link passes at full speed.
constexpr double batch_seconds = 0.5;
constexpr int batches = 3;

struct Arguments {
  atoll_bench::Hosts hosts;
  std::string algorithm;
  std::string json;
  std::vector<Collective> collectives{Collective::all_gather, Collective::reduce_scatter,
                                      Collective::all_reduce};
  bool quick = false;
};

struct Figures {
  Collective collective = Collective::all_gather;
  std::uint64_t bytes = 0;
  double seconds = 0;  // seconds per operation on the slowest rank; median of the batches
  double wire = 0;     // time in seconds that raw TCP needs for `ideal` bytes
  // Bytes per operation that the busiest host sent, according to its interface counters.
  double sent = 0;
  double ideal = 0;  // least payload in bytes that a host must send
};

// Returns the bytes that each of H hosts must send and receive: (H - 1) / H of the tensor, and
// twice that for all_reduce.
double ideal_bytes(Collective collective, std::uint64_t bytes, int hosts) {
  return atoll_bench::bus_factor(collective, hosts) * static_cast<double>(bytes);
}

class Bench {
 public:
  explicit Bench(atoll::World& world) : world_(world) {}

  Figures measure(Collective collective, std::uint64_t bytes) {
    const atoll_bench::Row row{collective, {}, {}, bytes};
    const int ranks = communicator_.size();
    input_ = allocate(atoll_bench::input_elements(row, ranks));
    output_ = allocate(atoll_bench::output_elements(row, ranks));
    const atoll_bench::Buffers buffers{static_cast<std::byte*>(input_.data()),
                                       static_cast<std::byte*>(output_.data())};
    atoll_bench::fill(row, buffers, communicator_.rank(), ranks);
    batch(collective, 1);
    const std::string wrong = atoll_bench::difference(row, buffers, communicator_.rank(), ranks);
    if (!wrong.empty()) throw std::runtime_error(wrong);
    const double once = batch(collective, 1);
    const int operations = std::max(1, static_cast<int>(std::lround(batch_seconds / once)));
    const double before = atoll_bench::transmitted_bytes();
    world_.barrier();
    std::array<double, batches> seconds{};
    for (double& time : seconds) time = batch(collective, operations) / operations;
    world_.barrier();
    const double sent = most(atoll_bench::transmitted_bytes() - before) / (batches * operations);
    std::sort(seconds.begin(), seconds.end());
    Figures figures{collective, bytes};
    figures.seconds = seconds[batches / 2];
    figures.sent = sent;
    figures.ideal = ideal_bytes(collective, bytes, static_cast<int>(world_.hosts().size()));
    return figures;
  }

 private:
  atoll::Buffer allocate(std::uint64_t elements) {
    return atoll::allocate(communicator_.device(), elements * sizeof(float), {communicator_});
  }

  double most(double mine) { return atoll_bench::most(world_, mine); }

  // Returns the seconds that the slowest rank needs for `operations` operations.
  double batch(Collective collective, int operations) {
    communicator_.barrier(stream_).synchronize();
    const auto start = Clock::now();
    atoll::Work last;
    for (int i = 0; i < operations; ++i) last = enqueue(collective);
    last.synchronize();
    return most(std::chrono::duration<double>(Clock::now() - start).count());
  }

  atoll::Work enqueue(Collective collective) {
    const atoll::ConstView src = input_.view(atoll::DType::f32);
    const atoll::View dst = output_.view(atoll::DType::f32);
    switch (collective) {
      case Collective::all_gather:
        return communicator_.all_gather(src, dst, stream_);
      case Collective::reduce_scatter:
        return communicator_.reduce_scatter(src, dst, atoll::ReduceOp::sum, stream_);
      case Collective::all_reduce:
        return communicator_.all_reduce(src, dst, atoll::ReduceOp::sum, stream_);
    }
    return {};
  }

  atoll::World& world_;
  atoll::Mesh mesh_ = atoll::Mesh::make(world_, {1, world_.size()});
  atoll::Communicator communicator_ =
      atoll::Communicator::open(mesh_.axis("shard"), {.backend = "host"});
  atoll::Stream stream_ = communicator_.device().stream();
  atoll::Buffer input_, output_;
};

void print_head(const Arguments& arguments, const atoll::World& world,
                const atoll_bench::RawRates& raw) {
  fmt::print("{} hosts, {} ranks, {} rail{} of {}, algorithm {}\n", world.hosts().size(),
             world.size(), raw.links, raw.links == 1 ? "" : "s", arguments.hosts.rate,
             arguments.algorithm.empty() ? "chosen" : arguments.algorithm);
  fmt::print(
      "raw TCP: {:.1f} MB/s one way, {:.1f} MB/s each way at once, which is the wire below\n",
      raw.one_way * 1e-6, raw.both_ways * 1e-6);
  fmt::print("{:<15} {:>10} {:>11} {:>11} {:>10} {:>12} {:>12} {:>7}\n", "collective (f32)",
             "bytes", "time_us", "wire_us", "% of wire", "sent_bytes", "ideal_bytes", "ratio");
}

void print_row(const Figures& row) {
  fmt::print("{:<16} {:>10} {:>11.1f} {:>11.1f} {:>10.1f} {:>12.0f} {:>12.0f} {:>7.3f}\n",
             atoll_bench::name(row.collective), row.bytes, row.seconds * 1e6, row.wire * 1e6,
             100 * row.wire / row.seconds, row.sent, row.ideal, row.sent / row.ideal);
}

// The result of one collective: the smallest share of the raw TCP rate that it reached at any size
// from 4 MiB on.
struct Verdict {
  Collective collective = Collective::all_gather;
  double share = 0;
  bool met() const { return share >= wanted_share; }
};

std::vector<Verdict> judge(const std::vector<Figures>& rows, const Arguments& arguments) {
  std::vector<Verdict> all;
  for (const Collective collective : arguments.collectives) {
    Verdict verdict{collective, 1e30};
    for (const Figures& row : rows) {
      if (row.collective != collective || row.bytes < large) continue;
      verdict.share = std::min(verdict.share, row.wire / row.seconds);
    }
    all.push_back(verdict);
  }
  return all;
}

void print_summary(const std::vector<Verdict>& verdicts) {
  fmt::print(
      "sent_bytes: sent per operation by the busiest host, by its interface counters, which count "
      "one header per large segment\n\n");
  for (const Verdict& verdict : verdicts) {
    fmt::print("{:<16} from 4 MiB on at least {:5.1f} % of the wire, target {:.0f} %: {}\n",
               atoll_bench::name(verdict.collective), 100 * verdict.share, 100 * wanted_share,
               verdict.met() ? "met" : "NOT met");
  }
}

void write_json(const std::string& path, const std::vector<Figures>& rows,
                const std::vector<Verdict>& verdicts, const atoll_bench::RawRates& raw) {
  auto list = nlohmann::json::array();
  for (const Figures& row : rows) {
    list.push_back({{"collective", atoll_bench::name(row.collective)},
                    {"bytes", row.bytes},
                    {"time_us", row.seconds * 1e6},
                    {"wire_us", row.wire * 1e6},
                    {"sent_bytes", row.sent},
                    {"ideal_bytes", row.ideal}});
  }
  auto summary = nlohmann::json::array();
  for (const Verdict& verdict : verdicts) {
    summary.push_back({{"collective", atoll_bench::name(verdict.collective)},
                       {"least_share_of_wire", verdict.share},
                       {"bound", wanted_share},
                       {"met", verdict.met()}});
  }
  std::ofstream file(path);
  file << nlohmann::json{{"rows", list},
                         {"summary", summary},
                         {"rails", raw.links},
                         {"raw_tcp_Bps", {{"one_way", raw.one_way}, {"both_ways", raw.both_ways}}}}
              .dump(1)
       << '\n';
  if (!file) throw std::runtime_error("cannot write " + path);
}

void run(const Arguments& arguments) {
  atoll::Config config = atoll::Config::from_env();
  if (!arguments.algorithm.empty()) config.set("ATOLL_ALGORITHM", arguments.algorithm);
  atoll::World world = atoll::World::from_env(config);
  if (world.hosts().size() < 2) throw std::runtime_error("all ranks are on one host");
  const bool speaks = world.rank() == 0;
  Bench bench(world);
  const atoll_bench::RawRates raw = atoll_bench::raw_rates(world);
  if (speaks) print_head(arguments, world, raw);
  std::vector<Figures> rows;
  for (const Collective collective : arguments.collectives) {
    for (std::uint64_t kib = 64; kib <= (arguments.quick ? 16U << 10 : 64U << 10); kib *= 4) {
      Figures row = bench.measure(collective, kib << 10);
      row.wire = row.ideal / raw.both_ways;
      if (speaks) print_row(row);
      std::fflush(stdout);
      rows.push_back(row);
    }
  }
  if (!speaks) return;
  const std::vector<Verdict> verdicts = judge(rows, arguments);
  print_summary(verdicts);
  if (!arguments.json.empty()) write_json(arguments.json, rows, verdicts, raw);
  const bool met = std::all_of(verdicts.begin(), verdicts.end(), [](auto& v) { return v.met(); });
  if (!met) atoll_bench::report_missed();
}

void add_options(CLI::App& app, Arguments& arguments) {
  app.option_defaults()->always_capture_default();
  atoll_bench::add_host_options(app, arguments.hosts);
  app.add_option("--algorithm", arguments.algorithm,
                 "as in ATOLL_ALGORITHM; chosen by size if empty");
  const std::map<std::string, Collective> collectives{
      {"all_gather", Collective::all_gather},
      {"reduce_scatter", Collective::reduce_scatter},
      {"all_reduce", Collective::all_reduce}};
  app.add_option("--collective", "all_gather, reduce_scatter or all_reduce; several with commas")
      ->delimiter(',')
      ->check(CLI::IsMember(collectives))
      ->each([&arguments, collectives, first = true](const std::string& name) mutable {
        if (std::exchange(first, false)) arguments.collectives.clear();
        arguments.collectives.push_back(collectives.at(name));
      });
  app.add_flag("--quick", arguments.quick, "up to 16 MiB");
  app.add_option("--json", arguments.json, "file for the figures");
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Compares collectives between emulated hosts with raw TCP");
  add_options(app, arguments);
  CLI11_PARSE(app, argc, argv);
  try {
    if (!atoll_bench::on_hosts()) {
      return atoll_bench::start_on_hosts(arguments.hosts, {argv, static_cast<std::size_t>(argc)});
    }
    run(arguments);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "collectives_two_hosts: {}\n", error.what());
    return 2;
  }
}
