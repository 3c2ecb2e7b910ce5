// Checks send, recv, groups of sends and receives, and barrier.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checks.hpp"

namespace conformance {
namespace {

using SendRecv = atoll::Communicator::SendRecv;

void fill(Elements& data, int rank) {
  data.fill([&](std::uint64_t i) { return token(data.dtype(), rank, i); });
}

std::string difference(const Elements& data, int rank) {
  return data.difference([&](std::uint64_t i) { return token(data.dtype(), rank, i); });
}

// Passes a message along all ranks: rank 0 sends to rank 1, which sends to rank 2, and so on.
// Single sends and receives suffice for this, without a group.
void chain(Rank& self, DType dtype, std::uint64_t count) {
  Elements data(dtype, count);
  if (self.rank() == 0) {
    fill(data, 0);
  } else {
    self.comm.recv(data.view(), self.rank() - 1, self.stream).synchronize();
  }
  if (self.rank() + 1 < self.size()) {
    self.comm.send(data.view(), self.rank() + 1, self.stream).synchronize();
  }
  const std::string wrong = difference(data, 0);
  self.report.expect(wrong.empty(), label("send recv", dtype, count) + ": " + wrong);
}

// Checks that messages between two ranks arrive in the order in which they were sent.
void sequence(Rank& self) {
  constexpr int messages = 20;
  if (self.rank() > 1) return;
  for (int k = 0; k < messages; ++k) {
    Elements data(DType::i32, static_cast<std::uint64_t>(k) * 50);
    if (self.rank() == 0) {
      fill(data, k);
      self.comm.send(data.view(), 1, self.stream).synchronize();
    } else {
      self.comm.recv(data.view(), 0, self.stream).synchronize();
      const std::string wrong = difference(data, k);
      self.report.expect(wrong.empty(), "message " + std::to_string(k) + ": " + wrong);
    }
  }
}

// Every rank sends to the next rank and receives from the previous rank, in one group.
void ring(Rank& self, DType dtype, std::uint64_t count) {
  const int next = (self.rank() + 1) % self.size();
  const int previous = (self.rank() + self.size() - 1) % self.size();
  Elements out(dtype, count);
  Elements in(dtype, count);
  fill(out, self.rank());
  const SendRecv operations[] = {{SendRecv::Kind::send, out.view(), next},
                                 {SendRecv::Kind::recv, in.view(), previous}};
  self.comm.group(operations, self.stream).synchronize();
  const std::string wrong = difference(in, previous);
  self.report.expect(wrong.empty(), label("group, ring", dtype, count) + ": " + wrong);
  self.report.expect(difference(out, self.rank()).empty(),
                     "group, ring: the sender's data changed");
}

// Every rank sends to all ranks, including itself. Each pair of ranks uses a different length.
void all_pairs(Rank& self, std::uint64_t unit) {
  const auto length = [&](int from, int to) {
    return unit * static_cast<std::uint64_t>(1 + from + 2 * to);
  };
  std::vector<Elements> out;
  std::vector<Elements> in;
  std::vector<SendRecv> operations;
  for (int peer = 0; peer < self.size(); ++peer) {
    fill(out.emplace_back(DType::f32, length(self.rank(), peer)), self.rank() + 10 * peer);
    in.emplace_back(DType::f32, length(peer, self.rank()));
  }
  for (int peer = 0; peer < self.size(); ++peer) {
    const auto i = static_cast<std::size_t>(peer);
    operations.push_back({SendRecv::Kind::send, out[i].view(), peer});
    operations.push_back({SendRecv::Kind::recv, in[i].view(), peer});
  }
  self.comm.group(operations, self.stream).synchronize();
  for (int peer = 0; peer < self.size(); ++peer) {
    const std::string wrong =
        difference(in[static_cast<std::size_t>(peer)], peer + 10 * self.rank());
    self.report.expect(wrong.empty(),
                       "group, all pairs, from rank " + std::to_string(peer) + ": " + wrong);
  }
}

// all_to_all_v, gather_v and scatter_v with a view for each rank, each of another length.
void lists(Rank& self, std::uint64_t unit) {
  const int me = self.rank(), root = self.size() - 1;
  const auto length = [&](int from, int to) {
    return unit * static_cast<std::uint64_t>(from + 2 * to);
  };
  std::vector<Elements> out, in, gathered;
  for (int peer = 0; peer < self.size(); ++peer) {
    fill(out.emplace_back(DType::i32, length(me, peer)), me + 10 * peer);
    in.emplace_back(DType::i32, length(peer, me));
    gathered.emplace_back(DType::i32, length(peer, root));
  }
  std::vector<atoll::ConstView> sent;
  std::vector<atoll::View> received, at_root;
  for (std::size_t peer = 0; peer < out.size(); ++peer) {
    sent.push_back(out[peer].view());
    received.push_back(in[peer].view());
    at_root.push_back(gathered[peer].view());
  }
  const auto expect = [&](const Elements& data, int from, int to, const char* what) {
    const std::string wrong = difference(data, from + 10 * to);
    self.report.expect(wrong.empty(), fmt::format("{} of views from {}: {}", what, from, wrong));
  };
  self.comm.all_to_all_v(sent, received, self.stream).synchronize();
  for (int peer = 0; peer < self.size(); ++peer)
    expect(in[static_cast<std::size_t>(peer)], peer, me, "all_to_all_v");
  self.comm.gather_v(sent.back(), me == root ? at_root : decltype(at_root)(), root, self.stream)
      .synchronize();
  for (int peer = 0; me == root && peer < self.size(); ++peer)
    expect(gathered[static_cast<std::size_t>(peer)], peer, root, "gather_v");
  Elements scattered(DType::i32, length(root, me));
  self.comm.scatter_v(me == root ? sent : decltype(sent)(), scattered.view(), root, self.stream)
      .synchronize();
  expect(scattered, root, me, "scatter_v");
}

// Collectives and messages in one group, among them a reduction that backends may lack.
void mixed(Rank& self, std::uint64_t count) {
  const int next = (self.rank() + 1) % self.size();
  const int previous = (self.rank() + self.size() - 1) % self.size();
  Elements sum(DType::f32, count), rounded_sum(DType::bf16, count), out(DType::i32, count);
  Elements in(DType::i32, count), all(DType::i32, count * unsigned_of(self.size()));
  Elements gathered(DType::i32, all.view().count);
  std::vector<atoll::View> blocks;
  for (std::uint64_t r = 0; self.rank() == 0 && r < unsigned_of(self.size()); ++r)
    blocks.push_back(gathered.view().part(r * count, count));
  for (Elements* ones : {&sum, &rounded_sum}) ones->fill([](std::uint64_t) { return 1; });
  fill(out, self.rank());
  const auto reduce = [&](Elements& data) {
    (void)self.comm.all_reduce(data.view(), data.view(), ReduceOp::sum, self.stream);
  };
  self.comm
      .group(
          [&] {
            reduce(sum);
            (void)self.comm.recv(in.view(), previous, self.stream);
            (void)self.comm.all_gather(out.view(), all.view(), self.stream);
            (void)self.comm.group([&] { reduce(rounded_sum); }, self.stream);
            (void)self.comm.gather_v(out.view(), blocks, 0, self.stream);
            (void)self.comm.send(out.view(), next, self.stream);
          },
          self.stream)
      .synchronize();
  for (const Elements* data : {&sum, &rounded_sum}) {
    const std::string wrong = data->difference([&](std::uint64_t) { return self.size(); });
    self.report.expect(wrong.empty(), "mixed group, all_reduce: " + wrong);
  }
  self.report.expect(difference(in, previous).empty(), "mixed group, message");
  for (const Elements* blocks_of_all : {&all, &gathered}) {
    if (blocks_of_all == &gathered && self.rank() != 0) continue;
    const std::string wrong = blocks_of_all->difference(
        [&](std::uint64_t i) { return token(DType::i32, static_cast<int>(i / count), i % count); });
    self.report.expect(wrong.empty(), "mixed group, all_gather or gather_v: " + wrong);
  }
}

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

void check_send_recv(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : counts_around(self.size(), dtype)) chain(self, dtype, count);
  }
  chain(self, DType::f32, large_count);
  if (self.size() > 1) sequence(self);
}

