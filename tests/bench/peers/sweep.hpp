// Declares the rows to measure, the implementations to compare, and the measurement itself, in
// which the implementations take turns.
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
  // Variant of atoll that waits for every operation, as MPI calls do. It is measured from 8 to 512
  // KiB.
  atoll_waited,
  openmpi,
  gloo,
  limit,
  // Variant of the limit in which each rank yields its core after every pass. It is measured if
  // there are more ranks than cores.
  limit_in_turns
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
  std::string programs;   // folder that contains the rank programs
  std::string run_ranks;  // program that starts processes as ranks of atoll
};

// Returns sizes from 8 B to 256 MiB: a few sizes where latency matters, all powers of two near the
// cache sizes, and some large sizes. quick_sizes() returns fewer sizes.
std::vector<std::uint64_t> usual_sizes();
std::vector<std::uint64_t> quick_sizes();

// Smallest size in bytes that appears in the table of large sizes.
constexpr std::uint64_t large = std::uint64_t{1} << 20;

struct Key {
  int ranks = 0;
  Row row;
};
bool operator<(const Key& a, const Key& b);

// Seconds per operation of each implementation. Each round takes the median of its batches, and the
// result is the minimum over all rounds, because other load only adds time. For `limit` and
// `limit_in_turns` it is the time of the fastest variant.
using Times = std::map<Impl, double>;
struct Result {
  std::map<Key, Times> rows;
  std::vector<std::string> absent;  // one line for each implementation that is missing or failed
  // One line for each wrong result of a peer. The time of that result is still reported.
  std::vector<std::string> wrong;
  bool sound = true;  // false if an implementation is missing or has failed
};

// Measures all rows and reports its progress on stderr.
Result measure(const Sweep& sweep);

}  // namespace atoll_bench
