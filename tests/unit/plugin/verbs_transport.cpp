// Tests the verbs backend between ranks on adapters that exist only in this process.
#include <bit>

#include "unit/plugin/verbs_ranks.hpp"

using namespace verbs_test;
using atoll_test::sdk_error;

TEST_CASE("a message is spread over the rails and queue pairs of two ranks") {
  fake_verbs::Fabric fabric;
  for (const char* name : {"left0", "left1", "right0", "right1"}) fabric.add(name);
  Ranks ranks(2);
  ranks.open(0, parse_settings("devices=left0,left1 queue_pairs=2"));
  ranks.open(1, parse_settings("devices=right0,right1 queue_pairs=2"));
  Bytes source(20'000'000), target(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31 >> 3);
  ranks.at(0).add_memory(source);
  ranks.at(1).add_memory(target);
  ranks.move(0, 1, source, target);
  CHECK(source == target);
  for (const std::size_t i : {0UL, 1UL}) {
    CAPTURE(i);
    CHECK(fabric.devices()[i]->bytes > source.size() / 3);
    CHECK(fabric.devices()[i + 2]->bytes < source.size() / 100);  // grants and counters
  }
}

// One rank has all ports, the other only some of them.
TEST_CASE("ports without a partner are not used, wherever they stand") {
  constexpr unsigned count = 4, all = (1U << count) - 1;
  const auto settings = [](unsigned ports, int queue_pairs) {
    std::string list;
    for (unsigned port = 0; port < count; ++port)
      if ((ports >> port & 1) != 0) list += (list.empty() ? "p" : ",p") + std::to_string(port);
    return parse_settings("devices=" + list + " queue_pairs=" + std::to_string(queue_pairs));
  };
  Bytes source(2'000'000);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31 >> 3);
  for (unsigned paired = 1; paired < all; ++paired) {
    const std::size_t side = paired % 2;  // the rank with all ports
    const int queue_pairs = 1 + static_cast<int>(paired / 2 % 2);
    CAPTURE(paired);
    fake_verbs::Fabric fabric;
    for (unsigned port = 0; port < count; ++port) fabric.add("p" + std::to_string(port));
    Ranks ranks(2);
    ranks.open(side, settings(all, queue_pairs));
    ranks.open(1 - side, settings(paired, queue_pairs));
    Bytes target(source.size()), back(source.size());
    ranks.at(0).add_memory(source);
    ranks.at(1).add_memory(target);
    ranks.connect(0, 1);
    // While the last port delays its writes, send() must not report their memory as free.
    auto& last = *fabric.devices()[static_cast<std::size_t>(std::bit_width(paired)) - 1];
    ranks.at(1).expect(0, target);
    last.is_busy = !std::has_single_bit(paired);
    std::size_t sent = 0, received = 0;
    for (int turn = 0; turn < 100'000 && (sent < source.size() || received < target.size());
         ++turn) {
      if (turn == 50) last.is_busy = false;
      if (sent < source.size()) sent += ranks.at(0).send(1, std::span(source).subspan(sent));
      if (sent > fabric.landed[{target.data(), target.size()}]) FAIL("an adapter still reads");
      if (received < target.size())
        received += ranks.at(1).recv(0, std::span(target).subspan(received));
    }
    CHECK(source == target);
    ranks.move(1, 0, target, back);
    CHECK(source == back);
    for (unsigned port = 0; port < count; ++port)
      CHECK((fabric.devices()[port]->writes > 0) == ((paired >> port & 1) != 0));
    for (const std::size_t rank : {0UL, 1UL}) ranks.at(rank).finish();
    CHECK(ranks.warnings.empty());
  }
}

TEST_CASE("a port without a partner may go down, and one with a partner is named") {
  fake_verbs::Fabric fabric;
  auto& alone = fabric.add("alone");
  auto& both = fabric.add("both");
  Ranks ranks(2);
  ranks.open(0, "alone,both");
  ranks.open(1, "both");
  alone.port.state = IBV_PORT_DOWN;
  CHECK(ranks.error_of(0, 1) == "");  // waits for the connection
  ranks.connect(0, 1);
  alone.poll_result = -5;
  CHECK(ranks.error_of(0, 1) == "");
  both.port.state = IBV_PORT_DOWN;
  CHECK(ranks.error_of(1, 0) == "both port 1 is down (PORT_DOWN)");
}

TEST_CASE("libibverbs learns that the process may fork before a device is opened") {
  Adapters adapters;
  CHECK(active_ports().size() == 2);
  const TwoRanks ranks;
  CHECK(adapters.fabric.fork_inits > 0);
  CHECK(adapters.fabric.is_fork_init_first);
}

TEST_CASE("a flushed request without another error is a failure") {
  Adapters adapters;
  TwoRanks ranks;
  ranks.connect(0, 1);
  adapters.left.status = IBV_WC_WR_FLUSH_ERR;
  const Bytes data(100);
  ranks.at(0).send(1, data);
  CHECK(ranks.error_of(0, 1) ==
        "left port 1: Work Request Flushed Error (vendor code 0x77): the adapter has stopped this "
        "connection without another error");
}

