// The ranks of all atoll variants. They use one communicator of the host backend over all ranks.
#include <atoll/communicator.hpp>
#include <atoll/world.hpp>
#include <cstdio>
#include <optional>

#include "rank.hpp"

namespace {

using namespace atoll_bench;  // NOLINT(google-build-using-namespace): this file is a whole program

// Largest number of operations that are enqueued on the stream before the program waits, in rows
// that do not wait for every operation.
constexpr std::int64_t most_enqueued = 64;

class AtollPeer final : public Peer {
 public:
  int rank() const override { return world_.rank(); }
  int ranks() const override { return world_.size(); }

  Buffers prepare(const Row& row, Variant variant) override {
    row_ = row;
    waits_ = variant == Variant::waited || row.bytes <= waited_bytes;
    const std::size_t output = output_elements(row, ranks()) * size_of(row.element);
    const std::size_t input = input_elements(row, ranks()) * size_of(row.element);
    const std::size_t own = slice_bytes(row, ranks()) * static_cast<std::size_t>(rank());
    if (row.place == Place::out) {
      buffers_ = {memory(0, input, variant), memory(1, output, variant)};
      return buffers_;
    }
    std::byte* whole = memory(0, row.bytes, variant);
    switch (row.collective) {
      case Collective::all_gather:
        buffers_ = {whole + own, whole};
        break;
      case Collective::reduce_scatter:
        buffers_ = {whole, whole + own};
        break;
      case Collective::all_reduce:
        buffers_ = {whole, whole};
        break;
    }
    return buffers_;
  }

  void run(std::int64_t operations) override {
    const atoll::DType dtype =
        row_.element == Element::f32 ? atoll::DType::f32 : atoll::DType::bf16;
    const atoll::ConstView src{buffers_.input, input_elements(row_, ranks()), dtype};
    const atoll::View dst{buffers_.output, output_elements(row_, ranks()), dtype};
    if (waits_) {
      for (std::int64_t i = 0; i < operations; ++i) enqueue(src, dst).synchronize();
      return;
    }
    atoll::Work last;
    for (std::int64_t i = 0; i < operations; ++i) {
      last = enqueue(src, dst);
      if (i % most_enqueued == most_enqueued - 1) last.synchronize();
    }
    last.synchronize();
  }

  void release() override {
    for (int i = 0; i < 2; ++i) {
      allocated_[i] = {};
      plain_[i] = {};
    }
  }

 private:
  std::byte* memory(int i, std::size_t bytes, Variant variant) {
    if (variant == Variant::plain_memory) {
      plain_[i] = PlainMemory(bytes);
      return plain_[i].data();
    }
    allocated_[i] = atoll::allocate(communicator_.device(), bytes, {communicator_});
    return static_cast<std::byte*>(allocated_[i].data());
  }

  atoll::Work enqueue(atoll::ConstView src, atoll::View dst) {
    switch (row_.collective) {
      case Collective::all_gather:
        return communicator_.all_gather(src, dst, stream_);
      case Collective::reduce_scatter:
        return communicator_.reduce_scatter(src, dst, atoll::ReduceOp::sum, stream_);
      case Collective::all_reduce:
        return communicator_.all_reduce(src, dst, atoll::ReduceOp::sum, stream_);
    }
    return {};
  }

  atoll::World world_ = atoll::World::from_env();
  atoll::Mesh mesh_ = atoll::Mesh::make(world_, {1, world_.size()});
  atoll::Communicator communicator_ =
      atoll::Communicator::open(mesh_.axis("shard"), {.backend = "host"});
  atoll::Stream stream_ = communicator_.device().stream();
  atoll::Buffer allocated_[2];
  PlainMemory plain_[2];
  Row row_;
  bool waits_ = false;  // true if the rank waits for each operation before it starts the next
  Buffers buffers_;
};

}  // namespace

int main() {
  take_core("ATOLL_RANK", "ATOLL_SIZE");
  try {
    AtollPeer peer;
    return serve(peer);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_peer_atoll: %s\n", error.what());
    return 1;
  }
}
