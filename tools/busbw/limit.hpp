// Computes the limit of a collective: the bytes that it must move at least, at the rates of the
// memory and of the links between hosts. Pure functions; memory_rate.hpp measures. GB/s = 1e9 bytes
// per second.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/topology.hpp"
#include "collective.hpp"

namespace busbw {

// Memory traffic that a collective requires from each rank, if all ranks of the group share the
// work evenly. Arrays of equal length are read and written once, without staging.
struct Traffic {
  enum class Pass {
    // Each input is copied to the output with the same index, or a single input to all outputs.
    copies,
    sum  // every output is the sum of all inputs
  };
  Pass pass = Pass::copies;
  int inputs = 0;
  int outputs = 0;
  double array_bytes = 0;
  Place place = Place::out;  // Place::in: inputs and outputs are parts of one tensor

  // Bytes read and written.
  double bytes() const noexcept {
    return array_bytes * (outputs + (pass == Pass::sum ? inputs : outputs));
  }
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// Returns the memory traffic of one rank. With S bytes of the whole tensor and n ranks, bytes() is
//   all_gather(_v)       2 S, in place 2 S (n - 1) / n
//   reduce_scatter(_v)   S + S / n
//   all_reduce           2 S
//   reduce               S + S / n
//   broadcast            2 S (n - 1) / n
//   gather, scatter      2 S / n, in place 2 S (n - 1) / n / n
//   all_to_all           2 S
//   send_recv            2 S
// and 0 for one rank in place. If several ranks receive the same slices, each rank reads a single
// input for all its outputs: together the ranks read S distinct bytes, as in the collective, and
// further reads partly hit caches.
Traffic traffic_of(Collective collective, double total_bytes, int ranks, Place place) noexcept;

// Returns by host the bytes that it sends or receives over its links, whichever is more. `hosts`
// holds the hosts of one group's ranks, in the order of the axis; `root` is an index into it. With
// H equal hosts:
//   all_gather(_v), reduce_scatter(_v)  (H - 1) / H of S; the _v forms use the shares of share_of()
//   all_reduce                          twice that
//   broadcast, reduce                   S
//   gather, scatter                     (H - 1) / H of S at the root's host
//   all_to_all                          S x ranks of the host x (H - 1) / H
//   send_recv                           S for each edge of the ring that leaves the host
// Empty for a group on one host.
std::map<int, double> wire_bytes(Collective collective, double total_bytes,
                                 std::span<const int> hosts, int root);

// Whether a NIC belongs to the host, is hardware and is not known to be down.
bool joins_hosts(const atoll::TopologyNic& nic, std::string_view host_id);

// GB/s of all active NICs that join a host to others, together; empty when no rate is known.
std::optional<double> host_gbyte_s(const atoll::Topology& topology, const std::string& host_id);

struct Rates {
  double memory_gbyte_s = 0;  // memory GB/s of one rank while all are active; 0: not measured
  std::vector<std::optional<double>> host_gbyte_s = {};  // GB/s of each host's links, one direction
};

struct Ceiling {
  std::optional<double> seconds;  // least time of the operation in seconds; empty if unknown
  // The cause of the limit: "memory", "links", "ring" or "given". Without a limit, the reason.
  std::string by;
};

// Limit of operations that all `groups` run at once. Groups hold world ranks; `host_of` gives the
// host of each world rank.
Ceiling ceiling(Collective collective, double total_bytes, Place place, int root,
                const std::vector<std::vector<int>>& groups, std::span<const int> host_of,
                const Rates& rates);
inline constexpr std::string_view by_ring = "ring";
// Limit on GPUs, whose memory is faster than their links: the time of a ring over the axis.
// `gbyte_s` is the bus bandwidth of the axis by the topology; 0 if it is unknown. Operations can be
// faster than this limit with NVLS, trees and two-level algorithms. There is no limit for
// operations without a ring: collectives other than all_gather, reduce_scatter and all_reduce, and
// sums that the library builds from other collectives (16-bit types, averages).
Ceiling ceiling_of_ring(Collective collective, Op op, atoll::DType dtype, double total_bytes,
                        int ranks, double gbyte_s);
// Limit from a bus bandwidth that the user gave.
Ceiling ceiling_of_busbw(Collective collective, double total_bytes, int ranks, double gbyte_s);

}  // namespace busbw
