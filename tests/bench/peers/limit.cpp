// The ranks of the implementation `limit`. These processes read and write as much shared memory as
// a collective must, all at once and without waiting for each other within a batch. The results are
// still right, because no rank writes data that another rank reads. In the in_turns variants each
// rank yields its core after every pass, as ranks that outnumber the cores must do in a collective.
// Without this, each rank would find its part of the data in the caches of its core for a whole
// time slice.
//   bench_peer_limit RANKS BYTES     BYTES is the size of the largest row
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <system_error>
#include <vector>

#include "rank.hpp"
#include "traffic/kernels.hpp"

namespace {

using namespace atoll_bench;  // NOLINT(google-build-using-namespace): this file is a whole program
using traffic::Stores;

traffic::Element element_of(const Row& row) {
  switch (row.element) {
    case Element::f32:
      return traffic::Element::f32;
    case Element::bf16:
      return traffic::Element::bf16;
  }
  return traffic::Element::f32;
}

Stores stores_of(Variant variant) {
  switch (variant) {
    case Variant::streaming:
    case Variant::streaming_in_turns:
      return Stores::streaming;
    case Variant::library:
    case Variant::library_in_turns:
      return Stores::library;
    case Variant::usual:
    case Variant::plain_memory:
    case Variant::waited:
    case Variant::in_turns:
      return Stores::cached;
  }
  return Stores::cached;
}

// Two buffers per rank, at the same addresses in all processes that are forked later. The distances
// between buffers are not multiples of large powers of two. The L1 cache of an EPYC selects lines
// by a hash of few address bits, so a kernel that reads several buffers 512 MiB apart at the same
// offset would always miss the cache.
class Arena {
 public:
  Arena(int ranks, std::size_t bytes) : bytes_((bytes + page - 1) / page * page + apart) {
    const std::size_t all = 2 * bytes_ * static_cast<std::size_t>(ranks);
    void* memory = ::mmap(nullptr, all, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    ::madvise(memory, all, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(memory);
  }
  std::byte* buffer(int rank, int which) const {
    return data_ + static_cast<std::size_t>(2 * rank + which) * bytes_;
  }
  // Returns the memory of a rank's buffers to the system.
  void drop(int rank) const { ::madvise(buffer(rank, 0), 2 * bytes_, MADV_REMOVE); }

 private:
  static constexpr std::size_t page = std::size_t{1} << 21;
  static constexpr std::size_t apart = page + 5 * 4096;
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

class LimitPeer final : public Peer {
 public:
  LimitPeer(const Arena& arena, int rank, int ranks) : arena_(arena), rank_(rank), ranks_(ranks) {}
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  Buffers prepare(const Row& row, Variant variant) override {
    row_ = row;
    stores_ = stores_of(variant);
    in_turns_ = variant == Variant::in_turns || variant == Variant::streaming_in_turns ||
                variant == Variant::library_in_turns;
    plan();
    return {input(rank_), output(rank_)};
  }

  void run(std::int64_t operations) override {
    for (std::int64_t i = 0; i < operations; ++i) {
      pass();
      if (in_turns_) ::sched_yield();
    }
  }

  void release() override { arena_.drop(rank_); }

 private:
  std::size_t part(int rank) const {
    return slice_bytes(row_, ranks_) * static_cast<std::size_t>(rank);
  }
  std::byte* input(int rank) const {
    const bool intra = row_.place == Place::in && row_.collective == Collective::all_gather;
    return arena_.buffer(rank, 0) + (intra ? part(rank) : 0);
  }
  std::byte* output(int rank) const {
    if (row_.place == Place::out) return arena_.buffer(rank, 1);
    const bool intra = row_.collective == Collective::reduce_scatter;
    return arena_.buffer(rank, 0) + (intra ? part(rank) : 0);
  }

  // Sets the addresses that this rank reads and writes when it sums.
  void plan() {
    from_.clear();
    to_.clear();
    for (int i = 0; i < ranks_; ++i) {
      from_.push_back(input(i) + part(rank_));
      to_.push_back(output(i) + part(rank_));
    }
    if (row_.collective == Collective::reduce_scatter) to_.assign(1, output(rank_));
  }

  void pass() const {
    if (row_.collective != Collective::all_gather) {
      return traffic::sum(to_, from_, slice(row_, ranks_), element_of(row_), stores_);
    }
    for (int step = 0; step < ranks_; ++step) {
      const int source = (rank_ + step) % ranks_;
      std::byte* to = output(rank_) + part(source);
      if (to == input(source)) continue;
      traffic::copy(to, input(source), slice_bytes(row_, ranks_), stores_);
    }
  }

  const Arena& arena_;
  int rank_, ranks_;
  Stores stores_ = Stores::cached;
  bool in_turns_ = false;
  Row row_;
  std::vector<const std::byte*> from_;
  std::vector<std::byte*> to_;
};

int run_ranks(int ranks, std::size_t bytes) {
  const Arena arena(ranks, bytes);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (child == 0) {
      take_core(rank, ranks);
      LimitPeer peer(arena, rank, ranks);
      std::_Exit(serve(peer));
    }
    children.push_back(child);
  }
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3)
      throw std::runtime_error(
          "expected two arguments; tests/bench/collectives starts this program");
    return run_ranks(std::stoi(argv[1]), std::stoull(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_peer_limit: %s\n", error.what());
    return 1;
  }
}
