// The link test (--link): raw RDMA writes between two ports, in the manner of ib_write_bw and
// ib_write_lat.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "atoll/finding.hpp"
#include "atoll/link_test.hpp"
#include "atoll/world.hpp"
#include "options.hpp"

namespace busbw {

struct MeasuredLink {
  atoll::LinkTest test;
  atoll::LinkReport report;
  std::optional<double> port_gbyte_s;    // bandwidth of the slower port; empty if it is unknown
  std::vector<atoll::Finding> findings;  // counters of ports that rose during the test
};

// Returns the test that the options describe: from rank 0 to the first rank of another host, or to
// rank 1 if there is one host. Throws Error(invalid_argument) if the job has one rank.
atoll::LinkTest plan_link(const atoll::World& world, const Options& options);

// Performs the test and prints a table on rank 0. Collective.
MeasuredLink measure_link(atoll::World& world, const Options& options);

// Returns the lines of the table.
std::string link_lines(const atoll::World& world, const MeasuredLink& link);

}  // namespace busbw
