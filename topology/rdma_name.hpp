// The link layer that the persistent name of an RDMA device shows.
#pragma once

#include <array>
#include <string_view>

namespace atoll_v1::atoll {

// udev's rdma_rename calls devices by their link layer and place: ibp3s0 is an InfiniBand device in
// slot 0 of PCI bus 3, roceP2p3s0 a RoCE device of PCI domain 2. Returns the link layer in the
// words of TopologyNic::layer; "" for other names. IP interfaces may have the same names, so call
// this function only for RDMA devices.
inline std::string_view layer_of_rdma_name(std::string_view name) {
  struct Prefix {
    std::string_view text, layer;
  };
  constexpr std::array prefixes{Prefix{"ib", "infiniband"}, Prefix{"roce", "ethernet"},
                                Prefix{"opa", "omni-path"}};
  constexpr std::string_view places = "Ppsox";  // letters: domain, bus, slot, onboard number, GUID
  constexpr std::string_view digits = "0123456789abcdef";
  for (const Prefix& prefix : prefixes) {
    if (!name.starts_with(prefix.text)) continue;
    const std::string_view place = name.substr(prefix.text.size());
    if (place.size() > 1 && places.find(place[0]) != std::string_view::npos &&
        digits.find(place[1]) != std::string_view::npos)
      return prefix.layer;
  }
  return {};
}

}  // namespace atoll_v1::atoll
