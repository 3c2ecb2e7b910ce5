// Checks sends and receives with tags and any source.
#include <functional>
#include <string>
#include <vector>

#include "checks.hpp"

namespace conformance {
namespace {

using atoll::Communicator;

// A communicator with tags and the checks' rank in it.
struct Tagged {
  Rank& self;
  Communicator comm;

  Elements message(int from, int tag, std::uint64_t count) const {
    Elements data(DType::i32, count);
    data.fill([&](std::uint64_t i) { return token(DType::i32, from * 100 + tag, i); });
    return data;
  }
  void expect(const Elements& data, int from, int tag, const std::string& what) const {
    const std::string wrong =
        data.difference([&](std::uint64_t i) { return token(DType::i32, from * 100 + tag, i); });
    self.report.expect(wrong.empty(), "tags, " + what + ": " + wrong);
  }
};

// The receiver asks for the messages in the reverse of the order in which they were sent.
void reversed(Tagged& tagged) {
  constexpr int messages = 9;
  auto& [self, comm] = tagged;
  if (self.rank() > 1) return;
  const auto count = [](int tag) { return static_cast<std::uint64_t>(tag) * 5000; };
  for (int k = 0; k < messages; ++k) {
    if (self.rank() == 0) {
      comm.send(tagged.message(0, k, count(k)).view(), 1, self.stream, k).synchronize();
    } else {
      const int tag = messages - 1 - k;
      Elements data(DType::i32, count(tag));
      comm.recv(data.view(), 0, self.stream, tag).synchronize();
      tagged.expect(data, 0, tag, "reversed");
    }
  }
}

// Rank 0 receives from any source with any tag, and learns both.
void any_source(Tagged& tagged) {
  auto& [self, comm] = tagged;
  constexpr std::uint64_t count = 3000;
  if (self.rank() != 0) {
    comm.send(tagged.message(self.rank(), self.rank() + 7, count).view(), 0, self.stream,
              self.rank() + 7)
        .synchronize();
    return;
  }
  std::vector<int> seen(unsigned_of(self.size()), 0);
  for (int k = 1; k < self.size(); ++k) {
    Elements data(DType::i32, count);
    const atoll::Work work =
        comm.recv(data.view(), Communicator::any_source, self.stream, Communicator::any_tag);
    work.synchronize();
    self.report.expect(work.tag() == work.source() + 7, "tags, any source: the tag");
    tagged.expect(data, work.source(), work.source() + 7, "any source");
    ++seen[unsigned_of(work.source())];
  }
  seen[0] = 1;
  self.report.expect(seen == std::vector<int>(seen.size(), 1), "tags, any source: each rank once");
}

// All ranks send before they receive, more than the connections hold, and to themselves.
void all_send_first(Tagged& tagged) {
  auto& [self, comm] = tagged;
  constexpr std::uint64_t count = 1 << 20;
  for (const int step : {0, 1, self.size() - 1}) {
    const int next = (self.rank() + step) % self.size();
    const int previous = (self.rank() + self.size() - step) % self.size();
    Elements out = tagged.message(self.rank(), 3, count), in(DType::i32, count);
    comm.send(out.view(), next, self.stream, 3).synchronize();
    comm.recv(in.view(), previous, self.stream, 3).synchronize();
    tagged.expect(in, previous, 3, "all send first");
  }
}

void refused(Rank& self, atoll::ErrorCode code, const std::function<void()>& call) {
  try {
    call();
    self.report.expect(false, "tags: an invalid call was accepted");
  } catch (const atoll::Error& error) {
    self.report.expect(error.code() == code, std::string("tags: ") + error.what());
  }
}

// Both ranks of a pair have a receive in flight before they send on another stream, and a
// collective runs meanwhile.
void receives_wait(Tagged& tagged) {
  auto& [self, comm] = tagged;
  const int peer = self.rank() ^ 1;
  atoll::Stream other = comm.device().stream(), third = comm.device().stream();
  Elements in(DType::i32, 2000), late(DType::i32, 10), sum(DType::i32, 1);
  atoll::Work first, second;
  if (peer < self.size()) {
    first = comm.recv(in.view(), peer, other, 1);
    second = comm.recv(late.view(), Communicator::any_source, third, 2);
  }
  sum.fill([](std::uint64_t) { return 1; });
  comm.all_reduce(sum.view(), sum.view(), ReduceOp::sum, self.stream).synchronize();
  self.report.expect(sum.difference([&](std::uint64_t) { return self.size(); }).empty(),
                     "tags: a collective beside receives");
  if (peer >= self.size()) return;
  comm.send(tagged.message(self.rank(), 2, 10).view(), peer, self.stream, 2).synchronize();
  comm.send(tagged.message(self.rank(), 1, 2000).view(), peer, self.stream, 1).synchronize();
  first.synchronize();
  second.synchronize();
  tagged.expect(in, peer, 1, "a receive before the send");
  tagged.expect(late, peer, 2, "any source before the send");
}

}  // namespace

void check_tags(Rank& self) {
  const atoll::Mesh mesh = atoll::Mesh::make(self.world, {1, self.world.size()});
  const auto open = [&] {
    return Communicator::open(
        mesh.axis("world"),
        {.name = "tags", .backend = self.backend(), .device = self.comm.device(), .tags = true});
  };
  const bool on_cpu = self.comm.device().kind() == atoll::DeviceKind::cpu;
  if (!on_cpu || self.backend() == "mpi") {
    return refused(self, atoll::ErrorCode::unsupported, [&] { (void)open(); });
  }
  Tagged tagged{self, open()};
  if (self.size() > 1) {
    reversed(tagged);
    any_source(tagged);
  }
  self.comm.barrier(self.stream).synchronize();  // any_source() takes any message
  all_send_first(tagged);
  receives_wait(tagged);
  refused(self, atoll::ErrorCode::invalid_argument, [&] {
    Elements data(DType::i32, 1);
    (void)self.comm.send(data.view(), 0, self.stream, 5);
  });
}

}  // namespace conformance
