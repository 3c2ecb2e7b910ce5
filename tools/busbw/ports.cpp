#include "ports.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace busbw {

std::vector<atoll::Finding> judge_ports(atoll::World& world, const atoll::Topology& before) {
  auto findings = atoll::compare_ports(before, atoll::Topology::discover_ports(world));
  if (world.rank() == 0) {
    fmt::print("{}", port_lines(findings));
    std::fflush(stdout);  // print before other ranks exit, since a launcher may then end this one
  }
  return findings;
}

std::string port_lines(std::span<const atoll::Finding> findings) {
  std::string text;
  for (const atoll::Finding& finding : findings)
    text += fmt::format("# {}: {}\n", name(finding.severity), to_line(finding));
  return text;
}

}  // namespace busbw
