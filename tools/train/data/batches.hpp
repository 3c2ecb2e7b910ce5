// Plans a step: its samples, this rank's part of them, and the rows that hold them.
//
// An epoch is a permutation of the dataset, seeded by (seed, epoch), or a mixture of several sets
// (order.hpp). Step s takes its next `global_batch` samples; the last step takes the rest. The
// samples of a step are therefore independent of the number of ranks, and a resumed run needs no
// state but (epoch, step).
//
// Every micro batch involves collectives, so all ranks run equally many micro batches. The rows of
// a step are spread evenly over its micro batches, unless all batches must have one shape. A row
// without a sample is padding with ignored labels. Every rank knows the lengths of all samples, so
// the plan needs no communication.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "data/dataset.hpp"

namespace train {

// Length and contents of the rows of a micro batch.
enum class PadTo {
  longest,  // length of the longest sample, rounded up to a multiple of row_multiple, at most seq
  seq,      // always seq, so all batches have one shape, as in published runs with padding
  pack,     // several samples share a row of up to seq tokens, without attention between them;
            // the longest row sets the row length
};

// Accepts "longest", "seq" and "pack", and throws Error(invalid_argument) for other names.
PadTo pad_to_from_name(std::string_view name);

inline constexpr std::int32_t row_multiple = 16;
// Preferred multiple of documents in packed rows. With cuDNN before 9.25, GPUs build a plan for
// each number of documents, so fewer distinct numbers save time.
inline constexpr std::int64_t document_multiple = 16;

struct BatchOptions {
  std::int64_t global_batch = 32;  // samples per step over all ranks
  std::int32_t micro_batch = 1;    // number of rows in each forward and backward pass
  std::int32_t seq = 512;
  std::int32_t pad_token = 0;
  std::uint64_t seed = 0;
  PadTo pad_to = PadTo::longest;
};

struct Share {
  int rank = 0;
  int ranks = 1;  // number of ranks in the job, whatever the mesh
};

struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;  // index of the step within the epoch
  auto operator<=>(const Position&) const = default;
};

// Rows of equal length, row-major. Positions after the last sample of a row hold pad_token and
// ignored_label.
struct MicroBatch {
  std::int32_t rows = 0;
  std::int32_t seq = 0;
  std::vector<std::int32_t> tokens;  // rows * seq token ids, one row after another
  std::vector<std::int32_t> labels;  // rows * seq target ids, one row after another
  // [rows * seq]: positions within each document, from 0. A document is a sample or a part of the
  // padding. Empty unless rows are packed.
  std::vector<std::int32_t> positions;
  std::int64_t documents = 0;  // number of documents; 0 unless rows are packed
  std::int64_t valid = 0;      // number of labels that count in the loss
  std::int64_t real = 0;       // number of positions that hold a token of a sample
  std::int64_t padded = 0;     // number of positions without a token of a sample: rows * seq - real
};

struct RowShape {
  std::int32_t rows = 0;
  std::int32_t seq = 0;
  auto operator<=>(const RowShape&) const = default;
};

using Row = std::vector<std::uint32_t>;  // samples that share the row, in order

// One step. All members except `rows` are equal on every rank.
struct StepPlan {
  Position position;
  std::int64_t samples = 0;  // samples, valid, real and padded are totals over all ranks
  std::int64_t valid = 0;    // labels that count in the loss; the sum of losses is divided by this
  std::int64_t real = 0;
  std::int64_t padded = 0;
  int micro_batches = 0;         // number of micro batches on each rank
  std::int32_t micro_rows = 0;   // rows of the largest micro batch, up to BatchOptions::micro_batch
  std::vector<RowShape> shapes;  // element r * micro_batches + m: micro batch m of rank r
  std::vector<std::int64_t> lengths;  // lengths of all rows, or of all documents if packed
  std::vector<Row> rows;              // this rank's rows, ordered by micro batch
};

class Batches {
 public:
  // Keeps a reference to the dataset. Throws Error(invalid_argument) when an option is out of range
  // or a sample is longer than seq.
  Batches(const Dataset& dataset, const BatchOptions& options, Share share);

  std::int64_t steps_per_epoch() const noexcept;

  // Position of the n-th step of a run, counted from 0.
  Position position(std::int64_t global_step) const noexcept;

  // Throws Error(invalid_argument) for a position outside an epoch.
  StepPlan step(Position position);

  // Preconditions: 0 <= index < step.micro_batches, and this object made the step.
  MicroBatch micro_batch(const StepPlan& step, int index) const;

 private:
  std::vector<Row> rows(std::span<const std::uint32_t> samples) const;
  RowShape shape(std::span<const Row> rows, std::int32_t count) const noexcept;
  std::vector<std::int64_t> documents(std::span<const Row> rows, RowShape shape) const;
  void place(const Row& row, std::size_t at, MicroBatch& batch) const;

  const Dataset& dataset_;
  BatchOptions options_;
  Share share_;
  SampleOrder order_;
};

// Packs samples into rows of up to `capacity` tokens by best fit, longest sample first. Ties, and
// samples within a row, keep the given order.
// Precondition: no length exceeds `capacity`.
std::vector<Row> pack_rows(std::span<const std::uint32_t> samples,
                           const std::function<std::int64_t(std::uint32_t)>& length,
                           std::int64_t capacity);

}  // namespace train
