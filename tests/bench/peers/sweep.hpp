// The rows to measure, the implementations to compare, and the rounds in which these take turns.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "control.hpp"
#include "row.hpp"

namespace atoll_bench {

enum class Impl {
  atoll,
  atoll_plain,
  atoll_waited,  // from 8 to 512 KiB: waits for every operation, like the calls of MPI
  openmpi,
  gloo,
  limit,
  limit_in_turns  // where ranks outnumber cores: each rank yields its core after every pass
};
inline constexpr Impl all_impls[] = {Impl::atoll,         Impl::atoll_plain, Impl::atoll_waited,
                                     Impl::openmpi,       Impl::gloo,        Impl::limit,
                                     Impl::limit_in_turns};
std::string_view name(Impl impl);

struct Sweep {
  std::vector<int> ranks{2, 4};
  std::vector<std::uint64_t> sizes;
  std::vector<Collective> collectives;
  std::vector<Element> elements;
  std::vector<Impl> impls;
  int rounds = 3;
  std::string programs;   // folder of the rank programs
  std::string run_ranks;  // the program that starts processes as ranks of atoll
};

// From 8 B to 256 MiB: a few sizes where latency counts, all powers of two near the cache sizes,
// and large ones. quick_sizes() returns fewer.
std::vector<std::uint64_t> usual_sizes();
std::vector<std::uint64_t> quick_sizes();

// The smallest size in the table of large sizes.
constexpr std::uint64_t large = std::uint64_t{1} << 20;

struct Key {
  int ranks = 0;
  Row row;
};
bool operator<(const Key& a, const Key& b);

// Seconds of one operation: the median of the batches in a round, and of these the minimum over all
// rounds, because other load only adds time. For `limit` the best of its kernels counts.
using Times = std::map<Impl, double>;
struct Result {
  std::map<Key, Times> rows;
  std::vector<std::string> absent;  // one line for each implementation that is missing or failed
  std::vector<std::string> wrong;   // one line for each wrong result of a peer, which still counts
  bool sound = true;                // false if an implementation is missing or failed
};

// Reports its progress on stderr.
Result measure(const Sweep& sweep);

}  // namespace atoll_bench
