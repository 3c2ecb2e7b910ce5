#include "rank.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

namespace atoll_bench {

PlainMemory::PlainMemory(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 4096);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  data_ = {static_cast<std::byte*>(memory), Unmap{bytes}};
}

void PlainMemory::Unmap::operator()(std::byte* data) const { ::munmap(data, bytes); }

namespace {

// Element i of rank r has the value (r + 1) * (i mod period + 1). Sums over at least 8 ranks are
// exact in bf16. The period of f32 is a prime number, so that no two slices are equal.
double contribution(const Row& row, int rank, std::uint64_t i) {
  const std::uint64_t period = row.element == Element::f32 ? 1021 : 8;
  return (rank + 1.0) * (static_cast<double>(i % period) + 1.0);
}

void put(std::byte* data, Element element, std::uint64_t i, double value) {
  const auto single = static_cast<float>(value);
  switch (element) {
    case Element::f32:
      std::memcpy(data + 4 * i, &single, 4);
      return;
    case Element::bf16: {
      const auto high = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(single) >> 16);
      std::memcpy(data + 2 * i, &high, 2);
      return;
    }
  }
}

double get(const std::byte* data, Element element, std::uint64_t i) {
  float single = 0;
  switch (element) {
    case Element::f32:
      std::memcpy(&single, data + 4 * i, 4);
      break;
    case Element::bf16: {
      std::uint16_t high = 0;
      std::memcpy(&high, data + 2 * i, 2);
      single = std::bit_cast<float>(static_cast<std::uint32_t>(high) << 16);
      break;
    }
  }
  return single;
}

double expected(const Row& row, std::uint64_t i, int rank, int ranks) {
  const std::uint64_t part = slice(row, ranks);
  if (row.collective == Collective::all_gather) {
    return contribution(row, static_cast<int>(i / part), i % part);
  }
  if (row.collective == Collective::reduce_scatter) i += part * static_cast<std::uint64_t>(rank);
  double sum = 0;
  for (int r = 0; r < ranks; ++r) sum += contribution(row, r, i);
  return sum;
}

class Server {
 public:
  Server(Peer& peer, Control& control) : peer_(peer), control_(control) {}

  void measure(const Request& request) {
    const Row& row = request.row;
    const Buffers buffers = peer_.prepare(row, request.variant);
    fill(row, buffers, peer_.rank(), peer_.ranks());
    meet(control_, peer_.ranks());
    peer_.run(1);
    meet(control_, peer_.ranks());
    const std::string wrong = difference(row, buffers, peer_.rank(), peer_.ranks());
    if (!wrong.empty()) report_wrong(control_, wrong);
    Answer answer;
    answer.operations = request.operations > 0 ? request.operations : find_operations(request);
    answer.batches = std::min(request.batches, most_batches);
    if (answer.operations >= 4) batch(answer.operations / 4);
    for (int i = 0; i < answer.batches; ++i) {
      answer.seconds[static_cast<std::size_t>(i)] = batch(answer.operations);
    }
    peer_.release();
    reply(answer);
  }

  // Waits until all ranks have called reply(); rank 0 then sends the answer to the driver.
  void reply(const Answer& answer) {
    meet(control_, peer_.ranks());
    if (peer_.rank() != 0) return;
    control_.answer = answer;
    control_.answers.fetch_add(1);
    wake_all(control_.answers);
  }

 private:
  // Returns the seconds from the moment at which all ranks are ready until the last rank has
  // finished `operations` operations.
  double batch(std::int64_t operations) {
    const std::int64_t start = meet(control_, peer_.ranks());
    peer_.run(operations);
    control_.ended_ns[static_cast<std::size_t>(peer_.rank())].store(now_ns());
    meet(control_, peer_.ranks());
    std::int64_t end = start;
    for (int rank = 0; rank < peer_.ranks(); ++rank) {
      end = std::max(end, control_.ended_ns[static_cast<std::size_t>(rank)].load());
    }
    return static_cast<double>(end - start) * 1e-9;
  }

