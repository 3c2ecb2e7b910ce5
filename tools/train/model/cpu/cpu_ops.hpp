// Ops for CPU streams. Each call is one task on the stream's worker thread, which runs the kernels
// of this folder on `threads` OpenMP threads.
#pragma once

#include <memory>

#include "model/cpu/matmul.hpp"
#include "model/ops.hpp"

namespace train::cpu {

struct CpuOpsOptions {
  // Compute threads of this rank. Use the cores of the host divided by its number of ranks: more
  // threads would compete for cores.
  int threads = 1;
  // Gives the same bits for any number of threads: leave_out_amx(), which makes bf16 slower.
  bool deterministic = false;
  Bf16Arithmetic bf16 = Bf16Arithmetic::automatic;
};

// The result must outlive work on the streams that it served. Its scratch memory grows to the
// largest shape and is kept.
std::unique_ptr<Ops> make_ops(const CpuOpsOptions& options);

}  // namespace train::cpu
