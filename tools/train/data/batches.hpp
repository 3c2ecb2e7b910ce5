// Which samples a step takes, which of them this rank computes, and in what rows.
//
// An epoch is a permutation of the dataset that depends on (seed, epoch) alone. Step s of it takes
// the next `global_batch` samples; the last step of an epoch takes what is left, so that an epoch
// sees each sample once. A rank takes a contiguous part of the step's samples, one more or one less
// than the others where they do not divide, none when there are more ranks than samples. So the
// samples of a step are the same however many ranks share it, and (epoch, step) is all the state
// that a resumed run needs.
//
// All ranks run the same number of micro batches of the same number of rows, since each of them is
// a round of collectives. Rows that a rank has no sample for are padding whose labels are all
// ignored: they go through the same compute path and add zero to the loss, the gradients and the
// counts.
//
// The lengths of all samples are known on every rank, so the totals of a step, its count of valid
// labels among them, and how each rank packs, need no communication.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/dataset.hpp"
#include "data/packing.hpp"

namespace train {

// Length of the rows of a micro batch, and what is in them.
enum class PadTo {
  longest,  // its longest sample, rounded up to a multiple of 16, at most seq
  seq,      // always seq: one shape, and what published figures of padded runs count
  pack,     // as longest, but a row holds as many samples as fit into seq, each of which attends to
            // itself alone: fewer rows a step
};

// "longest", "seq", "pack". Throws Error(invalid_argument).
PadTo pad_to_from_name(std::string_view name);

inline constexpr std::int32_t row_multiple = 16;
// Of packed rows, at most: on GPUs each number of documents has plans of its own, which take time
// to make.
inline constexpr std::int64_t document_multiple = 16;

struct BatchOptions {
  std::int64_t global_batch = 32;  // samples per step over all ranks
  std::int32_t micro_batch = 1;    // rows per forward and backward
  std::int32_t seq = 512;
  std::int32_t pad_token = 0;
  std::uint64_t seed = 0;
  PadTo pad_to = PadTo::longest;
};

struct Share {
  int rank = 0;
  int ranks = 1;  // that divide the samples: all of the job, whatever the mesh
};

struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;  // in the epoch
  auto operator<=>(const Position&) const = default;
};

// Rows of equal length, row-major; what follows the last sample of a row is pad_token and
// ignored_label.
struct MicroBatch {
  std::int32_t rows = 0;
  std::int32_t seq = 0;
  std::vector<std::int32_t> tokens;  // [rows * seq]
  std::vector<std::int32_t> labels;  // [rows * seq]
  // [rows * seq], from 0 in each of the documents: samples, and parts of the padding behind them.
  // Empty, without documents, unless rows are packed.
  std::vector<std::int32_t> positions;
  std::int64_t documents = 0;
  std::int64_t valid = 0;   // labels that carry loss
  std::int64_t real = 0;    // positions that hold a token of a sample
  std::int64_t padded = 0;  // the others: rows * seq - real
};

struct RowShape {
  std::int32_t rows = 0;
  std::int32_t seq = 0;
  auto operator<=>(const RowShape&) const = default;
};

// Equal on every rank but for `mine`.
struct StepPlan {
  Position position;
  std::int64_t samples = 0;  // over all ranks, as are the next three
  std::int64_t valid = 0;    // divide the sum of losses by this
  std::int64_t real = 0;
  std::int64_t padded = 0;
  int micro_batches = 0;              // on each rank
  std::vector<RowShape> shapes;       // [rank * micro_batches + index]: what every rank computes
  std::vector<std::int64_t> lengths;  // of all that attends to itself: rows, or documents in them
  std::vector<std::uint32_t> mine;    // samples of this rank, in order
  std::vector<Row> rows;              // of this rank, those of a micro batch after another
};

class Batches {
 public:
  // Keeps a reference to the dataset. Throws Error(invalid_argument) when an option is out of range
  // or a sample is longer than seq.
  Batches(const Dataset& dataset, const BatchOptions& options, Share share);

  std::int64_t steps_per_epoch() const noexcept;

  // Of the n-th step of a run, counted from 0.
  Position position(std::int64_t global_step) const noexcept;
  Position after(Position position) const noexcept;

  // Throws Error(invalid_argument) for a position outside an epoch.
  StepPlan step(Position position);

  // Precondition: 0 <= index < step.micro_batches, and the step comes from this object.
  MicroBatch micro_batch(const StepPlan& step, int index) const;

 private:
  const std::vector<std::uint32_t>& order(std::int64_t epoch);
  std::vector<Row> rows(std::span<const std::uint32_t> samples) const;
  RowShape shape(std::span<const Row> rows) const noexcept;
  std::vector<std::int64_t> documents(std::span<const Row> rows, RowShape shape) const;
  void place(const Row& row, std::size_t at, MicroBatch& batch) const;

  const Dataset& dataset_;
  BatchOptions options_;
  Share share_;
  std::int64_t order_epoch_ = -1;
  std::vector<std::uint32_t> order_;  // of order_epoch_
};

// The permutation of [0, size) that is epoch `epoch` under `seed`.
std::vector<std::uint32_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

}  // namespace train