  // Returns the number of operations that fill a batch. All ranks see the same times, so they
  // compute the same number. The number is based on the best of three batches, so that a moment of
  // other load does not make the batches too short.
  std::int64_t find_operations(const Request& request) {
    std::int64_t operations = 1;
    for (;;) {
      double seconds = batch(operations);
      for (int i = 0; i < 2 && seconds < 2 * request.batch_seconds; ++i) {
        seconds = std::min(seconds, batch(operations));
      }
      const double wanted = static_cast<double>(operations) * request.batch_seconds / seconds;
      if (seconds >= request.batch_seconds / 4) {
        return std::max<std::int64_t>(1, std::llround(wanted));
      }
      operations = std::clamp(static_cast<std::int64_t>(wanted), 2 * operations, 16 * operations);
    }
  }

  Peer& peer_;
  Control& control_;
};

}  // namespace

void fill(const Row& row, const Buffers& buffers, int rank, int ranks) {
  // The output is cleared before the input is filled, because in place the output may be part of
  // the input or contain the input.
  std::memset(buffers.output, 0, output_elements(row, ranks) * size_of(row.element));
  for (std::uint64_t i = 0; i < input_elements(row, ranks); ++i) {
    put(buffers.input, row.element, i, contribution(row, rank, i));
  }
}

std::string difference(const Row& row, const Buffers& buffers, int rank, int ranks) {
  const auto at = [&](std::uint64_t i) -> std::string {
    const double is = get(buffers.output, row.element, i), should = expected(row, i, rank, ranks);
    if (is == should) return "";
    return "wrong result: " + std::string(name(row.collective)) + " " +
           std::string(name(row.element)) + " " + std::string(name(row.place)) + " of " +
           std::to_string(row.bytes) + " bytes: element " + std::to_string(i) + " on rank " +
           std::to_string(rank) + " is " + std::to_string(is) + ", not " + std::to_string(should);
  };
  // Checks every element of a small result, and a sample of the elements of a large result. The
  // stride of the sample is odd, so that the sample contains every remainder of the index modulo 8.
  const std::uint64_t count = output_elements(row, ranks), stride = count / 65536 * 2 + 1;
  for (std::uint64_t i = 0; i < count; i += stride) {
    if (std::string wrong = at(i); !wrong.empty()) return wrong;
  }
  return at(count - 1);
}

void take_core(int rank, int ranks) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (::sched_getaffinity(0, sizeof mine, &mine) != 0 || ranks > CPU_COUNT(&mine)) return;
  for (int core = 0, skip = rank; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mine) || skip-- > 0) continue;
    CPU_ZERO(&mine);
    CPU_SET(core, &mine);
    ::sched_setaffinity(0, sizeof mine, &mine);
    return;
  }
}

void take_core(const char* rank, const char* ranks) {
  const char* own = std::getenv(rank);
  const char* all = std::getenv(ranks);
  if (own && all) take_core(std::atoi(own), std::atoi(all));
}

int serve(Peer& peer) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* path = std::getenv("BENCH_CONTROL");
  if (!path || peer.ranks() > most_ranks) {
    std::fprintf(stderr, "tests/bench/collectives starts this program, with at most %d ranks\n",
                 most_ranks);
    return 2;
  }
  const SharedControl control = SharedControl::open(path);
  try {
    Server server(peer, *control);
    server.reply({});
    for (std::uint32_t seen = 0;; ++seen) {
      while (control->requests.load() == seen) {
        check(*control);
        wait_for_change(control->requests, seen, std::chrono::milliseconds(500));
      }
      const Request request = control->request;
      if (request.order == Order::quit) return 0;
      server.measure(request);
    }
  } catch (const std::exception& error) {
    fail(*control, error.what());
    std::fprintf(stderr, "rank %d: %s\n", peer.rank(), error.what());
    return 1;
  }
}

}  // namespace atoll_bench
