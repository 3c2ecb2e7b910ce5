// conformance_failure_trials KIND COLLECTIVE SEED
//
// Runs one trial of a failing rank; the script failure_trials starts one job per trial. The ranks
// of the job call COLLECTIVE in a loop. At a moment chosen by SEED, rank 1 is killed, stops, or
// passes a different count; KIND is killed, stopped or mismatched. Every other rank must get an
// error that names rank 1, within ATOLL_TIMEOUT plus the time in which ranks are asked whether they
// still answer. With KIND mismatched, the error must name both calls and must come before the
// timeout.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int culprit = 1;
// Time limit of the loop of collectives. It is generous, because many trials run at once.
constexpr auto patience = 20s;
// Time after which a rank that has not answered is reported as silent.
constexpr auto inquiry = 2s;
constexpr auto slack = 3s;  // added to a time limit, because many trials run at once

struct Trial {
  atoll::Communicator& comm;
  atoll::Stream& stream;
  atoll::View src, dst;
  // Elements per rank, for all_gather_v and reduce_scatter_v.
  std::vector<std::uint64_t> counts;

  atoll::View part(atoll::View whole, std::uint64_t count) const { return whole.part(0, count); }
};

// Enqueues one collective with `n` elements per rank and returns its Work.
using Call = std::function<atoll::Work(Trial&, std::uint64_t n)>;

std::uint64_t ranks(const Trial& t) { return static_cast<std::uint64_t>(t.comm.size()); }

const std::map<std::string_view, Call>& calls() {
  constexpr auto sum = atoll::ReduceOp::sum;
  constexpr int root = 0;
  static const std::map<std::string_view, Call> table = {
      {"barrier", [](Trial& t, std::uint64_t) { return t.comm.barrier(t.stream); }},
      {"broadcast",
       [](Trial& t, std::uint64_t n) {
         return t.comm.broadcast(t.part(t.dst, n), root, t.stream);
       }},
      {"all_gather",
       [](Trial& t, std::uint64_t n) {
         return t.comm.all_gather(t.part(t.src, n), t.part(t.dst, n * ranks(t)), t.stream);
       }},
      {"reduce_scatter",
       [](Trial& t, std::uint64_t n) {
         return t.comm.reduce_scatter(t.part(t.src, n * ranks(t)), t.part(t.dst, n), sum, t.stream);
       }},
      {"all_reduce",
       [](Trial& t, std::uint64_t n) {
         return t.comm.all_reduce(t.part(t.src, n), t.part(t.dst, n), sum, t.stream);
       }},
      {"reduce",
       [](Trial& t, std::uint64_t n) {
         return t.comm.reduce(t.part(t.src, n), t.part(t.dst, n), sum, root, t.stream);
       }},
      {"gather",
       [](Trial& t, std::uint64_t n) {
         return t.comm.gather(t.part(t.src, n), t.part(t.dst, n * ranks(t)), root, t.stream);
       }},
      {"scatter",
       [](Trial& t, std::uint64_t n) {
         return t.comm.scatter(t.part(t.src, n * ranks(t)), t.part(t.dst, n), root, t.stream);
       }},
      {"all_to_all",
       [](Trial& t, std::uint64_t n) {
         return t.comm.all_to_all(t.part(t.src, n * ranks(t)), t.part(t.dst, n * ranks(t)),
                                  t.stream);
       }},
      {"all_gather_v",
       [](Trial& t, std::uint64_t n) {
         t.counts.assign(ranks(t), n);
         return t.comm.all_gather_v(t.part(t.src, n), t.part(t.dst, n * ranks(t)), t.counts,
                                    t.stream);
       }},
      {"reduce_scatter_v",
       [](Trial& t, std::uint64_t n) {
         t.counts.assign(ranks(t), n);
         return t.comm.reduce_scatter_v(t.part(t.src, n * ranks(t)), t.part(t.dst, n), t.counts,
                                        sum, t.stream);
       }},
  };
  return table;
}

