// conformance_failures CASE [BACKEND]
//
// Checks the errors that the ranks of a job get when one rank fails: every rank must get an error
// in time, and the error must be a single line that names the failed rank. Each case is
// one job. run_ranks starts it; for the mpi backend, an MPI launcher does. Rank 1 is the rank that
// fails; in the case stopped_store it is rank 0. A rank whose checks all pass prints "as expected"
// as its last line.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"
#include "atoll/flight.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

int culprit = 1;
// Limit for an error to arrive. It is generous, because there are more ranks than cores and
// sanitizers are slow.
constexpr auto soon = 15s;

struct Job {
  atoll::World& world;
  atoll::Communicator& comm;
  atoll::Stream& stream;
  // The mpi backend compares the calls of the ranks only after one rank has timed out.
  bool on_mpi = false;
};

int complain(const Job& job, std::string_view what) {
  fmt::print(stderr, "rank {}: FAILED: {}\n", job.world.rank(), what);
  return 1;
}

// Returns the atoll::Error that `call` throws, or nothing if `call` succeeds.
std::optional<atoll::Error> error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const atoll::Error& error) {
    return error;
  }
  return std::nullopt;
}

// Checks that there is an error, that its text is a single line, that its code is one of `codes`,
// and that the text contains all of `words`. Also checks that the communicator refuses further
// calls.
int expect_error(const Job& job, const std::optional<atoll::Error>& error,
                 const std::vector<atoll::ErrorCode>& codes,
                 const std::vector<std::string>& words) {
  if (!error) return complain(job, "no error came");
  const std::string_view text = error->what();
  fmt::print("rank {}: {}: {}\n", job.world.rank(), atoll::name(error->code()), text);
  if (std::find(codes.begin(), codes.end(), error->code()) == codes.end()) {
    return complain(job, "the error has another code than expected");
  }
  if (text.find('\n') != std::string_view::npos)
    return complain(job, "the message has several lines");
  for (const std::string& word : words) {
    if (text.find(word) == std::string_view::npos) {
      return complain(job, fmt::format("the message lacks \"{}\"", word));
    }
  }
  if (!job.world.failure()) return complain(job, "the World has no failure");
  if (!error_of([&] { job.comm.barrier(job.stream).synchronize(); })) {
    return complain(job, "the communicator still works after the failure");
  }
  return 0;
}

// Rank 1 kills itself in the middle of a collective.
int killed(const Job& job) {
  std::vector<float> data(1u << 21, 1.0f);
  std::jthread executioner;
  if (job.world.rank() == culprit) {
    executioner = std::jthread([] {
      std::this_thread::sleep_for(300ms);
      std::raise(SIGKILL);
    });
  }
  auto last = Clock::now();
  const auto end = last + soon;
  const auto error = error_of([&] {
    while (Clock::now() < end) {
      job.comm.all_reduce(data, data, atoll::ReduceOp::max, job.stream).synchronize();
      last = Clock::now();
    }
  });
  if (Clock::now() - last > soon) return complain(job, "the error came late");
  return expect_error(job, error, {atoll::ErrorCode::peer_lost, atoll::ErrorCode::aborted},
                      {"rank 1"});
}

// Rank 1 does not call the collective. The other ranks time out after ATOLL_TIMEOUT, and rank 1
// must then learn of their failure although it made no call.
int absent(const Job& job) {
  const auto start = Clock::now();
  if (job.world.rank() == culprit) {
    while (!job.world.failure() && Clock::now() - start < soon) std::this_thread::sleep_for(10ms);
    return expect_error(job, error_of([&] { job.world.check(); }),
                        {atoll::ErrorCode::timeout, atoll::ErrorCode::aborted}, {"rank 1"});
  }
  std::vector<float> data(100, 1.0f);
  const auto error = error_of(
      [&] { job.comm.all_reduce(data, data, atoll::ReduceOp::sum, job.stream).synchronize(); });
  if (Clock::now() - start > soon) return complain(job, "the error came late");
  return expect_error(job, error, {atoll::ErrorCode::timeout, atoll::ErrorCode::aborted},
                      {"rank 1", "all_reduce"});
}

// Rank 1 stops itself by SIGSTOP and no longer answers. run_ranks kills rank 1 at the end of the
// test.
int stopped(const Job& job) {
  if (job.world.rank() == culprit) {
    std::raise(SIGSTOP);
    // An MPI launcher sends SIGCONT to a stopped process before it ends that process.
    std::_Exit(0);
  }
  const auto start = Clock::now();
  std::vector<float> data(1000, 1.0f);
  const auto error = error_of(
      [&] { job.comm.all_reduce(data, data, atoll::ReduceOp::sum, job.stream).synchronize(); });
  if (Clock::now() - start > soon) return complain(job, "the error came late");
  return expect_error(job, error, {atoll::ErrorCode::timeout, atoll::ErrorCode::aborted},
                      {fmt::format("rank {}", culprit), "all_reduce", "does not answer"});
}

using Calls = std::function<void()>;

