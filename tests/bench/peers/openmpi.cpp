// The ranks of the implementation `openmpi`: blocking collectives of Open MPI with its default
// settings.
#include <mpi.h>

#include <cstdio>
#include <stdexcept>

#include "rank.hpp"

namespace {

using namespace atoll_bench;  // NOLINT(google-build-using-namespace): this file is a whole program

class MpiPeer final : public Peer {
 public:
  MpiPeer() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  Buffers prepare(const Row& row, Variant) override {
    row_ = row;
    memory_[0] = PlainMemory(row.bytes);
    if (row.place == Place::out) {
      memory_[1] = PlainMemory(row.bytes);
      buffers_ = {memory_[0].data(), memory_[1].data()};
      return buffers_;
    }
    // With MPI_IN_PLACE, reduce_scatter stores the slice of a rank at the start of the buffer.
    const bool gather = row.collective == Collective::all_gather;
    const std::size_t own = slice_bytes(row, ranks_) * static_cast<std::size_t>(rank_);
    buffers_ = {memory_[0].data() + (gather ? own : 0), memory_[0].data()};
    return buffers_;
  }

  void run(std::int64_t operations) override {
    for (std::int64_t i = 0; i < operations; ++i) {
      if (call() != MPI_SUCCESS) throw std::runtime_error("the collective of MPI failed");
    }
  }

  void release() override {
    memory_[0] = {};
    memory_[1] = {};
  }

 private:
  int call() {
    const void* src = row_.place == Place::in ? MPI_IN_PLACE : buffers_.input;
    void* dst = buffers_.output;
    const int part = static_cast<int>(slice(row_, ranks_));
    // MPI has no sums of bf16. An all_gather only moves bits, so it can use another type of the
    // same size.
    const MPI_Datatype type = row_.element == Element::f32 ? MPI_FLOAT : MPI_UINT16_T;
    switch (row_.collective) {
      case Collective::all_gather:
        return MPI_Allgather(src, part, type, dst, part, type, MPI_COMM_WORLD);
      case Collective::reduce_scatter:
        return MPI_Reduce_scatter_block(src, dst, part, type, MPI_SUM, MPI_COMM_WORLD);
      case Collective::all_reduce:
        return MPI_Allreduce(src, dst, static_cast<int>(elements(row_)), type, MPI_SUM,
                             MPI_COMM_WORLD);
    }
    return MPI_ERR_OTHER;
  }

  int rank_ = 0, ranks_ = 0;
  PlainMemory memory_[2];
  Row row_;
  Buffers buffers_;
};

}  // namespace

int main(int argc, char** argv) {
  take_core("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  MPI_Init(&argc, &argv);
  int status = 1;
  try {
    MpiPeer peer;
    status = serve(peer);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_peer_openmpi: %s\n", error.what());
  }
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
