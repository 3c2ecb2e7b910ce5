// vm_job MODE [NUMBER]: one rank of the jobs of tests/vm/run, on the backend that ATOLL_BACKEND
// names.
//   traffic SECONDS  compares the sums of an all_reduce of 1 MiB, again and again; creates /tmp/moving
//                    after the third
//   registrations N  allocates N buffers of 4 KiB, each registered with the adapters
//   sizes MIB        sends messages of 0, 1, 2, 4, ... bytes up to MIB, and compares every byte
//   random N         sends N messages of random sizes up to 1 MiB, log-uniform, and compares
//   opens N          opens and closes N communicators, each with one all_reduce, and then compares the
//                    RDMA objects and descriptors of the process with those after the first ten
// A rank prints "rank R: right", or one line with its error.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"
#include "atoll/mesh.hpp"
#include "atoll/world.hpp"

namespace {

using atoll::Communicator;
using atoll::DType;
using atoll::ReduceOp;

struct Rank {
  atoll::World& world;
  Communicator& comm;
  atoll::Stream& stream;
};

void require(bool holds, const std::string& wrong) {
  if (!holds) throw std::runtime_error("WRONG " + wrong);
}

void add(Rank& self, const atoll::View& numbers) {
  float* const values = numbers.as<float>();
  const auto count = static_cast<std::size_t>(numbers.count);
  const int ranks = self.world.size();
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(self.world.rank()));
  }
  self.comm.all_reduce(numbers, numbers, ReduceOp::sum, self.stream).synchronize();
  const auto all = static_cast<std::size_t>(ranks * (ranks - 1) / 2);
  for (std::size_t i = 0; i < count; ++i) {
    const auto sum = static_cast<float>(i % 1000 * static_cast<std::size_t>(ranks) + all);
    require(values[i] == sum, fmt::format("element {}: {} instead of {}", i, values[i], sum));
  }
}

void traffic(Rank& self, int seconds) {
  const auto memory = atoll::allocate(self.comm.device(), 1 << 20, {self.comm});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  for (int turn = 0; std::chrono::steady_clock::now() < end; ++turn) {
    add(self, memory.view(DType::f32));
    if (turn == 2) std::ofstream("/tmp/moving") << "moving\n";
  }
}

void registrations(Rank& self, int count) {
  std::vector<atoll::Buffer> buffers;
  for (int i = 0; i < count; ++i) {
    buffers.push_back(atoll::allocate(self.comm.device(), 4096, {self.comm}));
  }
  add(self, buffers.back().view(DType::f32));
}

std::byte pattern(std::uint64_t seed, std::size_t i) {
  return static_cast<std::byte>((i * 167 + (i >> 11) + seed * 31) & 0xff);
}

// Every rank sends to the next rank and receives from the one before.
void pass_on(Rank& self, const atoll::Buffer& out, const atoll::Buffer& in, std::size_t bytes,
             std::uint64_t seed) {
  const int ranks = self.world.size(), rank = self.world.rank();
  const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  auto* const sent = static_cast<std::byte*>(out.data());
  const auto* const received = static_cast<const std::byte*>(in.data());
  const auto key = seed + static_cast<std::uint64_t>(rank);
  for (std::size_t i = 0; i < bytes; ++i) sent[i] = pattern(key, i);
  const auto from = out.view(DType::u8).part(0, bytes);
  const auto to = in.view(DType::u8).part(0, bytes);
  using Kind = Communicator::SendRecv::Kind;
  const Communicator::SendRecv messages[] = {{Kind::send, from, next}, {Kind::recv, to, last}};
  self.comm.group(messages, self.stream).synchronize();
  for (std::size_t i = 0; i < bytes; ++i) {
    if (received[i] == pattern(seed + static_cast<std::uint64_t>(last), i)) continue;
    require(false, fmt::format("byte {} of {}", i, bytes));
  }
}

void sizes(Rank& self, int mib) {
  const std::size_t most = static_cast<std::size_t>(mib) << 20;
  const auto out = atoll::allocate(self.comm.device(), most, {self.comm});
  const auto in = atoll::allocate(self.comm.device(), most, {self.comm});
  pass_on(self, out, in, 0, 0);
  for (std::size_t bytes = 1; bytes <= most; bytes *= 2) {
    pass_on(self, out, in, bytes, bytes);
    if (bytes > 2) pass_on(self, out, in, bytes - 1, bytes);
  }
}

void random(Rank& self, int count) {
  constexpr std::size_t most = 1 << 20;
  const auto out = atoll::allocate(self.comm.device(), most, {self.comm});
  const auto in = atoll::allocate(self.comm.device(), most, {self.comm});
  std::mt19937_64 generator(1);  // the same sizes on every rank
  std::uniform_real_distribution<double> exponent(0, 20);
  for (int i = 0; i < count; ++i) {
    const auto bytes = static_cast<std::size_t>(std::exp2(exponent(generator)));
    pass_on(self, out, in, std::min(bytes, most), static_cast<std::uint64_t>(i));
  }
}

// The RDMA objects of this guest and the descriptors of this process.
std::string objects() {
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen("rdma resource show", "r"), ::pclose);
  char line[256];
  while (pipe && std::fgets(line, sizeof line, pipe.get()) != nullptr) text += line;
  std::ranges::replace(text, '\n', ' ');
  for (const char* const part : {"rxe0: ", " qp ", " mr ", " cq "}) {
    require(text.find(part) != std::string::npos, "output of rdma resource show: " + text);
  }
  return text +
         fmt::format("descriptors {}",
                     std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

void opens(Rank& self, const atoll::Mesh& mesh, int count) {
  std::string before;
  for (int i = 0; i < count; ++i) {
    {
      auto comm = Communicator::open(mesh.axis("world"), {.name = fmt::format("turn{}", i)});
      Rank inside{self.world, comm, self.stream};
      const auto memory = atoll::allocate(comm.device(), 64 * 1024, {comm});
      add(inside, memory.view(DType::f32));
    }
    self.world.barrier();
    if (i == 10) before = objects();
    self.world.barrier();
  }
  const auto after = objects();
  fmt::print("rank {}: {}\n", self.world.rank(), after);
  require(before == after, fmt::format("{} became {}", before, after));
}

void run(std::string_view mode, int number) {
  auto world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = world.size()});
  auto comm = Communicator::open(mesh.axis("world"));
  auto stream = comm.device().stream();
  Rank self{world, comm, stream};
  if (mode == "traffic") traffic(self, number);
  if (mode == "registrations") registrations(self, number);
  if (mode == "sizes") sizes(self, number);
  if (mode == "random") random(self, number);
  if (mode == "opens") opens(self, mesh, number);
  fmt::print("rank {}: right\n", world.rank());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const char* const rank = std::getenv("ATOLL_RANK");
  try {
    run(argv[1], std::atoi(argv[2]));
    return EXIT_SUCCESS;
  } catch (const atoll::Error& error) {
    fmt::print("rank {}: {}: {}\n", rank == nullptr ? "?" : rank, name(error.code()), error.what());
  } catch (const std::exception& error) {
    fmt::print("rank {}: {}\n", rank == nullptr ? "?" : rank, error.what());
  }
  return EXIT_FAILURE;
}
