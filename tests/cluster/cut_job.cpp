// cut_job CASE FILE SECONDS: a job of three ranks on three hosts, for the test cut_network.
//
// The ranks pass a barrier, except in the cases `first` and `waiting`. Rank 0 then creates FILE,
// which makes the test cut the network between the hosts of ranks 1 and 2. The cases:
//   outstanding  rank 1 keeps sending to rank 2
//   idle         rank 1 waits for a message of rank 2, which computes for long
//   first        ranks 1 and 2 have no connection yet, and rank 2 sends to rank 1
//   waiting      the same, but rank 2 computes for a long time, so only rank 1 can notice the cut
//   stopped      nothing is cut; rank 2 stops itself while rank 1 sends to it, and a child process
//                continues it after SECONDS, which are more than the limit for a cut network
// A rank whose operations succeed prints "rank R done", a rank with an error prints the error and
// the seconds since the cut.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "atoll/communicator.hpp"
#include "atoll/device.hpp"
#include "atoll/error.hpp"
#include "atoll/mesh.hpp"
#include "atoll/world.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t count = 1 << 20;

struct Job {
  atoll::World& world;
  atoll::Communicator& comm;
  atoll::Stream& stream;
  atoll::View memory;
  std::chrono::seconds stopped_for;
};

void send(const Job& job, int peer) { job.comm.send(job.memory, peer, job.stream).synchronize(); }
void recv(const Job& job, int peer) { job.comm.recv(job.memory, peer, job.stream).synchronize(); }

// Stops this process; a child continues it after `time`.
void stop_for(std::chrono::seconds time) {
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    std::this_thread::sleep_for(time);
    ::kill(self, SIGCONT);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
  ::waitpid(child, nullptr, 0);
}

void run(const Job& job, std::string_view name) {
  const int rank = job.world.rank();
  if (name == "outstanding") {
    for (;;) {
      if (rank == 1) send(job, 2);
      if (rank == 2) recv(job, 1);
      if (rank == 0) recv(job, 1);  // nobody sends: rank 0 waits until the job fails
    }
  }
  if (name == "idle") {
    if (rank == 1) recv(job, 2);
    if (rank == 0) recv(job, 1);
    std::this_thread::sleep_for(60s);
    job.world.barrier();
  }
  if (name == "first" || name == "waiting") {
    std::this_thread::sleep_for(2s);  // until the network is cut
    if (rank == 2 && name == "waiting") std::this_thread::sleep_for(40s);
    if (rank == 2) send(job, 1);
    if (rank == 1) recv(job, 2);
    job.world.barrier();
  }
  if (name == "stopped") {
    if (rank == 2) stop_for(job.stopped_for);
    for (int i = 0; i < 20; ++i) {
      if (rank == 1) send(job, 2);
      if (rank == 2) recv(job, 1);
    }
    job.comm.barrier(job.stream).synchronize();
  }
}

int main_of(std::string_view name, const std::string& file, std::chrono::seconds stopped_for) {
  auto world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = world.size()});
  auto comm = atoll::Communicator::open(mesh.axis("shard"), {.backend = "host"});
  auto stream = comm.device().stream();
  auto memory = atoll::allocate(comm.device(), count * sizeof(float), {comm});
  const Job job{world, comm, stream, memory.view(atoll::DType::f32), stopped_for};
  if (name != "first" && name != "waiting") comm.barrier(stream).synchronize();
  if (world.rank() == 0) std::ofstream(file) << "cut\n";
  const auto begin = Clock::now();
  try {
    run(job, name);
    fmt::print("rank {} done\n", world.rank());
    return EXIT_SUCCESS;
  } catch (const atoll::Error& error) {
    const std::chrono::duration<double> late = Clock::now() - begin;
    fmt::print("rank {} after {:.1f} s: {}\n", world.rank(), late.count(), error.what());
    std::fflush(stdout);
    std::_Exit(EXIT_FAILURE);  // ends without waiting for rank 2, which may still sleep
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return EXIT_FAILURE;
  try {
    return main_of(argv[1], argv[2], std::chrono::seconds(std::atoi(argv[3])));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return EXIT_FAILURE;
  }
}