// Rank 1 makes one call and the other ranks make a different one. A rank that notices the
// difference reports a mismatch; the remaining ranks are aborted with the message of that rank. MPI
// itself notices only messages of the wrong length, so under MPI the other ranks make one more
// call, in which they wait for rank 1 until the timeout.
int differ(const Job& job, std::string_view operation, const Calls& culprits, const Calls& others) {
  const bool differs = job.world.rank() == culprit;
  const auto start = Clock::now();
  const auto error = error_of([&] {
    (differs ? culprits : others)();
    // In deterministic mode the library computes the sums itself and compares the calls of the
    // ranks first, so it reports the mismatch without another call.
    const bool says = job.world.config().deterministic != 0;
    if (!differs && job.on_mpi && !says) {
      std::vector<float> data(10, 1.0f);
      job.comm.all_reduce(data, data, atoll::ReduceOp::sum, job.stream).synchronize();
    }
    while (!job.world.failure() && Clock::now() - start < soon) std::this_thread::sleep_for(10ms);
    job.world.check();
  });
  if (Clock::now() - start > soon) return complain(job, "the error came late");
  return expect_error(job, error, {atoll::ErrorCode::mismatch, atoll::ErrorCode::aborted},
                      {std::string(operation), "rank 1", " called ", " where "});
}

void reduce_floats(const Job& job, std::size_t count, atoll::ReduceOp op) {
  std::vector<float> data(count, 1.0f);
  job.comm.all_reduce(data, data, op, job.stream).synchronize();
}

int other_count(const Job& job) {
  // Under MPI, rank 1 uses a count of 0, with which Open MPI 4.1 only hangs. Any other wrong count
  // can crash Open MPI 4.1.
  const std::size_t odd = job.on_mpi ? 0 : 1001;
  return differ(
      job, "all_reduce", [&] { reduce_floats(job, odd, atoll::ReduceOp::sum); },
      [&] { reduce_floats(job, 1000, atoll::ReduceOp::sum); });
}

// The root broadcasts more elements than the other ranks receive. MPI notices a message of the
// wrong length, but does not report which rank sent it.
int other_length(const Job& job) {
  const auto cast = [&](std::size_t count) {
    std::vector<float> data(count, 1.0f);
    job.comm.broadcast(data, culprit, job.stream).synchronize();
  };
  return differ(
      job, "broadcast", [&] { cast(2000); }, [&] { cast(1000); });
}

int other_dtype(const Job& job) {
  std::vector<std::int32_t> numbers(1000, 1);
  return differ(
      job, "all_reduce",
      [&] {
        job.comm.all_reduce(numbers, numbers, atoll::ReduceOp::sum, job.stream).synchronize();
      },
      [&] { reduce_floats(job, 1000, atoll::ReduceOp::sum); });
}

int other_op(const Job& job) {
  return differ(
      job, "all_reduce", [&] { reduce_floats(job, 1000, atoll::ReduceOp::max); },
      [&] { reduce_floats(job, 1000, atoll::ReduceOp::sum); });
}

int other_operation(const Job& job) {
  std::vector<float> data(1000, 1.0f);
  return differ(
      job, "all_reduce",
      [&] {
        if (job.on_mpi) {
          job.comm.barrier(job.stream).synchronize();
        } else {
          job.comm.broadcast(data, 0, job.stream).synchronize();
        }
      },
      [&] { reduce_floats(job, 1000, atoll::ReduceOp::sum); });
}

// A task that rank 1 enqueued throws, so the collective that rank 1 enqueued after the task on the
// same stream never runs. The other ranks must get an error at once instead of waiting for the
// timeout.
int passed_over(const Job& job) {
  std::vector<float> data(100, 1.0f);
  const bool breaks = job.world.rank() == culprit;
  const auto error = error_of([&] {
    if (!breaks) {
      return job.comm.all_reduce(data, data, atoll::ReduceOp::sum, job.stream).synchronize();
    }
    auto broken = job.comm.device().stream();
    broken.enqueue([] { throw std::runtime_error("work of one's own"); });
    const auto work = job.comm.all_reduce(data, data, atoll::ReduceOp::sum, broken);
    try {
      broken.synchronize();
    } catch (const std::runtime_error&) {
      job.world.check();
    }
  });
  return expect_error(job, error, {atoll::ErrorCode::aborted}, {"rank 1", "was dropped"});
}

// Rank 1 declares the job failed, and the other ranks are aborted with the message of rank 1.
int declared(const Job& job) {
  if (job.world.rank() == culprit) {
    job.world.fail("rank 1 ran out of patience");
  }
  std::vector<float> data(100, 1.0f);
  const auto error = error_of([&] {
    if (job.world.rank() == culprit) job.world.check();
    job.comm.all_reduce(data, data, atoll::ReduceOp::sum, job.stream).synchronize();
  });
  return expect_error(job, error, {atoll::ErrorCode::aborted}, {"rank 1 ran out of patience"});
}

std::vector<std::filesystem::path> flight_files(const Job& job) {
  std::vector<std::filesystem::path> files;
  for (int rank = 0; rank < job.world.size(); ++rank) {
    files.emplace_back(fmt::format("{}.{}.json", job.world.config().flight, rank));
  }
  return files;
}

