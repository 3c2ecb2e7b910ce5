// The ceiling of a collective: the bytes that it has to move at least, at the rates of the memory
// and of the links between the hosts. Pure; memory_rate.hpp measures. GB/s = 1e9 bytes per second.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/topology.hpp"
#include "collective.hpp"

namespace busbw {

// What a rank has to do to memory, the work shared evenly by all ranks of the group: arrays of
// equal length are read and written once, nothing is staged.
struct Traffic {
  enum class Pass {
    copies,  // output i is input i; a single input goes to all outputs
    sum      // every output is the sum of all inputs
  };
  Pass pass = Pass::copies;
  int inputs = 0;
  int outputs = 0;
  double array_bytes = 0;
  Place place = Place::out;  // in: inputs and outputs are parts of one tensor

  // Read and written together.
  double bytes() const noexcept {
    return array_bytes * (outputs + (pass == Pass::sum ? inputs : outputs));
  }
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// S being the whole tensor and n the ranks, bytes() is
//   all_gather(_v)       2 S, in place 2 S (n - 1) / n
//   reduce_scatter(_v)   S + S / n
//   all_reduce           2 S
//   reduce               S + S / n
//   broadcast            2 S (n - 1) / n
//   gather, scatter      2 S / n, in place 2 S (n - 1) / n / n
//   all_to_all           2 S
//   send_recv            2 S
// and 0 for one rank in place. A slice that is sent to several ranks is one input: the ranks
// together read S, as much memory as the collective does, and some of it from the cache, as it may.
Traffic traffic_of(Collective collective, double total_bytes, int ranks, Place place) noexcept;

// Bytes that each host sends or receives over its links, whichever is more, by host. `hosts` are
// the hosts of the ranks of one group, in the order of the axis; `root` is an index into it. With
// equal hosts, H of them: (H - 1) / H of S for the gathers and reduce_scatters (which send what is
// theirs once, or get the rest; the _v forms by the parts of share_of()), twice that for
// all_reduce, S for broadcast and reduce, the root's host (H - 1) / H of S for gather and scatter,
// S x ranks of the host x (H - 1) / H for all_to_all, S per edge of the ring that leaves the host
// for send_recv. Empty for a group on one host.
std::map<int, double> wire_bytes(Collective collective, double total_bytes,
                                 std::span<const int> hosts, int root);

// Whether a NIC belongs to the host, is hardware and is not known to be down.
bool joins_hosts(const atoll::TopologyNic& nic, std::string_view host_id);

// What all active NICs of a host that join it to others carry together; empty when no rate is
// known.
std::optional<double> host_gbyte_s(const atoll::Topology& topology, const std::string& host_id);

struct Rates {
  double memory_gbyte_s = 0;  // of traffic_of(), by one rank while all others do the same; 0: none
  std::vector<std::optional<double>> host_gbyte_s = {};  // by host, one direction
};

struct Ceiling {
  std::optional<double> seconds;  // the least time; empty when it is not known
  std::string by;                 // "memory", "links", "ring", "given", or why there is none
};

// Of operations that all `groups` run at once; groups hold world ranks, `host_of` their hosts.
Ceiling ceiling(Collective collective, double total_bytes, Place place, int root,
                const std::vector<std::vector<int>>& groups, std::span<const int> host_of,
                const Rates& rates);
inline constexpr std::string_view by_ring = "ring";
// Of GPUs, whose memory is faster than what joins them: not the least time that there can be, but
// that of a ring over the axis, whose bus bandwidth the topology gives (0: not known). NVLS, trees
// and two levels may be faster. None for what does not go round a ring: other collectives than
// all_gather, reduce_scatter and all_reduce, and sums that the library builds of an exchange
// (16-bit types, averages).
Ceiling ceiling_of_ring(Collective collective, Op op, atoll::DType dtype, double total_bytes,
                        int ranks, double gbyte_s);
// From a bus bandwidth that was given.
Ceiling ceiling_of_busbw(Collective collective, double total_bytes, int ranks, double gbyte_s);

}  // namespace busbw
