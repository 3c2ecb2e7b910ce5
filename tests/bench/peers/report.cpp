#include "report.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace atoll_bench {

namespace {

// The times of one operation with atoll and with the implementation that atoll is compared with.
struct Pair {
  double ours = 0, theirs = 0;
};

std::optional<Pair> pair_of(const Times& times, Impl ours, Impl theirs) {
  const auto a = times.find(ours), b = times.find(theirs);
  if (a == times.end() || b == times.end()) return {};
  return Pair{a->second, b->second};
}

std::string describe(const Key& key) {
  return fmt::format("{} {} {} {} B, {} ranks", name(key.row.collective), name(key.row.element),
                     name(key.row.place), key.row.bytes, key.ranks);
}

// Geometric mean and worst value of the ratio of two times, over the rows that qualify.
class Ratios {
 public:
  template <class Qualifies>
  Ratios(const Result& result, Impl ours, Impl theirs, const Qualifies& qualifies) {
    for (const auto& [key, times] : result.rows) {
      const auto pair = qualifies(key) ? pair_of(times, ours, theirs) : std::nullopt;
      if (pair) add(key, pair->theirs / pair->ours);
    }
  }
  std::size_t rows() const { return rows_; }
  // Geometric mean of the speedup of `ours` over `theirs`.
  double mean() const { return std::exp(logarithms_ / static_cast<double>(rows_)); }
  double worst() const { return worst_; }
  const std::string& worst_row() const { return worst_row_; }

 private:
  void add(const Key& key, double speed) {
    ++rows_;
    logarithms_ += std::log(speed);
    if (speed >= worst_) return;
    worst_ = speed;
    worst_row_ = describe(key);
  }

