#include "verdict.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>

#include "atoll/error.hpp"
#include "sweep.hpp"

namespace busbw {
namespace {

using Clock = std::chrono::steady_clock;

// Only the best trial counts, since disturbances are not a property of the link.
constexpr int trials = 3;
constexpr auto log_period = std::chrono::seconds(10);

struct Messages {
  atoll::View data;
  atoll::View answer;
  int count = 1;
};

// Sends in one direction. A short answer tells the sender that all messages arrived. Returns the
// sender's time.
double send_all(Job& job, const Messages& messages, int peer) {
  const auto begin = Clock::now();
  for (int i = 0; i < messages.count; ++i)
    static_cast<void>(job.communicator->send(messages.data, peer, *job.stream));
  job.communicator->recv(messages.answer, peer, *job.stream).synchronize();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void receive_all(Job& job, const Messages& messages, int peer) {
  for (int i = 0; i < messages.count; ++i)
    static_cast<void>(job.communicator->recv(messages.data, peer, *job.stream));
  job.communicator->send(messages.answer, peer, *job.stream).synchronize();
}

// The processors on which this process may run.
std::vector<double> own_processors() {
  std::array<std::uint64_t, 1024> mask{};  // the kernel has at most 65,536 processors
  static_cast<void>(::syscall(SYS_sched_getaffinity, 0, sizeof mask, mask.data()));
  std::vector<double> found;
  for (std::size_t i = 0; i < mask.size() * 64; ++i) {
    if ((mask[i / 64] >> (i % 64) & 1U) != 0) found.push_back(static_cast<double>(i));
  }
  return found;
}

// Describes the host whose ranks most outnumber the processors that they may use. Returns "" if
// each rank of every host has a processor. Collective over the World.
std::string crowded_host(Job& job) {
  const auto processors = job.exchange(own_processors());
  std::string found;
  std::size_t most = 0;
  for (const atoll::HostInfo& host : job.world.hosts()) {
    std::set<double> usable;
    for (const int rank : host.ranks) {
      const auto& own = processors[static_cast<std::size_t>(rank)];
      usable.insert(own.begin(), own.end());
    }
    const std::size_t ranks = host.ranks.size();
    if (usable.empty() || ranks <= usable.size() || ranks - usable.size() <= most) continue;
    most = ranks - usable.size();
    found = fmt::format("{} ranks of host {} share {} processor{}", ranks, host.name, usable.size(),
                        usable.size() == 1 ? "" : "s");
  }
  return found;
}

// The only NIC that joins a host to others; "" if there are none or several.
std::string only_nic(const atoll::Topology& topology, const std::string& host_id) {
  std::string only;
  for (const atoll::TopologyNic& nic : topology.nics) {
    if (!joins_hosts(nic, host_id)) continue;
    if (!only.empty()) return "";
    only = nic.id;
  }
  return only;
}

PairSites sites_of(const Job& job, const std::vector<int>& group) {
  PairSites sites;
  for (const atoll::HostInfo& host : job.world.hosts()) sites.host_names.push_back(host.name);
  for (const int rank : group) {
    const int host = job.host_of[static_cast<std::size_t>(rank)];
    sites.host.push_back(host);
    sites.nic.push_back(
        only_nic(job.topology, job.world.hosts()[static_cast<std::size_t>(host)].id));
  }
  return sites;
}

std::string title(const Job& job, const std::vector<int>& group, std::uint64_t bytes, int count) {
  std::string text = fmt::format(
      "{}# Bandwidth of pairs, GB/s from row to column, best of {} times {} messages of {} one "
      "way, each pair alone on its hosts\n",
      title_line(job), trials, count, human_bytes(bytes));
  for (std::size_t r = 0; r < group.size(); ++r) {
    const auto world_rank = static_cast<std::size_t>(group[r]);
    const auto host = static_cast<std::size_t>(job.host_of[world_rank]);
    text += fmt::format("#  Rank {:2} is rank {:2} of the job, on {}\n", r, group[r],
                        job.world.hosts()[host].name);
  }
  return text;
}

// Returns this rank's sending time to each receiver.
std::vector<double> measure_rounds(Job& job, const Options& options,
                                   const std::vector<std::vector<Pair>>& rounds,
                                   const Messages& messages) {
  const int me = job.communicator->rank();
  std::vector<double> seconds(static_cast<std::size_t>(job.group_size()));
  const Messages warmup{messages.data, messages.answer, std::max(1, options.warmups)};
  const bool shows = job.is_root() && isatty(STDERR_FILENO) == 1;
  auto told = Clock::now();
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    if (shows) {
      fmt::print(stderr, "\r\x1b[Kround {}/{}", r + 1, rounds.size());
    } else if (job.is_root() && Clock::now() - told >= log_period) {
      fmt::print(stderr, "round {}/{}\n", r + 1, rounds.size());
      told = Clock::now();
    }
    job.world.barrier();
    for (const Pair& pair : rounds[r]) {
      if (pair.from == me) {
        send_all(job, warmup, pair.to);
        double best = send_all(job, messages, pair.to);
        for (int i = 1; i < trials; ++i) best = std::min(best, send_all(job, messages, pair.to));
        seconds[static_cast<std::size_t>(pair.to)] = best;
      } else if (pair.to == me) {
        receive_all(job, warmup, pair.from);
        for (int i = 0; i < trials; ++i) receive_all(job, messages, pair.from);
      }
    }
  }
  if (shows) fmt::print(stderr, "\r\x1b[K");
  return seconds;
}

}  // namespace

PairReport measure_pairs(Job& job, const Options& options) {
  const int ranks = job.group_size();
  if (ranks < 2)
    throw atoll::Error(atoll::ErrorCode::invalid_argument, "--pairs needs two ranks in the axis");
  const std::vector<int>& group = job.groups.front();
  const PairSites sites = sites_of(job, group);
  PairReport report{.bytes = std::max<std::uint64_t>(1, options.max_bytes)};
  const atoll::Buffer data = job.allocate(report.bytes, options.memory);
  const atoll::Buffer answer = job.allocate(1, options.memory);
  if (!job.is_on_gpu()) std::memset(data.data(), 1, data.bytes());
  const Messages messages{atoll::View(data.data(), report.bytes, atoll::DType::u8),
                          atoll::View(answer.data(), 1, atoll::DType::u8),
                          options.iterations * options.batch};
  if (job.is_root()) {
    fmt::print("{}", title(job, group, report.bytes, messages.count));
    std::fflush(stdout);
  }
  const auto seconds = measure_rounds(job, options, plan_rounds(sites.host), messages);
  if (options.require_gdr) {
    atoll::require_gpudirect_rdma(job.world, job.communicator->transports());
  }
  const auto all = job.exchange(seconds);
  const double sent = static_cast<double>(report.bytes) * messages.count;
  for (const int rank : group) {
    auto& row = report.gbyte_s.emplace_back();
    for (const double time : all[static_cast<std::size_t>(rank)])
      row.push_back(time > 0 ? sent / time / 1e9 : 0);
  }
  report.verdict = judge_pairs(report.gbyte_s, sites);
  const std::string crowded = job.is_on_gpu() ? "" : crowded_host(job);
  report.is_judged = crowded.empty();
  if (!report.is_judged) report.verdict.findings.clear();
  if (!job.is_root()) return report;
  fmt::print("{}", matrix_text(report.gbyte_s));
  if (!report.is_judged) {
    fmt::print(
        "# No verdict: {}, so the scheduler determines the speed of a pair. Start at most one rank "
        "for each processor.\n",
        crowded);
  } else {
    fmt::print("{}", verdict_text(report.verdict));
    std::fflush(stdout);  // print before other ranks exit, since a launcher may then end this one
  }
  return report;
}

}  // namespace busbw
