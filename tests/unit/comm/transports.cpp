// Tests of gather_transports() and require_gpudirect_rdma().
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "atoll/communicator.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"

namespace {

using atoll::Transports;
using atoll_test::error_of;
using atoll_test::has;

// Calls require_gpudirect_rdma() on ranks where rank r is on host hosts[r] and has the transports
// said[r]. Returns the error of rank 0.
std::string refused(const std::vector<std::string>& hosts, const std::vector<Transports>& said) {
  std::string why;
  atoll_test::run_thread_ranks(
      static_cast<int>(hosts.size()),
      [&](atoll::World& world) {
        const std::string error = error_of([&] {
          atoll::require_gpudirect_rdma(world, said[static_cast<std::size_t>(world.rank())]);
        });
        if (world.rank() == 0) why = error;
      },
      [&](atoll::Config& config) {
        config.host_id = hosts[static_cast<std::size_t>(config.rank)];
      });
  return why;
}

Transports by(const std::string& network, bool direct, bool partly = false) {
  Transports transports;
  transports.networks = {network};
  transports.gpudirect_rdma = direct;
  transports.partly = partly;
  return transports;
}

}  // namespace

TEST_CASE("a rank without connections passes if the other ranks have GPUDirect RDMA") {
  CHECK(refused({"a", "a", "b", "b"}, {by("IB", true), {}, {}, by("IB", true)}) == "no error");
}

TEST_CASE("the error names a rank without GPUDirect RDMA, or with unknown transports") {
  CHECK(has(refused({"a", "b", "b"}, {by("IB", true), {}, by("IB", false, true)}),
            "GPUDirect RDMA is required: rank 2 reaches other hosts by IB with GPUDirect RDMA on "
            "some connections only"));
  Transports unknown;
  unknown.unknown = "NCCL_DEBUG=WARN is set";
  CHECK(has(refused({"a", "b"}, {by("IB", true), unknown}),
            "rank 1 does not know its transports: NCCL_DEBUG=WARN is set"));
}

TEST_CASE("several hosts without any connection are refused, a single host is not") {
  CHECK(has(refused({"a", "b"}, {{}, {}}), "no rank is known to have a connection"));
  CHECK(refused({"a", "a"}, {{}, {}}) == "no error");
  CHECK(refused({"a", "a"}, {by("Socket", false), {}}) == "no error");
}

TEST_CASE("gather_transports() lists all networks, and what all ranks have") {
  std::vector<std::string> texts(3);
  atoll_test::run_thread_ranks(3, [&](atoll::World& world) {
    Transports mine[] = {by("IB", true), {}, by("Socket", false)};
    mine[0].nvls = true;
    mine[1].nvls = true;
    mine[0].copy_engines = true;
    mine[2].copy_engines = false;
    mine[0].device_bytes = 480'000'000;
    mine[1].device_bytes = 1'200'000'000;
    const auto rank = static_cast<std::size_t>(world.rank());
    texts[rank] = atoll::gather_transports(world, mine[rank]).to_string();
  });
  CHECK(texts == std::vector<std::string>(
                     3,
                     "network IB, Socket with GPUDirect RDMA on some connections, NVLS "
                     "available, gather: SM, communicators hold 1.20 GB of GPU memory"));
  CHECK(Transports{}.to_string() == "no network in use");
  Transports unknown;
  unknown.unknown = "NCCL_DEBUG=INFO is set";
  CHECK(unknown.to_string() == "not known: NCCL_DEBUG=INFO is set");
}
