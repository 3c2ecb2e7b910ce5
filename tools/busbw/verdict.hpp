// Who is slow, from the bandwidth between all pairs of ranks. Pure.
//
// An entry is compared with what good entries of its class give: one class inside hosts, one
// between hosts, the measure of each being its upper quartile, which stays with the good ones as
// long as a quarter of them is good (one slow host of three spoils two thirds). What explains most
// is named first: a host whose entries to and from other hosts are slow in the median while the
// rest is not; a NIC whose ranks are slow only between hosts; a rank whose row and column are slow;
// and single entries that nothing of these explains. Each finding takes its entries out of the
// picture.
#pragma once

#include <string>
#include <vector>

namespace busbw {

using Matrix = std::vector<std::vector<double>>;  // GB/s from row to column; diagonal ignored

struct PairSites {
  std::vector<int> host;                // of each rank
  std::vector<std::string> host_names;  // by host
  std::vector<std::string> nic;         // that a rank sends through between hosts; "" not known
};

struct PairFinding {
  enum class Kind {
    host,
    nic,
    rank,
    pair
  } kind;
  std::string subject;  // "host n1", "NIC n1/mlx5_0", "rank 3", "0 -> 3"
  std::string text;     // a line for people
};

// Below this share of the measure of its class an entry is slow.
inline constexpr double slow_share = 0.7;

struct PairVerdict {
  std::vector<PairFinding> findings;  // empty: all pairs are alike
  double inside_gbyte_s = 0;          // the measure of each class; 0: has no entries
  double between_gbyte_s = 0;
};
PairVerdict judge_pairs(const Matrix& matrix, const PairSites& sites);

// Which pairs are measured at the same time: a host takes part in one pair of a round only, because
// pairs of one host share its memory and its links. Every ordered pair occurs once.
struct Pair {
  int from = 0, to = 0;
  friend bool operator==(const Pair&, const Pair&) = default;
};
std::vector<std::vector<Pair>> plan_rounds(const std::vector<int>& host);

std::string matrix_text(const Matrix& matrix);
std::string verdict_text(const PairVerdict& verdict);

}  // namespace busbw
