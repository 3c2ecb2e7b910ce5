// atoll-busbw: measures the bus bandwidth of collectives, with options and output of nccl-tests.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "atoll/flight.hpp"
#include "documents.hpp"
#include "job.hpp"
#include "options.hpp"
#include "sweep.hpp"
#include "tune.hpp"
#include "verdict.hpp"

namespace {

using busbw::Job;
using busbw::Options;
using busbw::Table;

// 0, 1, 3 and 4 are exit codes of nccl-tests.
constexpr int exit_ok = 0;
constexpr int exit_internal = 1;
constexpr int exit_usage = 2;
constexpr int exit_library = 3;
constexpr int exit_timeout = 4;
constexpr int exit_unsupported = 5;
constexpr int exit_below = 7;  // exit code if data is wrong or a rate is too low

// Whether this process is rank 0 according to the variables of launchers. Needed before there is a
// World.
busbw::Speaks speaks() {
  for (const char* name :
       {"ATOLL_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"}) {
    if (const char* rank = std::getenv(name); rank != nullptr && *rank != '\0')
      return std::string_view(rank) == "0" ? busbw::Speaks::yes : busbw::Speaks::no;
  }
  return busbw::Speaks::yes;
}

void complain(const std::string& what) { fmt::print(stderr, "atoll-busbw: {}\n", what); }

// Waits until rank 0 has printed everything, because launchers end a job when its first rank fails.
void await_speaker(atoll::World& world) {
  try {
    world.barrier();
  } catch (const std::exception&) {  // rank 0 has ended, so there is nothing to wait for
  }
}

// Fails on all ranks, before anything is measured, when rank 0 cannot write an output file.
void check_outputs(atoll::World& world, const Options& options) {
  std::string problem;
  if (world.rank() == 0) {
    try {
      for (const std::string* path : {&options.json, &options.save, &options.plot})
        if (!path->empty()) busbw::require_writable(*path);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  const auto all = world.exchange("busbw/outputs", problem);
  if (!all.front().empty()) throw atoll::Error(atoll::ErrorCode::invalid_argument, all.front());
}

std::string memory_line(const busbw::Sweep& sweep) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return fmt::format("# {:<20} : buffers {} a rank | peak of rank 0 {}\n", "Memory usage",
                     busbw::human_bytes(sweep.buffer_bytes()),
                     busbw::human_bytes(static_cast<std::uint64_t>(usage.ru_maxrss) << 10U));
}

// Returns findings about counters of ports that rose since `before` was discovered, and prints them
// on rank 0. Collective.
std::vector<atoll::Finding> judge_ports(atoll::World& world, const atoll::Topology& before) {
  auto findings = atoll::compare_ports(before, atoll::Topology::discover_ports(world));
  if (world.rank() == 0) {
    fmt::print("{}", busbw::port_lines(findings));
    std::fflush(stdout);  // print before other ranks exit, since a launcher may then end this one
  }
  return findings;
}

int measure(atoll::World& world, const Options& options, const busbw::CommandLine& command) {
  Job job(world, options);
  if (options.pairs > 0) {
    const auto report = busbw::measure_pairs(job, options);
    const auto ports = judge_ports(world, job.topology);
    if (job.is_root() && !options.json.empty())
      busbw::write_file(options.json, busbw::to_json(command, job, options, report, ports));
    // Scripts must not mistake a missing verdict for success.
    if (!report.is_judged) return exit_unsupported;
    return report.verdict.findings.empty() ? exit_ok : exit_below;
  }
  busbw::Sweep sweep(job, options);
  std::vector<Table> tables;
  std::size_t rows = 0;
  std::size_t judged = 0;
  bool is_good = true;
  for (const busbw::Collective collective : options.collectives) {
    const Table& table = tables.emplace_back(sweep.run(collective));
    rows += table.rows.size();
    if (table.rows.empty()) continue;
    is_good = is_good && table.is_good();
    judged += table.expectation ? static_cast<std::size_t>(table.expectation->judged) : 0;
  }
  const auto ports = judge_ports(world, job.topology);
  if (job.is_root()) {
    if (options.memory_report > 0) fmt::print("{}", memory_line(sweep));
    if (!options.json.empty())
      busbw::write_file(options.json, busbw::to_json(command, job, options, tables, ports));
    if (!options.save.empty())
      busbw::write_file(options.save, busbw::to_curve(job, options, tables));
    if (!options.plot.empty() && rows > 0)
      busbw::write_file(options.plot, busbw::to_page(tables, options.expect));
    if (options.expect && rows > 0 && judged == 0)
      complain("--expect: no limit is known on this machine; set one with --limit GB/s");
  }
  if (rows == 0) return exit_unsupported;
  if (options.expect && judged == 0) return exit_below;
  return is_good ? exit_ok : exit_below;
}

int status_of(const atoll::Error& error) {
  switch (error.code()) {
    case atoll::ErrorCode::invalid_argument:
    case atoll::ErrorCode::not_found:
      return exit_usage;
    case atoll::ErrorCode::unsupported:
      return exit_unsupported;
    case atoll::ErrorCode::timeout:
      return exit_timeout;
    case atoll::ErrorCode::internal:
    case atoll::ErrorCode::io:
    case atoll::ErrorCode::bad_data:
      return exit_internal;
    case atoll::ErrorCode::peer_lost:
    case atoll::ErrorCode::aborted:
    case atoll::ErrorCode::mismatch:
    case atoll::ErrorCode::out_of_memory:
    case atoll::ErrorCode::backend:
      return exit_library;
  }
  return exit_internal;
}

// Thrown for an error in the environment of this rank. Other ranks may not have the error.
struct CannotJoin {
  std::string what;
  int status;
};

atoll::World join(const Options& options) {
  try {
    return atoll::World::from_env(busbw::config_of(options));
  } catch (const atoll::Error& error) {
    throw CannotJoin{error.what(), status_of(error)};
  }
}

// Runs the job. Rank 0 alone prints errors that all ranks see alike. An error of one rank is
// printed by that rank and fails the job.
int run_job(const Options& options, const busbw::CommandLine& command) {
  // The World outlives the error's unwinding, so that other ranks receive the reason.
  atoll::World world = join(options);
  std::string what;
  int status = exit_internal;
  try {
    check_outputs(world, options);
    status = measure(world, options, command);
    await_speaker(world);
    return status;
  } catch (const atoll::Error& error) {
    what = error.what();
    status = status_of(error);
  } catch (const std::exception& error) {
    what = error.what();
  }
  if (status == exit_usage || status == exit_unsupported) {
    if (world.rank() == 0) complain(what);
    await_speaker(world);
    return status;
  }
  world.fail(what);
  const std::string who = fmt::format("rank {}: ", world.rank());
  complain(what.starts_with("rank ") ? what : who + what);
  return status;
}

// Keeps standard output for the JSON report, and prints everything else on standard error.
void redirect_table(Options& options) {
  std::fflush(stdout);
  options.json = fmt::format("/dev/fd/{}", dup(STDOUT_FILENO));
  dup2(STDERR_FILENO, STDOUT_FILENO);
}

int run(int argc, char** argv, busbw::Speaks speaker) {
  auto options = busbw::parse_options(argc, argv, speaker);
  if (!options) return exit_ok;
  // These modes only read files. They start no job, so they work in any environment.
  if (!options->flight.empty()) {
    fmt::print("{}", atoll::explain_flight(options->flight));
    return exit_ok;
  }
  if (!options->tune.empty()) {
    const auto curves = std::span(options->tune).subspan(1);
    busbw::write_file(options->tune.front().string(), busbw::tune(curves));
    return exit_ok;
  }
  if (options->json == "-") redirect_table(*options);
  return run_job(*options, {.arguments = {argv, argv + argc}, .start_time = busbw::local_time()});
}

// Exits on errors that all ranks see alike. Only rank 0 prints; other ranks exit a little later,
// because some launchers would otherwise kill rank 0 before it has printed.
int fail_alike(busbw::Speaks speaker, const std::string& what, int status) {
  constexpr auto patience = std::chrono::milliseconds(300);
  if (speaker == busbw::Speaks::yes)
    complain(what);
  else
    std::this_thread::sleep_for(patience);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const busbw::Speaks speaker = speaks();
  try {
    return run(argc, argv, speaker);
  } catch (const CannotJoin& error) {
    return fail_alike(busbw::Speaks::yes, error.what, error.status);
  } catch (const atoll::Error& error) {  // error in the command line, or in a file that it names
    return fail_alike(speaker, error.what(), status_of(error));
  } catch (const std::exception& error) {  // error in the command line
    return fail_alike(speaker, std::string(error.what()) + " (see --help-all)", exit_usage);
  }
}
