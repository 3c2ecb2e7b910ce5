// Tests that atoll-busbw finds slow hosts, NICs and ranks in artificial matrices of bandwidths.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "verdict.hpp"

using namespace busbw;

namespace {

struct Cluster {
  Matrix matrix;
  PairSites sites;

  // Fills the matrix with 10 GB/s inside a host and 2 GB/s between hosts, and adds a few percent of
  // scatter.
  Cluster(int hosts, int ranks_a_host) {
    const int ranks = hosts * ranks_a_host;
    for (int h = 0; h < hosts; ++h) sites.host_names.push_back("n" + std::to_string(h));
    for (int r = 0; r < ranks; ++r) {
      sites.host.push_back(r / ranks_a_host);
      sites.nic.emplace_back();
    }
    matrix.resize(static_cast<std::size_t>(ranks));
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to)
        matrix[static_cast<std::size_t>(from)].push_back(
            (from / ranks_a_host == to / ranks_a_host ? 10.0 : 2.0) *
            (1 + 0.01 * ((from * 7 + to * 3) % 5)));
  }

  template <class Is>
  void slow_down(Is is, double factor = 0.3) {
    for (std::size_t from = 0; from < matrix.size(); ++from)
      for (std::size_t to = 0; to < matrix.size(); ++to)
        if (is(static_cast<int>(from), static_cast<int>(to))) matrix[from][to] *= factor;
  }

  std::vector<std::string> subjects() const {
    std::vector<std::string> names;
    for (const PairFinding& finding : judge_pairs(matrix, sites).findings)
      names.push_back(finding.subject);
    return names;
  }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("all fine") {
  CHECK(Cluster(1, 8).subjects().empty());
  CHECK(Cluster(4, 4).subjects().empty());
  for (const auto& [hosts, ranks] : {std::pair{3, 1}, {1, 2}, {2, 1}})
    CHECK(Cluster(hosts, ranks).subjects().empty());
  const Cluster fine(2, 4);
  const PairVerdict verdict = judge_pairs(fine.matrix, fine.sites);
  CHECK(verdict.intra_gbyte_s == doctest::Approx(10).epsilon(0.06));
  CHECK(verdict.between_gbyte_s == doctest::Approx(2).epsilon(0.06));
  CHECK(verdict_text(verdict).find("no pair is below") != std::string::npos);
}

TEST_CASE("slow ranks and links of machines that are fine otherwise") {
  struct {
    int hosts, ranks_a_host;
    bool (*is_slow)(int from, int to);
    Names names;
  } const cases[] = {
      {1, 3, [](int from, int to) { return from == 0 || to == 0; }, {"rank 0"}},
      {1, 8, [](int from, int to) { return from == 7 || to == 7; }, {"rank 7"}},
      {3, 4, [](int from, int to) { return from == 5 || to == 5; }, {"rank 5"}},
      {1, 8, [](int from, int to) { return from % 4 == 2 || to % 4 == 2; }, {"rank 2", "rank 6"}},
      {1, 4, [](int from, int to) { return from == 0 && to == 3; }, {"0 -> 3"}},
      {1, 2, [](int from, int) { return from == 0; }, {"0 -> 1"}},
      {3, 2, [](int from, int to) { return (from / 2 == 1) != (to / 2 == 1); }, {"host n1"}},
      {6, 2, [](int from, int to) { return (from / 2 == 1) != (to / 2 == 1); }, {"host n1"}},
      {3, 1, [](int from, int to) { return from == 2 || to == 2; }, {"host n2"}},
      {6, 1, [](int from, int to) { return from == 0 || to == 0; }, {"host n0"}}};
  for (const auto& one : cases) {
    Cluster cluster(one.hosts, one.ranks_a_host);
    cluster.slow_down(one.is_slow);
    Names names = cluster.subjects();
    std::ranges::sort(names);
    CHECK(names == one.names);
  }
}

TEST_CASE("the text of a slow host has its NIC, and the direction that is slow") {
  const auto text_of = [](Cluster cluster, bool (*is_slow)(int from, int to)) {
    cluster.slow_down(is_slow);
    const auto findings = judge_pairs(cluster.matrix, cluster.sites).findings;
    REQUIRE(findings.size() == 1);
    return findings[0].subject + ": " + findings[0].text;
  };
  Cluster with_nic(4, 2);
  with_nic.sites.nic[2] = with_nic.sites.nic[3] = "n1/mlx5_0";
  const auto text =
      text_of(with_nic, [](int from, int to) { return (from / 2 == 1) != (to / 2 == 1); });
  CHECK(text.find("n1/mlx5_0") != std::string::npos);
  CHECK(text_of(Cluster(4, 2), [](int from, int to) {
          return from / 2 == 2 && to / 2 != 2;
        }).find("host n2 sends at") != std::string::npos);
  Cluster nics(2, 4);
  for (int r = 0; r < 8; ++r)
    nics.sites.nic[static_cast<std::size_t>(r)] =
        "n" + std::to_string(r / 4) + "/mlx5_" + std::to_string(r % 4);
  CHECK(text_of(nics, [](int from, int to) {
          return from / 4 != to / 4 && (from == 6 || to == 6);
        }).starts_with("NIC n1/mlx5_2: "));
}

TEST_CASE("rounds hold every pair once, and a host once") {
  for (const auto& host : std::vector<std::vector<int>>{
           {0, 0}, {0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 3, 4}, {0, 0, 0, 1, 2, 2}}) {
    std::set<std::pair<int, int>> seen;
    const auto rounds = plan_rounds(host);
    for (const auto& round : rounds) {
      std::set<int> busy;
      CHECK(!round.empty());
      for (const Pair& pair : round) {
        CHECK(pair.from != pair.to);
        CHECK(seen.emplace(pair.from, pair.to).second);
        const std::set<int> hosts{host[static_cast<std::size_t>(pair.from)],
                                  host[static_cast<std::size_t>(pair.to)]};
        for (const int one : hosts) CHECK(busy.insert(one).second);
      }
    }
    CHECK(seen.size() == host.size() * (host.size() - 1));
  }
  CHECK(plan_rounds({0, 1, 2, 3}).size() < 12);
}

TEST_CASE("the matrix as text") {
  CHECK(matrix_text({{0, 1.5}, {12.25, 0}}) ==
        "# from\\to       0       1\n"
        "        0       -     1.5\n"
        "        1    12.2       -\n");
}
