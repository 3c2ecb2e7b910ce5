// Tests that failures of the host backend name the rank, are reported in time, and leave no
// resources behind.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

const std::vector<Layout> pairs = {{0, 0}, {0, 1}};
const std::vector<Layout> threes = {{0, 0, 0}, {0, 1, 2}, {0, 0, 1}, {0, 1, 0}};

Result reduce_scatter(Rank& rank, std::uint64_t count) {
  Bytes dst(count * 4);
  Bytes src(dst.size() * static_cast<std::size_t>(rank.size()));
  return rank.submit(
      rank.operation(ATOLL_REDUCE_SCATTER, ATOLL_F32, src.data(), dst.data(), count));
}

}  // namespace

TEST_CASE("abort ends a wait at once") {
  for (const auto& layout : threes) {
    CAPTURE(text(layout));
    FakeCore core;
    auto ranks = open_ranks(backend(), core, layout);
    Result result;
    std::chrono::duration<double> late{};
    {
      std::jthread waiting([&] { result = all_gather(ranks[0], 500'000); });
      std::this_thread::sleep_for(50ms);
      const auto begin = Clock::now();
      ranks[0].abort();
      ranks[0].abort();
      waiting.join();
      late = Clock::now() - begin;
    }
    CHECK(result.status == ATOLL_ABORTED);
    CHECK_MESSAGE(contains(result.text, "all_gather 0"), result.text);
    CHECK(late.count() < 0.25);  // a generous limit, because waits check for aborts every 5 ms
    CHECK(barrier(ranks[0]).status == ATOLL_ABORTED);
  }
}

TEST_CASE("a timeout names the absent rank, the operation and its bytes") {
  for (const auto& layout : threes) {
    CAPTURE(text(layout));
    FakeCore core;
    // The algorithm is flat, because with two_level a rank may wait for a rank that itself waits
    // for the absent rank, and would name that rank as well.
    auto ranks = open_ranks(backend(), core, layout, {.tuning = "reduce_scatter 0 flat\n"});
    in_threads(3, [&](int r) {
      auto& rank = ranks[static_cast<std::size_t>(r)];
      CHECK(barrier(rank).status == ATOLL_OK);
      if (r == 2) return;
      rank.timeout_ns = second / 4;
      const auto begin = Clock::now();
      const auto result = reduce_scatter(rank, 1000);
      CHECK(result.status == ATOLL_TIMEOUT);
      CHECK(Clock::now() - begin >= 250ms);
      CHECK_MESSAGE(contains(result.text, "reduce_scatter 1 of communicator shard"), result.text);
      CHECK_MESSAGE(contains(result.text, "waiting for rank 2 (world rank 5)"), result.text);
      CHECK_MESSAGE(contains(result.text, "4000 bytes"), result.text);
      CHECK_MESSAGE(!contains(result.text, "world rank " + std::to_string(2 * (1 - r) + 1)),
                    result.text);
    });
  }
}

// The test conformance_failures covers the other kinds of mismatch.
TEST_CASE("a mismatch names both ranks and their calls") {
  for (const auto& layout : pairs) {
    CAPTURE(text(layout));
    FakeCore core;
    auto ranks = open_ranks(backend(), core, layout);
    in_threads(2, [&](int r) {
      auto& rank = ranks[static_cast<std::size_t>(r)];
      rank.timeout_ns = 5 * second;
      const Result result = all_gather(rank, r == 0 ? 0 : 300'000);
      CHECK_MESSAGE(result.status == ATOLL_MISMATCH, result.text);
      for (const char* part :
           {"all_gather 0 (0 x f32)", "rank 0 (world rank 1)", "rank 1 (world rank 3)"})
        CHECK_MESSAGE(contains(result.text, part), result.text);
      CHECK(barrier(rank).status == ATOLL_ABORTED);
    });
  }
}

TEST_CASE("a message that does not fit its receive is a mismatch") {
  for (const auto& layout : pairs) {
    FakeCore core;
    auto ranks = open_ranks(backend(), core, layout);
    Bytes data(100);
    auto send = ranks[0].operation(ATOLL_SEND, ATOLL_U8, data.data(), nullptr, 100);
    send.peer = 1;
    CHECK(ranks[0].submit(send).status == ATOLL_OK);
    auto recv = ranks[1].operation(ATOLL_RECV, ATOLL_U8, nullptr, data.data(), 99);
    const auto result = ranks[1].submit(recv);
    CHECK(result.status == ATOLL_MISMATCH);
    CHECK_MESSAGE(contains(result.text, "send 0 (100 x u8 to rank 1"), result.text);
  }
}

TEST_CASE("data that was sent before an orderly close arrives") {
  for (const auto& layout : pairs) {
    CAPTURE(text(layout));
    FakeCore core;
    auto ranks = open_ranks(backend(), core, layout);
    const Bytes data = input(ATOLL_U8, 0, 50'000);
    auto send = ranks[0].operation(ATOLL_SEND, ATOLL_U8, data.data(), nullptr, data.size());
    send.peer = 1;
    CHECK(ranks[0].submit(send).status == ATOLL_OK);
    ranks[0].close();
    Bytes got(data.size());
    const auto recv = ranks[1].operation(ATOLL_RECV, ATOLL_U8, nullptr, got.data(), got.size());
    const auto result = ranks[1].submit(recv);
    CHECK_MESSAGE(result.status == ATOLL_OK, result.text);
    CHECK(got == data);
    CHECK(ranks[1].submit(recv).status == ATOLL_PEER_LOST);
  }
}

TEST_CASE("opening names the absent rank at the timeout") {
  for (const Layout& layout : {Layout{0, 0}, Layout{0, 0, 1}}) {
    FakeCore core;
    const Group group(layout, 0, {.id = "lonely", .timeout_ns = second / 5});
    atoll_comm* comm = nullptr;
    CHECK(backend().open(&core.services(), &group.get(), &comm) == ATOLL_TIMEOUT);
    const std::string text = backend().last_error(nullptr);
    CHECK_MESSAGE(contains(text, "rank 1 (world rank 3)"), text);
    CHECK(comm == nullptr);
  }
}

TEST_CASE("a closed communicator leaves no descriptors and no mappings behind") {
  backend();
  const int descriptors = open_descriptors();
  CHECK(mapped_inboxes() == 0);
  for (const auto& layout : threes) {
    FakeCore core;
    auto ranks = open_ranks(backend(), core, layout);
    CHECK(open_descriptors() >= descriptors);
    on_ranks(ranks, [&](Rank& rank) { CHECK(all_gather(rank, 9).status == 0); });
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(mapped_inboxes() == 0);
}
