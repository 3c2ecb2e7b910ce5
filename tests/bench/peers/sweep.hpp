// Which rows there are, who takes part, and the taking of turns.
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
  atoll_waited,  // from 8 to 512 KiB: every operation is waited for, as the calls of MPI do
  openmpi,
  gloo,
  limit,
  limit_in_turns  // where ranks outnumber cores: each leaves its core to the next after every pass
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
  std::string run_ranks;  // starts processes as ranks of atoll
};

// From 8 B to 256 MiB: some where latency counts, all powers of two around the caches, and large
// ones. `quick` takes a few.
std::vector<std::uint64_t> usual_sizes();
std::vector<std::uint64_t> quick_sizes();

// Where the table of the large sizes begins.
constexpr std::uint64_t large = std::uint64_t{1} << 20;

struct Key {
  int ranks = 0;
  Row row;
};
bool operator<(const Key& a, const Key& b);

// Seconds of one operation: the median of the batches of a round, the smallest of all rounds, since
// whatever else the machine does only adds to them. For `limit` the smaller of its two kernels.
using Times = std::map<Impl, double>;
struct Result {
  std::map<Key, Times> rows;
  std::vector<std::string> absent;  // a line for each implementation that is not there, or failed
  std::vector<std::string> wrong;   // a line for each wrong result of a peer, measured all the same
  bool sound = true;                // atoll and the limit are there and their results are right
};

// Says on stderr how far it is.
Result measure(const Sweep& sweep);

}  // namespace atoll_bench