void check_group(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : counts_around(self.size(), dtype)) ring(self, dtype, count);
  }
  ring(self, DType::f32, large_count);
  all_pairs(self, 1);
  all_pairs(self, 30011);
  lists(self, 1);
  lists(self, 30011);
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{1009}, large_count})
    mixed(self, count);
  self.comm.group(std::span<const SendRecv>(), self.stream).synchronize();
  self.comm.group([] {}, self.stream).synchronize();
}

// Returns true if all ranks run on one kernel, so that their clocks can be compared. Ranks in
// several virtual machines do not.
bool share_clock(Rank& self) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  const auto all =
      all_say(self, self.comm, static_cast<std::int64_t>(std::hash<std::string>()(boot)));
  return std::ranges::adjacent_find(all, std::not_equal_to<>()) == all.end();
}

// Checks that no rank leaves the barrier before the last rank has entered it.
void check_barrier(Rank& self) {
  const auto ranks = static_cast<std::size_t>(self.size());
  const bool clocks_agree = share_clock(self);
  for (int late = 0; late < self.size(); ++late) {
    if (self.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::int64_t came = now_ns();
    self.comm.barrier(self.stream).synchronize();
    const std::int64_t left = now_ns();
    const auto all = all_say(self, self.comm, came);
    for (std::size_t r = 0; r < ranks; ++r) {
      self.report.expect(!clocks_agree || all[r] <= left,
                         "barrier: left before rank " + std::to_string(r) + " had come");
    }
  }
}

}  // namespace conformance
