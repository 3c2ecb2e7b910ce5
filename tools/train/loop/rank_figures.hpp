// The figures of a step that ranks exchange.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/mesh.hpp"
#include "report/utilization.hpp"

namespace train {

// A rank's figures of one step, exchanged as f64.
struct RankFigures {
  double loss = 0;  // loss summed over the rank's tokens that have a valid label
  double compute_seconds = 0;
  double enqueue_seconds = 0;
  double communication_seconds = 0;
  double exposed_seconds = 0;
  double data_wait_seconds = 0;
  Utilization use;
  double save_written = 1;  // 0 while the rank still writes its save beside training, otherwise 1
  double stop = 0;          // the Stop that this rank wants, as a number
};

class FigureExchange {
 public:
  // Opens a communicator over all ranks of the mesh; a job of one rank needs no backend.
  // Collective.
  FigureExchange(const atoll::Mesh& mesh, const atoll::Device& device, const std::string& backend);

  // Returns the figures of all ranks, in the same order on all of them. Collective. Blocks until
  // `compute` has done all its work.
  std::span<const RankFigures> exchange(const RankFigures& mine, atoll::Stream& compute);
  // Null in a job of one rank.
  atoll::Communicator* communicator() { return totals_ ? &*totals_ : nullptr; }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  atoll::Buffer memory_;
  std::vector<RankFigures> ranks_;  // copy of memory_ in CPU memory
  std::optional<atoll::Communicator> totals_;
};

}  // namespace train
