// What single attributes of NCCL's topology file mean.
#pragma once

#include <cstdint>
#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::importers {

// Empty when absent, no integer, or out of range.
std::optional<int> integer_in(pugi::xml_node node, const char* attribute,
                              std::pair<long long, long long> range);

// Adds the mask's processors ("0000ffff,ff"; the lowest word stands last) to `set`. What is no mask
// adds nothing.
void add_mask(std::string_view text, std::vector<std::uint32_t>& set);

// Device, class and link of a <pci>, where they are given and not placeholders.
void add_pci_facts(pugi::xml_node pci, Facts& facts);
// Of a <gpu> or <net>.
void add_gdr(pugi::xml_node node, Facts& facts);

// "gfx942" of a <gpu>'s gcn; "" of NVIDIA's.
std::string gcn_of(pugi::xml_node gpu);

// Of a <net>; empty where the file says nothing, 0 or -1.
std::optional<double> gbit_s_of(pugi::xml_node net);
// `pci` is null for an interface that hangs on a <cpu>.
std::string layer_of(pugi::xml_node pci, std::string_view net_name);
// Bridges, tunnels, ends of containers, by how Linux and its tools call them.
bool is_virtual_name(std::string_view net_name);

}  // namespace atoll_v1::atoll::importers
