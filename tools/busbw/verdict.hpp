// Measures the bandwidth between all pairs of ranks, and finds slow parts with pure functions.
//
// Entries inside hosts and entries between hosts are two classes. Each entry is compared with the
// upper quartile of its class, which is a good entry as long as a quarter of them is good (one slow
// host of three spoils two thirds). Causes are named in this order: a host whose entries to and
// from other hosts are slow in the median while others are not; a NIC whose ranks are slow between
// hosts only; a rank whose row and column are slow; and single entries that no other cause
// explains. Entries of a named cause are not used again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace busbw {

// GB/s from the rank of the row to the rank of the column. The diagonal is ignored.
using Matrix = std::vector<std::vector<double>>;

struct PairSites {
  std::vector<int> host;                // host of each rank
  std::vector<std::string> host_names;  // names, indexed by the number of the host
  std::vector<std::string> nic;         // NIC of each rank for traffic between hosts; "" if unknown
};

struct PairFinding {
  enum class Kind {
    host,
    nic,
    rank,
    pair
  } kind;
  std::string subject;  // what is slow: "host n1", "NIC n1/mlx5_0", "rank 3", "0 -> 3"
  std::string text;     // the finding as one line of text for users
};

// An entry is slow below this share of its class's upper quartile.
inline constexpr double slow_share = 0.7;

struct PairVerdict {
  // Slow hosts, NICs, ranks and pairs; empty if all pairs are alike.
  std::vector<PairFinding> findings;
  // Upper quartiles of the pairs inside hosts and of the pairs between hosts; 0 without such pairs.
  double intra_gbyte_s = 0;
  double between_gbyte_s = 0;
};
PairVerdict judge_pairs(const Matrix& matrix, const PairSites& sites);

// Splits all ordered pairs into rounds. Pairs of one round run at the same time. Each host takes
// part in one pair of a round at most, because pairs of one host share its memory and links.
struct Pair {
  int from = 0, to = 0;
  friend bool operator==(const Pair&, const Pair&) = default;
};
std::vector<std::vector<Pair>> plan_rounds(const std::vector<int>& host);

std::string matrix_text(const Matrix& matrix);
std::string verdict_text(const PairVerdict& verdict);

// --- pairs.cpp: the measurement, which is not pure ---

struct Job;
struct Options;

struct PairReport {
  std::uint64_t bytes = 0;  // bytes of a message
  Matrix gbyte_s = {};
  PairVerdict verdict = {};
  bool is_judged = true;  // false when a host has more ranks than cores
};

// Measures the bandwidth between all ranks, in the order of the mesh. While an ordered pair is
// measured, its hosts do nothing else. After warm-ups, the sender sends iterations x batch messages
// of -e bytes and waits for the receiver's answer; the best of three trials counts. Prints on rank
// 0. Collective; all ranks get the same result.
PairReport measure_pairs(Job& job, const Options& options);

}  // namespace busbw