  std::size_t rows_ = 0;
  double logarithms_ = 0;
  double worst_ = std::numeric_limits<double>::infinity();
  std::string worst_row_;
};

// Adds the targets for atoll's share of `limit`: of the limit in rows from 1 MiB on, or of the
// limit in turns, which is measured only if there are more ranks than cores.
void add_shares(const Result& result, Impl limit, std::string_view of, std::vector<Target>& all) {
  for (const Collective c :
       {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
    const Ratios ratios(result, Impl::atoll, limit, [&](const Key& key) {
      return (limit != Impl::limit || key.row.bytes >= large) && key.row.collective == c;
    });
    if (ratios.rows() == 0) continue;
    all.push_back({fmt::format("{}: share of {}, geometric mean", name(c), of), 100 * ratios.mean(),
                   85, true, "%", "", ratios.rows()});
    all.push_back({fmt::format("{}: share of {}, worst row", name(c), of), 100 * ratios.worst(), 70,
                   true, "%", ratios.worst_row(), ratios.rows()});
  }
}

struct Ask {
  Impl peer;
  Collective collective;
  std::optional<Place> place;  // the rows to compare: in place or out of place; empty means both
  double factor;
};

constexpr Ask asks[] = {{Impl::openmpi, Collective::all_gather, Place::out, 1.2},
                        {Impl::openmpi, Collective::all_gather, Place::in, 2},
                        {Impl::openmpi, Collective::reduce_scatter, {}, 12},
                        {Impl::openmpi, Collective::all_reduce, {}, 5},
                        {Impl::gloo, Collective::all_gather, {}, 4},
                        {Impl::gloo, Collective::reduce_scatter, {}, 5},
                        {Impl::gloo, Collective::all_reduce, {}, 12}};

void add_speedup(const Result& result, const Ask& ask, std::optional<int> ranks,
                 std::vector<Target>& all) {
  const Ratios ratios(result, Impl::atoll, ask.peer, [&](const Key& key) {
    return key.row.bytes >= large && key.row.element == Element::f32 &&
           key.row.collective == ask.collective && (!ask.place || key.row.place == *ask.place) &&
           (!ranks || key.ranks == *ranks);
  });
  if (ratios.rows() == 0) return;
  const std::string place =
      ask.place ? fmt::format(" ({})", *ask.place == Place::in ? "in place" : "out of place") : "";
  const std::string of = ranks ? fmt::format(", {} ranks", *ranks) : "";
  all.push_back(
      {fmt::format("{}{}{}: speed relative to {}", name(ask.collective), place, of, name(ask.peer)),
       ratios.mean(), ranks ? 1 : ask.factor, true, "x", "", ratios.rows()});
}

// Adds a target over all rows, and one for each number of ranks, because peers that poll slow down
// when there are more ranks than cores.
void add_speedups(const Result& result, std::vector<Target>& all) {
  std::set<int> sizes;
  for (const auto& [key, times] : result.rows) sizes.insert(key.ranks);
  for (const Ask& ask : asks) {
    add_speedup(result, ask, {}, all);
    if (sizes.size() < 2) continue;
    for (const int ranks : sizes) add_speedup(result, ask, ranks, all);
  }
}

void add_middle(const Result& result, Impl ours, std::string_view how, std::vector<Target>& all) {
  const Ratios middle(result, ours, Impl::openmpi, [](const Key& key) {
    return key.row.bytes > waited_bytes && key.row.bytes < large && key.row.element == Element::f32;
  });
  if (middle.rows() == 0) return;
  const std::string name = fmt::format("8 KiB to 512 KiB{}: time relative to openmpi", how);
  all.push_back(
      {name + ", worst row", 1 / middle.worst(), 1, false, "x", middle.worst_row(), middle.rows()});
  all.push_back({name + ", geometric mean", 1 / middle.mean(), 1, false, "x", "", middle.rows()});
}

void add_latencies(const Result& result, std::vector<Target>& all) {
  const Ratios small(result, Impl::atoll, Impl::openmpi, [](const Key& key) {
    return key.row.bytes <= waited_bytes && key.row.element == Element::f32;
  });
  if (small.rows() > 0) {
    all.push_back({"8 B to 1 KiB: time relative to openmpi, worst row", 1 / small.worst(), 3, false,
                   "x", small.worst_row(), small.rows()});
  }
  add_middle(result, Impl::atoll, "", all);
  add_middle(result, Impl::atoll_waited, ", waiting for each", all);
}

std::string size_text(std::uint64_t bytes) {
  if (bytes >= large) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= 1024) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

void print_head(const Key& key) {
  fmt::print("\n{} {}, {}, {} ranks (us up to 512 KiB, then GB/s on the bus)\n",
             name(key.row.collective), name(key.row.element),
             key.row.place == Place::in ? "in place" : "out of place", key.ranks);
  fmt::print("{:>9}", "bytes");
  for (const Impl impl : all_impls) fmt::print(" {:>14}", name(impl));
  fmt::print(" {:>11} {:>11} {:>11}\n", "% of limit", "in turns %", "plain %");
}

std::string share(const Times& times, Impl impl, Impl limit) {
  const auto pair = pair_of(times, impl, limit);
  return pair ? fmt::format("{:.1f}", 100 * pair->theirs / pair->ours) : "-";
}

void print_row(const Key& key, const Times& times) {
  fmt::print("{:>9}", size_text(key.row.bytes));
  for (const Impl impl : all_impls) {
    const auto time = times.find(impl);
    if (time == times.end()) {
      fmt::print(" {:>14}", "-");
    } else if (key.row.bytes < large) {
      fmt::print(" {:>14.2f}", time->second * 1e6);
    } else {
      fmt::print(" {:>14.3f}", bus_bandwidth(key, time->second));
    }
  }
  fmt::print(" {:>11} {:>11} {:>11}\n", share(times, Impl::atoll, Impl::limit),
             share(times, Impl::atoll, Impl::limit_in_turns),
             share(times, Impl::atoll_plain, Impl::limit));
}

}  // namespace

double bus_bandwidth(const Key& key, double seconds) {
  return bus_factor(key.row.collective, key.ranks) * static_cast<double>(key.row.bytes) / seconds *
         1e-9;
}

std::vector<Target> targets(const Result& result) {
  std::vector<Target> all;
  add_shares(result, Impl::limit, "the limit", all);
  add_shares(result, Impl::limit_in_turns, "the limit in turns", all);
  add_speedups(result, all);
  add_latencies(result, all);
  return all;
}

void print_tables(const Result& result) {
  std::optional<Key> last;
  for (const auto& [key, times] : result.rows) {
    Key group = key;
    group.row.bytes = 0;
    if (!last || *last < group) print_head(key);
    last = group;
    print_row(key, times);
  }
}

void print_targets(const std::vector<Target>& targets) {
  fmt::print("\n{:<58} {:>10} {:>12}\n", "summary (atoll: buffers from atoll::allocate)", "is",
             "target");
  for (const Target& target : targets) {
    fmt::print("{:<58} {:>8.2f} {} {:>2} {:>7.2f} {} {:<8} {} rows{}{}\n", target.name,
               target.value, target.unit, target.at_least ? ">=" : "<=", target.bound, target.unit,
               target.met() ? "met" : "NOT met", target.rows, target.where.empty() ? "" : "; ",
               target.where);
  }
}

nlohmann::json json(const Result& result, const std::vector<Target>& targets) {
  auto rows = nlohmann::json::array();
  for (const auto& [key, times] : result.rows) {
    for (const auto& [impl, seconds] : times) {
      rows.push_back({{"collective", name(key.row.collective)},
                      {"dtype", name(key.row.element)},
                      {"place", name(key.row.place)},
                      {"bytes", key.row.bytes},
                      {"ranks", key.ranks},
                      {"impl", name(impl)},
                      {"busbw_GBps", bus_bandwidth(key, seconds)},
                      {"time_us", seconds * 1e6}});
    }
  }
  auto summary = nlohmann::json::array();
  for (const Target& target : targets) {
    summary.push_back({{"name", target.name},
                       {"value", target.value},
                       {"bound", target.bound},
                       {"at_least", target.at_least},
                       {"unit", target.unit},
                       {"met", target.met()},
                       {"rows", target.rows},
                       {"worst_row", target.where}});
  }
  return {{"rows", rows}, {"summary", summary}, {"absent", result.absent}, {"wrong", result.wrong}};
}

}  // namespace atoll_bench