// Waits until every rank of this job has written its flight file for `reason`. Returns a
// description of the first file that is missing or wrong, or "" if all files are right.
std::string await_files(const Job& job, std::string_view reason) {
  std::string problem;
  for (const auto& file : flight_files(job)) {
    const auto end = Clock::now() + soon;
    do {
      std::this_thread::sleep_for(10ms);
      problem.clear();
      try {
        const atoll::FlightLog log = atoll::read_flight(file);
        const int pid = job.world.placements()[static_cast<std::size_t>(log.rank)].pid;
        if (log.reason != reason || log.pid != pid) problem = "an older file: " + file.string();
      } catch (const atoll::Error& error) {
        problem = error.what();
      }
    } while (!problem.empty() && Clock::now() < end);
    if (!problem.empty()) return problem;
  }
  return problem;
}

// All ranks except rank 1 hang in a collective. Rank 1 sends SIGUSR1 to every rank, so that each
// writes its flight file, and checks that the files name rank 1 as the missing rank. Rank 1 then
// fails the job, and every flight file must report that failure. `name` and `call` describe the
// collective in which the other ranks hang.
int flight_in(const Job& job, const std::string& name, const std::string& call) {
  if (job.world.rank() != culprit) {
    std::vector<float> data(100, 1.0f);
    const auto error = error_of(
        [&] { job.comm.all_reduce(data, data, atoll::ReduceOp::sum, job.stream).synchronize(); });
    return expect_error(job, error, {atoll::ErrorCode::aborted}, {"rank 1 has read enough"});
  }
  for (const auto& placement : job.world.placements()) ::kill(placement.pid, SIGUSR1);
  if (const auto problem = await_files(job, "signal"); !problem.empty()) {
    return complain(job, problem);
  }
  const auto expect_told = [&](const std::vector<std::string>& words) {
    const std::string told = atoll::explain_flight(flight_files(job));
    fmt::print("{}", told);
    return std::ranges::all_of(
        words, [&](const std::string& word) { return told.find(word) != std::string::npos; });
  };
  if (!expect_told({"3 ranks; logs of all", "knew of no failure", "rank 1 never called " + name,
                    "rank 0: in " + name + call + " for "})) {
    return complain(job, "the flight files do not show which rank is missing");
  }
  job.world.fail("rank 1 has read enough");
  if (const auto problem = await_files(job, "failure"); !problem.empty()) {
    return complain(job, problem);
  }
  if (!expect_told({"failure, on ranks 0-2: rank 1", "rank 1 has read enough"})) {
    return complain(job, "the flight files do not report the failure");
  }
  return 0;
}

int flight(const Job& job) { return flight_in(job, "all_reduce 1", " (100 x f32, sum)"); }

// The flight file check for a backend that cannot order its sums. With ATOLL_DETERMINISTIC=1 the
// library uses a fallback that builds the all_reduce from all_gather, so the other ranks hang in an
// all_gather.
int flight_fallback(const Job& job) {
  return flight_in(job, "all_gather 3 of all_reduce", " (5 x i64)");
}

int run(const std::string& name, const std::string& backend) {
  const std::map<std::string, int (*)(const Job&)> cases = {{"killed", killed},
                                                            {"absent", absent},
                                                            {"stopped", stopped},
                                                            {"stopped_store", stopped},
                                                            {"other_count", other_count},
                                                            {"other_dtype", other_dtype},
                                                            {"other_op", other_op},
                                                            {"other_length", other_length},
                                                            {"other_operation", other_operation},
                                                            {"declared", declared},
                                                            {"passed_over", passed_over},
                                                            {"flight", flight},
                                                            {"flight_fallback", flight_fallback}};
  if (name == "stopped_store") culprit = 0;
  atoll::World world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = world.size()});
  auto comm = atoll::Communicator::open(mesh.axis("shard"), {.name = "", .backend = backend});
  atoll::Stream stream = comm.device().stream({.name = name});
  std::vector<float> warm_up(10, 1.0f);
  comm.all_reduce(warm_up, warm_up, atoll::ReduceOp::sum, stream).synchronize();
  world.barrier();
  // Rank 1 fails only after the other ranks have left the barrier and wait in the next call.
  if (world.rank() == culprit) std::this_thread::sleep_for(500ms);
  const Job job{world, comm, stream, backend == "mpi"};
  const int result = cases.at(name)(job);
  if (result == 0) fmt::print("rank {}: as expected\n", world.rank());
  std::fflush(stdout);
  // Waits, because an MPI launcher ends the job as soon as one rank exits, and the other ranks must
  // be able to print first.
  if (job.on_mpi) std::this_thread::sleep_for(2s);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    fmt::print(stderr, "conformance_failures CASE [BACKEND]\n");
    return 2;
  }
  try {
    return run(argv[1], argc == 3 ? argv[2] : "host");
  } catch (const std::exception& error) {
    fmt::print(stderr, "FAILED: {}\n", error.what());
    return 1;
  }
}
