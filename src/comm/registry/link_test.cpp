#include "atoll/link_test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "atoll/communicator.hpp"
#include "comm/registry/registry.hpp"
#include "core/errors.hpp"
#include "core/host.hpp"
#include "core/store_key.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

using Json = nlohmann::json;

const Plugin& plugin_for_links(World& world) {
  std::string names;
  for (const auto& info : available_backends(world)) {
    if (!info.unusable.empty()) {
      names += fmt::format("; {}: {}", info.name, info.unusable);
      continue;
    }
    const Plugin& plugin = load_plugin(info.file);
    if (plugin.table.test_link != nullptr) return plugin;
  }
  throw make_error(ErrorCode::not_found, "no usable backend can test a link{}", names);
}

// GPU memory of a test.
struct GpuMemory {
  Buffer buffer;
  DmaBuf exported;
};

// Allocates whole blocks of 2 MiB, the unit of GPU memory, so that the exported pages hold nothing
// else.
GpuMemory gpu_memory(const Device& device, const LinkTest& test) {
  constexpr std::uint64_t block = 2 << 20;
  const std::uint64_t bytes = (2 * test.sizes.back() + block - 1) / block * block;
  GpuMemory memory{device.allocate(bytes), {}};
  memory.exported = device.backend()->export_dma_buf(memory.buffer.data(), bytes);
  return memory;
}

// Performs one side of the test. Returns what this rank tells the others.
Json perform(World& world, const LinkTest& test, const std::string& id, int side) {
  const Plugin& plugin = plugin_for_links(world);
  const atoll_host services = host_services(world);
  std::vector<atoll_link_rate> rates;
  for (const auto bytes : test.sizes) rates.push_back({bytes, 0, 0, 0});
  atoll_link_test request{};
  request.size = sizeof(request);
  request.side = side;
  request.iterations = test.iterations;
  request.id = id.c_str();
  request.port = test.ports[static_cast<std::size_t>(side)].c_str();
  request.rdma = world.config().rdma.c_str();
  request.timeout_ns = std::chrono::nanoseconds(test.timeout).count();
  const char* port = "";
  std::optional<GpuMemory> memory;
  if (test.device && !test.sizes.empty()) memory = gpu_memory(*test.device, test);
  request.memory = memory ? memory->buffer.data() : nullptr;
  request.dma_buf = memory ? memory->exported.descriptor.get() : -1;
  request.dma_buf_offset = memory ? memory->exported.offset : 0;
  const auto status = plugin.table.test_link(&services, &request, rates.data(),
                                             static_cast<std::int32_t>(rates.size()), &port);
  if (status != ATOLL_OK) throw Error(static_cast<ErrorCode>(status), last_error(plugin, nullptr));
  Json result{{"backend", plugin.name}, {"port", port}, {"rates", Json::array()}};
  for (const auto& rate : rates) {
    result["rates"].push_back({rate.bandwidth, rate.latency, rate.latency_p99});
  }
  return result;
}

Json try_to_perform(World& world, const LinkTest& test, const std::string& id) {
  const auto found = std::ranges::find(test.ranks, world.rank());
  if (found == test.ranks.end()) return Json();
  try {
    return perform(world, test, id, static_cast<int>(found - test.ranks.begin()));
  } catch (const Error& error) {
    return {{"code", static_cast<int>(error.code())}, {"error", error.what()}};
  }
}

void check(const World& world, const LinkTest& test) {
  for (const int rank : test.ranks) {
    require(rank >= 0 && rank < world.size(),
            "link test: there is no rank {} in a job of {}: start two ranks, one on each host",
            rank, world.size());
  }
  require(test.ranks[0] != test.ranks[1], "link test: rank {} cannot test a link to itself",
          test.ranks[0]);
}

// Returns how well an error explains the failure: 0 if the rank waited in vain for the other rank
// or repeats its error, 1 if the rank failed by itself.
int weight(const Json& answer) {
  const auto code = static_cast<ErrorCode>(answer["code"].get<int>());
  return code == ErrorCode::timeout || code == ErrorCode::aborted ? 0 : 1;
}

}  // namespace

LinkReport test_link(World& world, const LinkTest& test) {
  check(world, test);
  // Each test uses its own keys in the store, because the keys of earlier tests remain there.
  const auto tokens = world.exchange(store::titled("test_link", "id"), net::random_token(8));
  const auto id = "atoll/link_test/" + tokens[static_cast<std::size_t>(test.ranks[0])];
  const auto texts =
      world.exchange(store::titled("test_link", "result"), try_to_perform(world, test, id).dump());
  std::array<Json, 2> answers;
  std::optional<std::size_t> failed;
  for (std::size_t side = 0; side < 2; ++side) {
    answers[side] = Json::parse(texts[static_cast<std::size_t>(test.ranks[side])]);
    if (!answers[side].contains("error")) continue;
    if (!failed || weight(answers[side]) > weight(answers[*failed])) failed = side;
  }
  if (failed) {
    throw make_error(static_cast<ErrorCode>(answers[*failed]["code"].get<int>()), "rank {}: {}",
                     test.ranks[*failed], answers[*failed]["error"].get<std::string>());
  }
  LinkReport report{answers[0]["backend"], {answers[0]["port"], answers[1]["port"]}, {}};
  for (std::size_t i = 0; i < test.sizes.size(); ++i) {
    const Json& row = answers[0]["rates"][i];
    constexpr double giga = 1e9, micro = 1e6;
    report.rates.push_back({test.sizes[i], row[0].get<double>() / giga,
                            row[1].get<double>() * micro, row[2].get<double>() * micro});
  }
  return report;
}

}  // namespace atoll_v1::atoll