TEST_CASE("flushed requests after an error do not hide the error") {
  Adapters adapters;
  TwoRanks ranks;
  ranks.connect(0, 1);
  adapters.left.status = IBV_WC_RETRY_EXC_ERR;
  const Bytes data(100);
  ranks.at(0).send(1, data);
  CHECK(ranks.error_of(0, 1).starts_with("left port 1: transport retry counter exceeded"));
  CHECK(sdk_error([&] {
          while (true) ranks.at(0).send(1, Bytes(20'000));
        }).starts_with("left port 1: transport retry counter exceeded"));
}

TEST_CASE("a completion queue that cannot be read is an error for all peers") {
  Adapters adapters;
  TwoRanks ranks;
  ranks.connect(0, 1);
  const auto ticket = ranks.at(0).ticket();
  adapters.left.poll_result = -5;
  CHECK(ranks.at(0).changed(ticket));  // a rank that waits wakes up
  const std::string text = "left port 1: the completion queue cannot be read (ibv_poll_cq: -5)";
  CHECK(ranks.error_of(0, 1) == text);
  adapters.left.poll_result = 0;
  CHECK(ranks.error_of(0, 1) == text);
}

TEST_CASE("after a fatal event every use of the port names it") {
  const std::pair<ibv_event_type, const char*> events[] = {
      {IBV_EVENT_CQ_ERR, "left port 1: a completion queue has failed (IBV_EVENT_CQ_ERR)"},
      {IBV_EVENT_QP_FATAL, "left port 1: a queue pair has failed (IBV_EVENT_QP_FATAL)"},
      {IBV_EVENT_SRQ_ERR, "left port 1: a receive queue has failed (IBV_EVENT_SRQ_ERR)"},
      {IBV_EVENT_DEVICE_FATAL, "left port 1: the device has failed (IBV_EVENT_DEVICE_FATAL)"}};
  for (const auto& [event, text] : events) {
    CAPTURE(text);
    Adapters adapters;
    TwoRanks ranks;
    ranks.connect(0, 1);
    adapters.left.events = {IBV_EVENT_LID_CHANGE, event, IBV_EVENT_COMM_EST};
    CHECK(ranks.error_of(0, 1) == text);
    CHECK(ranks.error_of(0, 1) == text);
    // Another communicator of the process fails on this port in the same way.
    Ranks others(2);
    CHECK(sdk_error([&] { others.open(0, "left"); }) == text);
    CHECK(sdk_error([&] { others.open(1, "right"); }) == "no error");
  }
}

TEST_CASE("the receive queue never runs empty, even if a rank does not poll") {
  constexpr std::size_t count = 9;
  Adapters adapters;
  Ranks ranks(count);
  ranks.open(0, "left");
  for (std::size_t peer = 1; peer < count; ++peer) ranks.open(peer, "right");
  for (std::size_t peer = 1; peer < count; ++peer) ranks.connect(0, peer);
  const Bytes data(10);
  std::vector<std::size_t> sent(count);
  for (std::size_t peer = 1; peer < count; ++peer) {
    for (std::size_t n = 1; n > 0 && sent[peer] < 100'000; sent[peer] += n) {
      n = ranks.at(peer).send(0, data);
    }
  }
  for (std::size_t peer = 1; peer < count; ++peer) {
    CAPTURE(peer);
    CHECK(sent[peer] >= 10 * 4096 / count / 2);
    Bytes memory(sent[peer]);
    CHECK(sdk_error([&] {
            ranks.at(peer).recv(0, memory);  // throws if a receive was missing
          }) == "no error");
    std::size_t received = 0;
    for (int turn = 0; turn < 10'000 && received < memory.size(); ++turn) {
      received += ranks.at(0).recv(static_cast<int>(peer), std::span(memory).subspan(received));
    }
    CHECK(received == memory.size());
    CHECK(ranks.at(peer).send(0, data) == data.size());  // rank 0 has confirmed its receives
  }
}

TEST_CASE("a device without shared receive queues is refused") {
  Adapters adapters;
  adapters.left.limits.max_srq = adapters.left.limits.max_srq_wr = 0;
  Ranks ranks(2);
  CHECK(sdk_error([&] { ranks.open(0, "left"); }) ==
        "left port 1: the device has no shared receive queues (max_srq 0, max_srq_wr 0): choose "
        "other ports with devices= in ATOLL_RDMA");
}

TEST_CASE("the completion queue has room for all writes of all connections") {
  constexpr std::size_t count = 301;
  Adapters adapters;
  Ranks ranks(count);
  auto settings = parse_settings("devices=left queue_pairs=2");
  ranks.open(0, settings);
  settings = parse_settings("devices=right queue_pairs=2");
  for (std::size_t peer = 1; peer < count; ++peer) ranks.open(peer, settings);
  for (std::size_t peer = 1; peer < count; ++peer) ranks.connect(0, peer);
  CHECK(adapters.left.resizes > 0);
  CHECK(adapters.left.largest_queue >= 4800 + 64 * 2 * 300);
  CHECK(adapters.left.events.empty());
}

TEST_CASE("a device that cannot enlarge the completion queue is named with its limits") {
  for (const bool is_limited : {false, true}) {
    CAPTURE(is_limited);
    Adapters adapters;
    adapters.left.can_resize = false;
    if (is_limited) adapters.left.limits.max_cqe = 16384;
    Ranks ranks(301);
    ranks.open(0, "left");
    Bytes memory(1);
    const auto text = sdk_error([&] {
      for (int peer = 1; peer <= 300; ++peer) ranks.at(0).recv(peer, memory);
    });
    CHECK(text.find(is_limited ? "left port 1: the device cannot serve " : "left port 1: ") == 0);
    CHECK(text.find(is_limited ? "and 16384 completions (max_cqe)" : "cannot grow from") !=
          std::string::npos);
  }
}
