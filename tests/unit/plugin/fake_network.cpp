// Tests collectives between hosts over a network that exists only in the test. A remote rank sends
// back the signature that it receives, and then zeros, so a job may have thousands of ranks.
#include <doctest/doctest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "collectives/collectives.hpp"
#include "collectives/communicator/host_communicator.hpp"
#include "collectives/signature.hpp"
#include "core/descriptor.hpp"
#include "unit/plugin/ranks.hpp"

namespace {

using namespace atoll_collectives;
using namespace std::chrono_literals;
using plugin_ranks::Bytes;

// What the fake network of one rank has recorded.
struct Seen {
  std::map<int, Bytes> sent;       // by peer
  std::map<int, std::size_t> got;  // bytes received, by peer
  std::size_t sends = 0;           // calls that sent something
  std::atomic<int> sleeps{0};      // calls of arm() with something to wait for
  bool is_late = false;            // true: nothing arrives before the first sleep
};
std::array<Seen, 2> seen;  // by rank

class FakeNetwork final : public Transport {
 public:
  explicit FakeNetwork(int rank) : seen_(seen.at(static_cast<std::size_t>(rank))) {}

  std::size_t send(int peer, std::span<const std::byte> data) override {
    return send_both(peer, data, {});
  }
  std::size_t send_both(int peer, std::span<const std::byte> head,
                        std::span<const std::byte> data) override {
    ++seen_.sends;
    auto& sent = seen_.sent[peer];
    sent.insert(sent.end(), head.begin(), head.end());
    sent.insert(sent.end(), data.begin(), data.end());
    return head.size() + data.size();
  }
  std::size_t recv(int peer, std::span<std::byte> data) override {
    if (seen_.is_late && seen_.sleeps == 0) return 0;
    const auto& sent = seen_.sent[peer];
    if (sent.size() < sizeof(Signature)) return 0;
    auto& at = seen_.got[peer];
    for (auto& byte : data) {
      byte = at < sizeof(Signature) ? sent[at] : std::byte{};
      ++at;
    }
    return data.size();
  }
  bool can_spin() const noexcept override { return false; }
  std::uint32_t ticket() const noexcept override { return 0; }
  bool changed(std::uint32_t /*ticket*/) const noexcept override { return false; }
  Armed arm(std::uint32_t /*ticket*/, std::span<const Need> needs,
            std::vector<pollfd>& descriptors) override {
    descriptors.push_back({readable_.get(), POLLIN, 0});
    if (!needs.empty()) ++seen_.sleeps;
    return Armed::sleep;
  }
  void finish() noexcept override {}

 private:
  Seen& seen_;
  Fd readable_{::eventfd(1, EFD_CLOEXEC)};
};

// A communicator of one rank over the fake network.
struct Rank {
  Rank(plugin_ranks::FakeCore& core, const plugin_ranks::Layout& layout, int rank,
       const std::string& tuning)
      : group(layout, rank, {.tuning = tuning}),
        comm(core.services(), group.get(),
             [](const atoll_core&, const atoll_group& its_group, const Team&,
                const GroupStore&) -> std::unique_ptr<Transport> {
               return std::make_unique<FakeNetwork>(its_group.rank);
             }) {}

  void submit(std::int32_t kind, std::span<const float> src, std::span<float> dst,
              std::size_t count) {
    atoll_operation operation{};
    operation.size = sizeof(operation);
    operation.factor = 1.0;
    operation.kind = kind;
    operation.dtype = ATOLL_F32;
    operation.memory = ATOLL_MEMORY_CPU;
    operation.src = src.data();
    operation.dst = dst.data();
    operation.count = count;
    operation.timeout_ns = 20'000'000'000;
    atoll_operation* const operations[] = {&operation};
    comm.submit(operations);
  }

  plugin_ranks::Group group;
  HostCommunicator comm;
};

void forget() {
  for (auto& one : seen) {
    one.sent.clear();
    one.got.clear();
    one.sends = 0;
    one.sleeps = 0;
    one.is_late = false;
  }
}

}  // namespace

TEST_CASE("two levels take more ranks than a staging buffer has cache lines") {
  forget();
  constexpr std::size_t ranks = staging_bytes / cache_line + 1, count = 16;
  plugin_ranks::Layout layout(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) layout[rank] = static_cast<int>(rank);
  plugin_ranks::FakeCore core;
  Rank rank(core, layout, 0, "reduce_scatter 0 two_level\n");
  std::vector<float> src(ranks * count), dst(count);
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<float>(i % 1009);
  rank.submit(ATOLL_REDUCE_SCATTER, src, dst, count);
  CHECK(std::equal(dst.begin(), dst.end(), src.begin()));
  bool is_right = true;
  for (std::size_t peer = 1; peer < ranks; ++peer) {
    const auto& sent = seen[0].sent[static_cast<int>(peer)];
    is_right = is_right && sent.size() == sizeof(Signature) + count * sizeof(float) &&
               std::memcmp(sent.data() + sizeof(Signature), src.data() + peer * count,
                           count * sizeof(float)) == 0;
  }
  CHECK(is_right);
}

TEST_CASE("the network can wake a rank that sleeps until the ranks of its host arrive") {
  forget();
  seen[0].is_late = true;
  plugin_ranks::FakeCore core;
  // The first rank of the other host publishes that its ranks share memory.
  core.services().put(core.services().ctx, "group/inbox/verdict/1", "shared", 6);
  std::array<std::vector<float>, 2> results;
  const auto run = [&](int number) {
    Rank rank(core, {0, 0, 1, 1}, number, "all_reduce 0 two_level\n");
    std::vector<float> src(1000, 1.0F), dst(1000);
    for (int i = 0; i < 10'000 && number == 1 && seen[0].sleeps == 0; ++i) {
      std::this_thread::sleep_for(1ms);
    }
    if (number == 1) CHECK(seen[0].sleeps > 0);
    rank.submit(ATOLL_ALL_REDUCE, src, dst, src.size());
    results.at(static_cast<std::size_t>(number)) = dst;
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  // The other host sends only zeros, so the result is the sum over the two ranks of this host.
  for (const auto& result : results) CHECK(result.front() == 2.0F);
}
