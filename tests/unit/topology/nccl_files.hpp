// Builds short NCCL topology files for tests.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "atoll/topology.hpp"
#include "facts.hpp"
#include "gpu_models.hpp"
#include "inspect/importers/importer.hpp"
#include "unit/topology/import.hpp"

namespace nccl_files {

using atoll::Topology;
using topology_test::island_sizes;

inline Topology read(const std::string& text) {
  REQUIRE(atoll::importers::nccl_xml.recognises(text));
  Topology topology = atoll::importers::nccl_xml.read(text, "dumps/m.xml");
  atoll::fill_link_rates(topology);
  return topology;
}

inline std::string system(const std::string& cpus) {
  return "<system version=\"1\">\n" + cpus + "</system>\n";
}

inline std::string cpu(const std::string& attributes, const std::string& children) {
  return fmt::format("<cpu {}>\n{}</cpu>\n", attributes, children);
}

inline std::string one_cpu(const std::string& children) {
  return system(cpu("numaid=\"0\"", children));
}

inline std::string pci(const std::string& busid, const std::string& pci_class,
                       const std::string& children = "") {
  return fmt::format("<pci busid=\"{}\" class=\"{}\">\n{}</pci>\n", busid, pci_class, children);
}

// Returns the XML of a GPU with `links` as the content of its <gpu> element.
inline std::string gpu(const std::string& busid, int dev, const std::string& links = "",
                       int sm = 90) {
  return pci(
      busid, "0x030200",
      fmt::format("<gpu dev=\"{}\" sm=\"{}\" rank=\"{}\" gdr=\"1\">{}</gpu>", dev, sm, dev, links));
}

inline std::string nvlink(const std::string& target, int count, const std::string& tclass) {
  return fmt::format("<nvlink target=\"{}\" count=\"{}\" tclass=\"{}\"/>", target, count, tclass);
}

inline std::string to_gpu(const std::string& target, int count) {
  return nvlink(target, count, "0x030200");
}

inline const std::string hidden_switch = nvlink("fffffff:ff:ff.0", 18, "0x068000");

inline std::string net(const std::string& attributes) {
  return fmt::format("<nic><net {}/></nic>", attributes);
}

}  // namespace nccl_files
