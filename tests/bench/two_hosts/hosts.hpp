// What benches between emulated hosts share: starting on them, the wire they have, what crosses it.
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

// Whether this process is a rank of a job already.
bool on_hosts();
// Runs this program once more, with the same arguments, as the ranks of a job on the hosts of
// tests/cluster/two_hosts. The status to exit with: 77 where there can be no hosts, 1 when a rank
// called tell_missed().
int start_on_hosts(const Hosts& hosts, std::span<char*> arguments);
// A target is missed: mpirun would comment on a rank that ends with 1.
void tell_missed();

// Of raw TCP between the first ranks of the first two hosts, on every rank. Collective.
RawRates raw_rates(atoll::World& world);
// The largest of the ranks' values. Collective.
double most(atoll::World& world, double mine);
// Bytes that have left this host; loopback does not count.
double transmitted_bytes();

}  // namespace atoll_bench
