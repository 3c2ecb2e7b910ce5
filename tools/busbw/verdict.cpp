#include "verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace busbw {
namespace {

struct Entry {
  int from = 0, to = 0;
  bool between = false;  // true if the two ranks are on different hosts
  double share = 1;      // bandwidth / upper quartile of its class (within or between hosts)
  bool explained = false;

  bool is_slow() const noexcept { return share < slow_share; }
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Nearest-rank upper quartile.
double upper_quartile(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[(values.size() * 3 + 3) / 4 - 1];
}

class Judge {
 public:
  Judge(const Matrix& matrix, const PairSites& sites) : sites_(sites) {
    std::vector<double> intra, between;
    for (int from = 0; from < static_cast<int>(matrix.size()); ++from) {
      for (int to = 0; to < static_cast<int>(matrix.size()); ++to) {
        if (from == to) continue;
        const double value = matrix[index(from)][index(to)];
        const bool crosses = host(from) != host(to);
        (crosses ? between : intra).push_back(value);
        entries_.push_back({.from = from, .to = to, .between = crosses, .share = value});
      }
    }
    verdict_.intra_gbyte_s = upper_quartile(intra);
    verdict_.between_gbyte_s = upper_quartile(between);
    for (Entry& entry : entries_) {
      const double measure = entry.between ? verdict_.between_gbyte_s : verdict_.intra_gbyte_s;
      entry.share = measure > 0 ? entry.share / measure : 1;
    }
  }

  PairVerdict run() {
    // Names hosts first, then NICs, then ranks, because a slow host explains the most slow entries.
    // Repeats until no slow host, NIC or rank is left.
    while (take_worst(Kind::host) || take_worst(Kind::nic) || take_worst(Kind::rank)) {
    }
    for (const Entry& entry : entries_) {
      if (entry.explained || !entry.is_slow()) continue;
      verdict_.findings.push_back(
          {PairFinding::Kind::pair, fmt::format("{} -> {}", entry.from, entry.to),
           fmt::format("slow: from rank {} to rank {}: {:.0f} % of the bandwidth of similar pairs",
                       entry.from, entry.to, entry.share * 100)});
    }
    return verdict_;
  }

 private:
  using Kind = PairFinding::Kind;
  struct Candidate {
    PairFinding finding;
    std::set<int> ranks;

    bool is_rank() const { return finding.kind == Kind::rank; }
    // Whether the candidate sends or receives in an entry. For hosts and NICs, only entries between
    // hosts count.
    bool sends(const Entry& e) const { return (e.between || is_rank()) && ranks.contains(e.from); }
    bool receives(const Entry& e) const { return (e.between || is_rank()) && ranks.contains(e.to); }
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  int host(int rank) const { return sites_.host[index(rank)]; }
  const std::string& nic(int rank) const { return sites_.nic[index(rank)]; }

  std::optional<double> share_of(const Candidate& candidate,
                                 bool (Candidate::*selects)(const Entry&) const) const {
    std::vector<double> shares;
    for (const Entry& entry : entries_)
      if (!entry.explained && (candidate.*selects)(entry)) shares.push_back(entry.share);
    if (shares.empty()) return std::nullopt;
    return median(shares);
  }

  // Whether other entries remain with which the candidate's entries can be compared. They must not
  // involve the candidate.
  bool has_others(const Candidate& candidate) const {
    return std::ranges::any_of(entries_, [&](const Entry& entry) {
      return !candidate.sends(entry) && !candidate.receives(entry) && !entry.explained &&
             (entry.between || candidate.is_rank());
    });
  }

  // Returns the hosts, NICs or ranks that may be slow, with the ranks that use them.
  std::vector<Candidate> candidates_of(Kind kind) const {
    // The key is the number of the host or rank (0 for NICs), and its name.
    std::map<std::pair<int, std::string>, std::set<int>> ranks_of;
    for (int r = 0; r < static_cast<int>(sites_.host.size()); ++r) {
      if (kind == Kind::host)
        ranks_of[{host(r), "host " + sites_.host_names[index(host(r))]}].insert(r);
      else if (kind == Kind::rank)
        ranks_of[{r, fmt::format("rank {}", r)}].insert(r);
      else if (!nic(r).empty())
        ranks_of[{0, "NIC " + nic(r)}].insert(r);
    }
    std::vector<Candidate> candidates;
    // If there are only two hosts or ranks, either may be slow, so none is named.
    if (kind != Kind::nic && ranks_of.size() < 3) return candidates;
    for (const auto& [subject, ranks] : ranks_of) {
      candidates.push_back({{kind, subject.second, ""}, ranks});
      if (kind == Kind::host) name_single_nic(candidates.back());
    }
    return candidates;
  }

