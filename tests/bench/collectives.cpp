// Compares collectives of the host backend with Open MPI, with Gloo, and with the limit that the
// memory of this machine sets. `collectives --help` lists the options; collectives.md explains how
// the comparison is kept fair. Exits with 1 if a target is missed, if atoll fails, or if a result
// of atoll is wrong.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "peers/report.hpp"
#include "peers/sweep.hpp"

namespace {

using namespace atoll_bench;  // NOLINT(google-build-using-namespace): this file is a whole program

template <class Enum>
std::map<std::string, Enum> names_of(std::initializer_list<Enum> values) {
  std::map<std::string, Enum> names;
  for (const Enum value : values) names.emplace(name(value), value);
  return names;
}

// Parses a size in bytes such as "512", "64K", "16M" or "1G".
std::uint64_t bytes_of(std::string text) {
  const std::string wrong = CLI::AsSizeValue(false)(text);
  if (!wrong.empty()) throw CLI::ValidationError("--sizes", wrong);
  return std::stoull(text);
}

// Returns the usual sizes in the range "MIN:MAX", or the one size that the text gives.
std::vector<std::uint64_t> sizes_of(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return {bytes_of(text)};
  const std::uint64_t least = bytes_of(text.substr(0, colon));
  const std::uint64_t most = bytes_of(text.substr(colon + 1));
  std::vector<std::uint64_t> sizes = usual_sizes();
  std::erase_if(sizes, [&](std::uint64_t size) { return size < least || size > most; });
  if (sizes.empty()) throw CLI::ValidationError("--sizes", "no usual size is in " + text);
  return sizes;
}

struct Arguments {
  Sweep sweep;
  std::string sizes;
  std::string json;
  bool quick = false;
};

void add_options(CLI::App& app, Arguments& arguments) {
  Sweep& sweep = arguments.sweep;
  app.add_option("--ranks", sweep.ranks, "numbers of ranks; several with commas")
      ->delimiter(',')
      ->check(CLI::Range(2, most_ranks))
      ->capture_default_str();
  app.add_option("--sizes", arguments.sizes,
                 "size of the whole tensor: MIN:MAX or one size, in bytes or with K, M, G");
  const auto collectives =
      names_of({Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce});
  app.add_option("--collective", sweep.collectives,
                 "all_gather, reduce_scatter or all_reduce; several with commas")
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(collectives));
  app.add_option("--dtype", sweep.elements, "f32, bf16")
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(names_of({Element::f32, Element::bf16})));
  std::map<std::string, Impl> impls;
  std::string known;
  for (const Impl impl : all_impls) {
    impls.emplace(name(impl), impl);
    known.append(known.empty() ? "" : ", ").append(name(impl));
  }
  app.add_option("--impl", sweep.impls, known)
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(impls));
  app.add_option("--rounds", sweep.rounds,
                 "rounds per row, in which each implementation has one turn")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_flag("--quick", arguments.quick, "five sizes, one round");
  app.add_option("--json", arguments.json, "file for the figures");
}

void complete(Arguments& arguments, const CLI::App& app) {
  Sweep& sweep = arguments.sweep;
  sweep.programs = BENCH_PROGRAMS;
  sweep.run_ranks = BENCH_RUN_RANKS;
  if (sweep.collectives.empty()) {
    sweep.collectives = {Collective::all_gather, Collective::reduce_scatter,
                         Collective::all_reduce};
  }
  if (sweep.elements.empty()) sweep.elements = {Element::f32, Element::bf16};
  if (sweep.impls.empty()) sweep.impls.assign(std::begin(all_impls), std::end(all_impls));
  if (arguments.quick && app.count("--rounds") == 0) sweep.rounds = 1;
  if (!arguments.sizes.empty()) {
    sweep.sizes = sizes_of(arguments.sizes);
  } else {
    sweep.sizes = arguments.quick ? quick_sizes() : usual_sizes();
  }
}

void print_terms(const Sweep& sweep) {
  fmt::print(
      "{} round(s). A figure is from the best round; in a round it is the median of batches\n",
      sweep.rounds);
  fmt::print(
      "of 20 ms, from the last rank's start to the last rank's end. Up to 1 KiB atoll waits for\n"
      "each operation, like the calls of MPI; above, it waits for every 64th. limit: the best of\n"
      "cached stores, non-temporal stores and memcpy with the traffic of the collective, without\n"
      "waiting for other ranks; below 1 MiB this is the speed of the caches and no target.\n"
      "limit_in_turns, where ranks outnumber cores: the same, but each rank yields its core\n"
      "after every pass, as it must in a collective.\n");
}

// Warns if other programs load the machine. Their load takes cores from ranks that poll, and memory
// bandwidth from all ranks.
void warn_if_busy() {
  double load = 0;
  if (::getloadavg(&load, 1) != 1) return;
  const unsigned cores = std::thread::hardware_concurrency();
  if (load < 0.5 * cores) return;
  fmt::print(
      "note: the load was {:.1f} on {} cores before the start; the figures are from a busy "
      "machine\n",
      load, cores);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Compares collectives with Open MPI, Gloo and the machine's limit");
  add_options(app, arguments);
  try {
    app.parse(argc, argv);
    complete(arguments, app);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  try {
    print_terms(arguments.sweep);
    warn_if_busy();
    std::fflush(stdout);
    const Result result = measure(arguments.sweep);
    const std::vector<Target> all = targets(result);
    print_tables(result);
    print_targets(all);
    for (const std::string& line : result.absent) fmt::print("absent: {}\n", line);
    for (const std::string& line : result.wrong) fmt::print("wrong, but measured: {}\n", line);
    if (!arguments.json.empty()) {
      std::ofstream file(arguments.json);
      file << json(result, all).dump(1) << '\n';
      if (!file) throw std::runtime_error("cannot write " + arguments.json);
    }
    const bool met = std::all_of(all.begin(), all.end(), [](const Target& t) { return t.met(); });
    return met && result.sound ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "collectives: {}\n", error.what());
    return 2;
  }
}
