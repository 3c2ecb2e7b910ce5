// Ranks of one job on the verbs backend, in one thread. Each rank has its own adapters.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "unit/fake_verbs.hpp"
#include "unit/plugin/sdk_error.hpp"
#include "verbs/verbs_transport.hpp"

namespace verbs_test {

using namespace atoll_verbs_backend;
using Bytes = std::vector<std::byte>;

class Ranks {
 public:
  explicit Ranks(std::size_t count) : transports_(count) {}

  // Opens a rank; all others are on other hosts.
  VerbsTransport& open(std::size_t rank, Settings settings) {
    const int own = static_cast<int>(rank), count = static_cast<int>(transports_.size());
    settings.timeout = 14;
    Exchange exchange;
    exchange.publish = [this, own](int peer, const std::string& contact) {
      store[std::minmax(own, peer)] = {own, contact};
    };
    exchange.look_up = [this, own](int peer) -> std::string {
      ++lookups;
      if (on_look_up) on_look_up();
      const auto found = store.find(std::minmax(own, peer));
      return found == store.end() || found->second.writer != peer ? "" : found->second.contact;
    };
    exchange.forget = [this, own](int peer) { store.erase(std::minmax(own, peer)); };
    const auto warn = [this, own](int peer, const std::string& text) {
      warnings.push_back(std::to_string(own) + " about " + std::to_string(peer) + ": " + text);
    };
    transports_[rank] = std::make_unique<VerbsTransport>(
        std::move(settings), exchange, Membership{own, count, count - 1, timeout, warn});
    return *transports_[rank];
  }
  VerbsTransport& open(std::size_t rank, const std::string& devices) {
    return open(rank, parse_settings("devices=" + devices));
  }
  VerbsTransport& at(std::size_t rank) { return *transports_[rank]; }
  void close(std::size_t rank) { transports_[rank].reset(); }

  // Moves a message from one rank to another.
  void move(std::size_t from, std::size_t to, std::span<const std::byte> data,
            std::span<std::byte> memory) {
    at(to).expect(static_cast<int>(from), memory);
    std::size_t sent = 0, received = 0;
    for (int turn = 0; sent < data.size() || received < memory.size(); ++turn) {
      if (turn == 10'000'000) FAIL("the message does not move");
      if (sent < data.size()) sent += at(from).send(static_cast<int>(to), data.subspan(sent));
      if (received < memory.size()) {
        received += at(to).recv(static_cast<int>(from), memory.subspan(received));
      }
    }
  }
  // Moves a small message both ways, so that both ranks are connected.
  void connect(std::size_t one, std::size_t other) {
    Bytes data(100, std::byte{7}), memory(100);
    move(one, other, data, memory);
    move(other, one, data, memory);
    CHECK(data == memory);
  }
  // Lets a rank wait for a message, and returns the error of the wait, or "".
  std::string error_of(std::size_t rank, std::size_t peer) {
    Bytes memory(100);
    const atoll_collectives::Need need{static_cast<int>(peer), atoll_collectives::Direction::recv};
    const std::string text = atoll_test::sdk_error([&] {
      at(rank).wait(at(rank).ticket(), std::span(&need, 1), std::chrono::nanoseconds(0));
      at(rank).recv(static_cast<int>(peer), memory);
    });
    return text == "no error" ? "" : text;
  }

  struct Text {
    int writer;
    std::string contact;
  };
  std::map<std::pair<int, int>, Text> store;  // by the lower and the higher rank
  std::vector<std::string> warnings;
  std::chrono::milliseconds timeout{300};  // of finish()
  std::function<void()> on_look_up;
  std::size_t lookups = 0;

 private:
  std::vector<std::unique_ptr<VerbsTransport>> transports_;
};

// Two adapters of one network. They outlive the ranks.
struct Adapters {
  fake_verbs::Fabric fabric;
  fake_verbs::Device& left = fabric.add("left");
  fake_verbs::Device& right = fabric.add("right");
};

// Rank 0 uses the adapter `left`, rank 1 the adapter `right`.
struct TwoRanks : Ranks {
  explicit TwoRanks(const std::string& settings = "") : Ranks(2) {
    open(0, parse_settings("devices=left " + settings));
    open(1, parse_settings("devices=right " + settings));
  }
};

}  // namespace verbs_test
