// Functions for benches between emulated hosts: starting on them, measuring their links, and
// counting the bytes that leave a host.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>

#include "atoll/world.hpp"
#include "two_hosts/raw_tcp.hpp"

namespace atoll_bench {

struct Hosts {
  int hosts = 2;
  int ranks_per_host = 2;
  int rails = 1;
  std::string rate = "1gbit";
};
void add_host_options(CLI::App& app, Hosts& hosts);

// True if this process is a rank of a job.
bool on_hosts();
// Runs this program again with the same arguments, as the ranks of a job on the hosts of
// tests/cluster/two_hosts. Returns the exit status: 77 where emulated hosts are not possible, 1
// when a rank called tell_missed().
int start_on_hosts(const Hosts& hosts, std::span<char*> arguments);
// Reports a missed target through a file. mpirun would print a warning for a rank that exits with
// 1.
void tell_missed();

// Raw TCP rates between the first ranks of the first two hosts, returned on every rank. Collective.
RawRates raw_rates(atoll::World& world);
// Returns the maximum over all ranks. Collective.
double most(atoll::World& world, double mine);
// Bytes that have left this host, without loopback.
double transmitted_bytes();

}  // namespace atoll_bench