// Returns true if the text has the form "rank 0 called X where rank 1 called Y".
bool names_both_calls(std::string_view text) {
  const auto where = text.find(" where ");
  return where != std::string_view::npos && text.find(" called ") < where &&
         text.find(" called ", where) != std::string_view::npos;
}

// Decides whether the error that one rank got is right and in time. `waited` is the time from the
// return of the last successful call to the error. It is about the time for which the rank waited
// for rank 1, because calls return as long as rank 1 has not failed.
int judge(int rank, std::string_view kind, const std::optional<atoll::Error>& error, Seconds waited,
          Seconds timeout) {
  const std::string_view text = error ? error->what() : "";
  // All ranks share a host, so they compare their calls in shared memory as soon as all of them
  // have arrived, and report a mismatch before the timeout. A rank that is aborted by another rank
  // reports the message of that rank.
  const bool differ = kind == "mismatched";
  const Seconds limit = differ ? timeout / 2 : timeout + inquiry + slack;
  std::string problem;
  if (!error) {
    problem = "no error came";
  } else if (text.find("rank 1") == std::string_view::npos) {
    problem = "does not name rank 1";
  } else if (differ && !names_both_calls(text)) {
    problem = "does not name both calls";
  } else if (waited > limit) {
    problem = fmt::format("came after {:.1f} s, limit {:.1f} s", waited.count(), limit.count());
  } else {
    return 0;
  }
  fmt::print(stderr, "rank {}: FAILED: {}: \"{}\": {}\n", rank, kind, text, problem);
  return 1;
}

int run(std::string_view kind, std::string_view collective, unsigned seed) {
  // All ranks draw the same random numbers, because they use the same seed.
  std::mt19937 random(seed);
  const auto n = std::array<std::uint64_t, 3>{7, 1000, 200'000}[random() % 3];
  const bool registered = random() % 2 == 0;
  const auto delay = std::chrono::microseconds(random() % 30'000);
  const int last_good = static_cast<int>(random() % 50);

  atoll::World world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = world.size()});
  auto comm = atoll::Communicator::open(mesh.axis("shard"));
  atoll::Stream stream = comm.device().stream({.name = "trial"});
  const std::size_t bytes = (n + 1) * static_cast<std::uint64_t>(world.size()) * sizeof(float);
  const auto make = [&] {
    return registered ? atoll::allocate(comm.device(), bytes, {comm})
                      : comm.device().allocate(bytes);
  };
  const atoll::Buffer src = make(), dst = make();
  Trial trial{comm, stream, src.view(atoll::DType::f32), dst.view(atoll::DType::f32), {}};
  const Call& call = calls().at(collective);
  comm.barrier(stream).synchronize();

  std::jthread executioner;
  if (world.rank() == culprit && kind != "mismatched") {
    executioner = std::jthread([delay, kind] {
      std::this_thread::sleep_for(delay);
      std::raise(kind == "killed" ? SIGKILL : SIGSTOP);
    });
  }
  std::optional<atoll::Error> error;
  // Time at which the last successful call returned.
  auto returned = Clock::now();
  const auto end = returned + patience;
  try {
    for (int i = 0; Clock::now() < end; ++i) {
      const bool astray = kind == "mismatched" && world.rank() == culprit && i == last_good;
      // A barrier has no count that could differ, so rank 1 calls all_reduce instead.
      const bool other = astray && collective == "barrier";
      (other ? calls().at("all_reduce") : call)(trial, astray ? n + 1 : n).synchronize();
      returned = Clock::now();
      world.check();
    }
  } catch (const atoll::Error& caught) {
    error = caught;
  }
  const Seconds waited = Clock::now() - returned;
  return judge(world.rank(), kind, error, waited, world.config().timeout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "conformance_failure_trials KIND COLLECTIVE SEED\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], static_cast<unsigned>(std::atoi(argv[3])));
  } catch (const std::exception& error) {
    fmt::print(stderr, "FAILED: {}\n", error.what());
    return 1;
  }
}
