// Fuzzes the texts with which up to 8 ranks introduce themselves when they join a job. In the first
// byte, the low bits select the number of ranks. Each rank has a byte that selects how its two
// texts are made: from bytes of the input, equal to those of the rank before, or encoded from
// fields of the input. Every rank decodes the texts of all ranks; if it
// accepts them, it must know the host and the local rank of each.
#include "world/introduction.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "script.hpp"

namespace {

using fuzz::require;

std::string introduction(fuzz::Script& script) {
  atoll::Introduction fields;
  fields.host = script.text(script.below(8));
  fields.host_id = script.below(2) == 0 ? script.text(2) : fields.host + '/' + script.text(2);
  for (std::size_t i = script.below(3); i-- > 0;) fields.addresses.push_back(script.text(4));
  fields.timeout = std::chrono::seconds(script.number<std::uint8_t>());
  fields.check = script.text(script.below(4));
  return atoll::encode(fields);
}

void check(const atoll::Layout& layout, std::size_t ranks) {
  require(layout.placements.size() == ranks);
  std::size_t found = 0;
  for (const atoll::HostInfo& host : layout.hosts) {
    require(!host.ranks.empty() && std::ranges::is_sorted(host.ranks));
    found += host.ranks.size();
  }
  require(found == ranks);
  for (std::size_t i = 0; i < ranks; ++i) {
    const atoll::Placement& place = layout.placements[i];
    require(std::cmp_equal(place.rank, i) && !place.address.empty() &&
            place.rail_addresses.front() == place.address);
    const auto& members = layout.hosts.at(static_cast<std::size_t>(place.host)).ranks;
    require(members.at(static_cast<std::size_t>(place.local_rank)) == place.rank);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size > 4096) return 0;
  fuzz::Script script({data, size});
  const std::size_t ranks = 1 + script.below(8);
  std::vector<std::string> introductions, processes;
  for (std::size_t i = 0; i < ranks; ++i) {
    const auto how = script.number();
    if ((how & 1) != 0 && i > 0) {
      introductions.push_back(introductions.back());
    } else if ((how & 2) != 0) {
      introductions.push_back(introduction(script));
    } else {
      introductions.push_back(script.text(script.number()));
    }
    if ((how & 4) != 0) {
      processes.push_back(script.text(script.below(16)));
    } else {
      const int pid = script.number<std::int32_t>();
      processes.push_back(atoll::encode(atoll::Process{pid, script.number<std::int8_t>()}));
    }
  }
  try {
    check(atoll::lay_out(introductions, processes), ranks);
  } catch (const atoll::Error&) {
  }
  return 0;
}
