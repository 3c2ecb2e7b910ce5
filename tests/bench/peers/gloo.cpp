// The ranks of the implementation `gloo`. They use TCP on loopback, which is the only transport of
// Gloo within a host.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "rank.hpp"

namespace {

using namespace atoll_bench;  // NOLINT(google-build-using-namespace): this file is a whole program

std::string required(const char* variable) {
  const char* value = std::getenv(variable);
  if (!value) throw std::runtime_error(std::string("the environment has no ") + variable);
  return value;
}

class GlooPeer final : public Peer {
 public:
  // run_ranks passes rank and size in the environment variables of atoll.
  GlooPeer()
      : rank_(std::stoi(required("ATOLL_RANK"))), ranks_(std::stoi(required("ATOLL_SIZE"))) {}
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  Buffers prepare(const Row& row, Variant) override {
    if (row.bytes != row_.bytes) connect();
    row_ = row;
    memory_[0] = PlainMemory(row.bytes);
    if (row.collective == Collective::reduce_scatter) return prepare_reduce_scatter();
    if (row.place == Place::out) {
      memory_[1] = PlainMemory(row.bytes);
      buffers_ = {memory_[0].data(), memory_[1].data()};
      return buffers_;
    }
    const bool gather = row.collective == Collective::all_gather;
    const std::size_t own = slice_bytes(row, ranks_) * static_cast<std::size_t>(rank_);
    buffers_ = {memory_[0].data() + (gather ? own : 0), memory_[0].data()};
    return buffers_;
  }

  void run(std::int64_t operations) override {
    for (std::int64_t i = 0; i < operations; ++i) call();
  }

  void release() override {
    reduce_scatter_.reset();
    memory_[0] = {};
    memory_[1] = {};
  }

 private:
  // Opens new connections. Every size gets new ones, because on connections that have carried small
  // messages, large messages can take a second each.
  void connect() {
    context_.reset();
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore files(required("BENCH_STORE"));
    gloo::rendezvous::PrefixStore store(std::to_string(connections_++), files);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank_, ranks_);
    context->connectFullMesh(store, device);
    context_ = context;
  }

  // Gloo has only one form of reduce_scatter, which overwrites the input and leaves the slice at
  // the start of the input. This form is measured for both in place and out of place, because a
  // copy of the input would add to the time.
  Buffers prepare_reduce_scatter() {
    auto* data = reinterpret_cast<float*>(memory_[0].data());
    const int part = static_cast<int>(slice(row_, ranks_));
    reduce_scatter_ = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
        context_, std::vector<float*>{data}, static_cast<int>(elements(row_)),
        std::vector<int>(static_cast<std::size_t>(ranks_), part));
    buffers_ = {memory_[0].data(), memory_[0].data()};
    return buffers_;
  }

  void call() {
    switch (row_.collective) {
      case Collective::all_gather:
        if (row_.element == Element::f32) return all_gather<float>();
        return all_gather<std::uint16_t>();
      case Collective::reduce_scatter:
        return reduce_scatter_->run();
      case Collective::all_reduce:
        return all_reduce();
    }
  }

  template <class T>
  void all_gather() {
    gloo::AllgatherOptions options(context_);
    if (row_.place == Place::out) {
      options.setInput(reinterpret_cast<T*>(buffers_.input), slice(row_, ranks_));
    }
    options.setOutput(reinterpret_cast<T*>(buffers_.output), elements(row_));
    gloo::allgather(options);
  }

  void all_reduce() {
    gloo::AllreduceOptions options(context_);
    if (row_.place == Place::out) {
      options.setInput(reinterpret_cast<float*>(buffers_.input), elements(row_));
    }
    options.setOutput(reinterpret_cast<float*>(buffers_.output), elements(row_));
    options.setReduceFunction(
        [](void* c, const void* a, const void* b, std::size_t n) { gloo::sum<float>(c, a, b, n); });
    gloo::allreduce(options);
  }

  int rank_ = 0, ranks_ = 0;
  int connections_ = 0;
  std::shared_ptr<gloo::Context> context_;
  std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> reduce_scatter_;
  PlainMemory memory_[2];
  Row row_;
  Buffers buffers_;
};

}  // namespace

int main() {
  try {
    GlooPeer peer;
    return serve(peer);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_peer_gloo: %s\n", error.what());
    return 1;
  }
}
