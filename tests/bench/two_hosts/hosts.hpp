// Functions for benches that run between emulated hosts: they start a bench on the hosts, measure
// the links between the hosts, and count the bytes that leave a host.
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

// Returns true if this process is a rank of a job.
bool on_hosts();
// Starts this program again with the same arguments, as the ranks of a job on the emulated hosts of
// tests/cluster/two_hosts. Returns the exit status of the job: 77 if emulated hosts are not
// possible here, and 1 if a rank called report_missed().
int start_on_hosts(const Hosts& hosts, std::span<char*> arguments);
// Reports through a file that this rank missed a target. A rank does not report this by exiting
// with 1, because mpirun would print a warning.
void report_missed();

// Measures raw TCP rates between the first ranks of the first two hosts, and returns the rates on
// every rank. Must be called by all ranks.
RawRates raw_rates(atoll::World& world);
// Returns the maximum of `mine` over all ranks. Must be called by all ranks.
double most(atoll::World& world, double mine);
// Returns the number of bytes that have left this host, without loopback traffic.
double transmitted_bytes();

}  // namespace atoll_bench