  // Names the NIC if all ranks of the host send through one.
  void name_single_nic(Candidate& candidate) const {
    std::set<std::string> nics;
    for (const int rank : candidate.ranks) nics.insert(nic(rank));
    if (nics.size() == 1 && !nics.begin()->empty())
      candidate.finding.text = fmt::format(" (its NIC is {})", *nics.begin());
  }

  // Names the candidate with the lowest median bandwidth if that is slow, and marks its entries as
  // explained.
  bool take_worst(Kind kind) {
    std::optional<Candidate> worst;
    double worst_share = slow_share;
    std::string direction;
    for (const Candidate& candidate : candidates_of(kind)) {
      const auto sends = share_of(candidate, &Candidate::sends);
      const auto receives = share_of(candidate, &Candidate::receives);
      if (!sends || !receives || !has_others(candidate)) continue;
      const bool slow_out = *sends < slow_share;
      const bool slow_in = *receives < slow_share;
      // A rank counts as slow only when both directions are slow.
      if (candidate.is_rank() ? !(slow_out && slow_in) : !(slow_out || slow_in)) continue;
      const double share =
          slow_out && slow_in ? (*sends + *receives) / 2 : std::min(*sends, *receives);
      if (share >= worst_share) continue;
      worst_share = share;
      worst = candidate;
      direction = slow_out && slow_in ? "sends and receives" : slow_out ? "sends" : "receives";
    }
    if (!worst) return false;
    for (Entry& entry : entries_) {
      const bool mine = (direction != "receives" && worst->sends(entry)) ||
                        (direction != "sends" && worst->receives(entry));
      entry.explained = entry.explained || mine;
    }
    const std::string where = worst->is_rank() ? "" : " between hosts";
    worst->finding.text = fmt::format("slow: {}{} {} at {:.0f} % of the bandwidth of others{}",
                                      worst->finding.subject, worst->finding.text, direction,
                                      worst_share * 100, where);
    verdict_.findings.push_back(worst->finding);
    return true;
  }

  const PairSites& sites_;
  std::vector<Entry> entries_;
  PairVerdict verdict_;
};

}  // namespace

PairVerdict judge_pairs(const Matrix& matrix, const PairSites& sites) {
  return Judge(matrix, sites).run();
}

std::vector<std::vector<Pair>> plan_rounds(const std::vector<int>& host) {
  std::vector<Pair> left;
  const int ranks = static_cast<int>(host.size());
  for (int distance = 1; distance < ranks; ++distance)
    for (int from = 0; from < ranks; ++from) left.push_back({from, (from + distance) % ranks});
  std::vector<std::vector<Pair>> rounds;
  while (!left.empty()) {
    std::set<int> busy;
    std::vector<Pair> round, later;
    for (const Pair& pair : left) {
      const int from = host[static_cast<std::size_t>(pair.from)];
      const int to = host[static_cast<std::size_t>(pair.to)];
      const bool fits = !busy.contains(from) && !busy.contains(to);
      (fits ? round : later).push_back(pair);
      if (fits) busy.insert({from, to});
    }
    rounds.push_back(std::move(round));
    left = std::move(later);
  }
  return rounds;
}

std::string matrix_text(const Matrix& matrix) {
  std::string text = "# from\\to";
  for (std::size_t to = 0; to < matrix.size(); ++to) text += fmt::format(" {:>7}", to);
  text += '\n';
  for (std::size_t from = 0; from < matrix.size(); ++from) {
    text += fmt::format("{:>9}", from);
    for (std::size_t to = 0; to < matrix.size(); ++to)
      text += from == to ? fmt::format(" {:>7}", "-") : fmt::format(" {:>7.3g}", matrix[from][to]);
    text += '\n';
  }
  return text;
}

std::string verdict_text(const PairVerdict& verdict) {
  std::string text;
  if (verdict.intra_gbyte_s > 0)
    text += fmt::format("# good pairs inside a host: {:.3g} GB/s\n", verdict.intra_gbyte_s);
  if (verdict.between_gbyte_s > 0)
    text += fmt::format("# good pairs between hosts: {:.3g} GB/s\n", verdict.between_gbyte_s);
  for (const PairFinding& finding : verdict.findings) text += fmt::format("# {}\n", finding.text);
  if (verdict.findings.empty())
    text += fmt::format("# no pair is below {:.0f} % of these\n", slow_share * 100);
  return text;
}

}  // namespace busbw
