#include "data/batches.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "fail.hpp"

namespace train {

namespace {

// First sample of rank `rank` when `total` samples are divided evenly. Does not overflow.
std::int64_t part_begin(std::int64_t total, std::int64_t rank, std::int64_t ranks) noexcept {
  return total / ranks * rank + std::min(rank, total % ranks);
}

template <typename T>
std::span<T> rows_of(std::span<T> samples, std::int64_t micro_batch, std::int64_t index) noexcept {
  const auto size = static_cast<std::int64_t>(samples.size());
  const std::int64_t begin = std::min(index * micro_batch, size);
  const std::int64_t end = std::min(begin + micro_batch, size);
  return samples.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

PadTo pad_to_from_name(std::string_view name) {
  if (name == "longest") return PadTo::longest;
  if (name == "seq") return PadTo::seq;
  require(name == "pack", "row length \"{}\": use longest, seq or pack", name);
  return PadTo::pack;
}

std::vector<Row> pack_rows(std::span<const std::uint32_t> samples,
                           const std::function<std::int64_t(std::uint32_t)>& length,
                           std::int64_t capacity) {
  std::vector<std::size_t> order(samples.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return length(samples[a]) > length(samples[b]); });
  std::vector<std::vector<std::size_t>> rows;  // indices into `samples`
  // Maps the number of free tokens of a row to the row's index.
  std::multimap<std::int64_t, std::size_t> rooms;
  for (const std::size_t place : order) {
    const std::int64_t tokens = length(samples[place]);
    std::int64_t room = capacity;
    std::size_t row = rows.size();
    if (const auto found = rooms.lower_bound(tokens); found != rooms.end()) {
      room = found->first;
      row = found->second;
      rooms.erase(found);
    } else {
      rows.emplace_back();
    }
    rows[row].push_back(place);
    rooms.emplace(room - tokens, row);
  }
  std::vector<Row> packed(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::ranges::sort(rows[r]);
    for (const std::size_t place : rows[r]) packed[r].push_back(samples[place]);
  }
  return packed;
}

Batches::Batches(const Dataset& dataset, const BatchOptions& options, Share share)
    : dataset_(dataset),
      options_(options),
      share_(share),
      order_(dataset.size(), dataset.portions, options.seed) {
  require(options.global_batch >= 1, "global batch {}: must be at least 1", options.global_batch);
  require(options.micro_batch >= 1, "micro batch {}: must be at least 1", options.micro_batch);
  require(options.seq >= 1, "sequence length {}: must be at least 1", options.seq);
  require(share.ranks >= 1 && share.rank >= 0 && share.rank < share.ranks,
          "rank {} of {}: no such rank", share.rank, share.ranks);
  require(dataset.size() >= 1 && dataset.size() <= std::numeric_limits<std::uint32_t>::max(),
          "{}: {} samples: must be between 1 and 2^32 - 1", dataset.name(), dataset.size());
  require(dataset.longest() <= options.seq, "{}: a sample has {} tokens, but rows have at most {}",
          dataset.name(), dataset.longest(), options.seq);
  const std::int64_t row_tokens = std::int64_t{options.micro_batch} * options.seq;
  require(row_tokens <= std::numeric_limits<std::int32_t>::max(),
          "micro batch {} x sequence length {}: must be below 2^31 tokens", options.micro_batch,
          options.seq);
}

std::int64_t Batches::steps_per_epoch() const noexcept {
  return (dataset_.size() - 1) / options_.global_batch + 1;
}

Position Batches::position(std::int64_t global_step) const noexcept {
  return {global_step / steps_per_epoch(), global_step % steps_per_epoch()};
}

std::vector<Row> Batches::rows(std::span<const std::uint32_t> samples) const {
  if (options_.pad_to == PadTo::pack) {
    return pack_rows(
        samples, [&](std::uint32_t sample) { return dataset_.length(sample); }, options_.seq);
  }
  std::vector<Row> rows;
  for (const std::uint32_t sample : samples) rows.push_back({sample});
  return rows;
}

RowShape Batches::shape(std::span<const Row> rows, std::int32_t count) const noexcept {
  RowShape shape{count, options_.seq};
  if (options_.pad_to == PadTo::seq) return shape;
  std::int64_t longest = 1;
  for (const Row& row : rows) {
    std::int64_t tokens = 0;
    for (const std::uint32_t sample : row) tokens += dataset_.length(sample);
    longest = std::max(longest, tokens);
  }
  const std::int64_t rounded = (longest + row_multiple - 1) / row_multiple * row_multiple;
  shape.seq = static_cast<std::int32_t>(std::min<std::int64_t>(rounded, options_.seq));
  return shape;
}

// Lengths of the documents of packed rows. Single padding tokens become separate documents to
// make the number of documents a multiple of a power of two, as large as the padding permits.
std::vector<std::int64_t> Batches::documents(std::span<const Row> rows, RowShape shape) const {
  if (options_.pad_to != PadTo::pack) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(shape.rows), shape.seq);
  }
  std::int64_t count = 0, spare = 0;
  std::vector<std::int64_t> padding;
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows); ++row) {
    std::int64_t left = shape.seq;
    if (row < rows.size()) {
      for (const std::uint32_t sample : rows[row]) left -= dataset_.length(sample);
      count += static_cast<std::int64_t>(rows[row].size());
    }
    padding.push_back(left);
    count += left > 0 ? 1 : 0;
    spare += std::max<std::int64_t>(left - 1, 0);
  }
  std::int64_t missing = 0;
  for (std::int64_t multiple = document_multiple; multiple > 1; multiple /= 2) {
    missing = (multiple - count % multiple) % multiple;
    if (missing <= spare) break;
    missing = 0;
  }
  std::vector<std::int64_t> lengths;
  for (std::size_t row = 0; row < padding.size(); ++row) {
    if (row < rows.size()) {
      for (const std::uint32_t sample : rows[row]) lengths.push_back(dataset_.length(sample));
    }
    if (padding[row] == 0) continue;
    const std::int64_t cut = std::min(missing, padding[row] - 1);
    missing -= cut;
    lengths.push_back(padding[row] - cut);
    lengths.insert(lengths.end(), static_cast<std::size_t>(cut), 1);
  }
  return lengths;
}

StepPlan Batches::step(Position position) {
  require(position.epoch >= 0 && position.step >= 0 && position.step < steps_per_epoch(),
          "epoch {}, step {}: no such step, because an epoch has {} steps", position.epoch,
          position.step, steps_per_epoch());
  const std::int64_t first = position.step * options_.global_batch;
  const std::int64_t last = std::min(first + options_.global_batch, dataset_.size());
  const std::vector<std::uint32_t> chosen = order_.samples(position.epoch, first, last);
  const std::span<const std::uint32_t> samples = chosen;

  StepPlan step;
  step.position = position;
  step.samples = static_cast<std::int64_t>(samples.size());
  for (const std::uint32_t i : samples) {
    step.valid += dataset_.valid(i);
    step.real += dataset_.length(i);
  }
  std::vector<std::vector<Row>> rows_of_ranks;
  std::size_t most_rows = 1;
  for (int rank = 0; rank < share_.ranks; ++rank) {
    const auto begin = static_cast<std::size_t>(part_begin(step.samples, rank, share_.ranks));
    const auto end = static_cast<std::size_t>(part_begin(step.samples, rank + 1, share_.ranks));
    rows_of_ranks.push_back(rows(samples.subspan(begin, end - begin)));
    most_rows = std::max(most_rows, rows_of_ranks.back().size());
  }
  step.micro_batches = (static_cast<int>(most_rows) - 1) / options_.micro_batch + 1;
  step.micro_rows = options_.micro_batch;
  if (options_.pad_to != PadTo::seq)
    step.micro_rows = (static_cast<std::int32_t>(most_rows) - 1) / step.micro_batches + 1;
  for (const std::vector<Row>& all_rows : rows_of_ranks) {
    for (int index = 0; index < step.micro_batches; ++index) {
      const auto batch = rows_of(std::span(all_rows), step.micro_rows, index);
      step.shapes.push_back(shape(batch, step.micro_rows));
      const auto lengths = documents(batch, step.shapes.back());
      step.lengths.insert(step.lengths.end(), lengths.begin(), lengths.end());
    }
  }
  step.padded = std::reduce(step.lengths.begin(), step.lengths.end()) - step.real;
  step.rows = std::move(rows_of_ranks[static_cast<std::size_t>(share_.rank)]);
  return step;
}

MicroBatch Batches::micro_batch(const StepPlan& step, int index) const {
  const auto rows = rows_of(std::span(step.rows), step.micro_rows, index);
  const RowShape shape =
      step.shapes[static_cast<std::size_t>(share_.rank * step.micro_batches + index)];
  const auto seq = static_cast<std::size_t>(shape.seq);
  const std::size_t positions = static_cast<std::size_t>(shape.rows) * seq;

  MicroBatch batch;
  batch.rows = shape.rows;
  batch.seq = shape.seq;
  batch.tokens.assign(positions, options_.pad_token);
  batch.labels.assign(positions, ignored_label);
  for (std::size_t row = 0; row < rows.size(); ++row) place(rows[row], row * seq, batch);
  if (options_.pad_to == PadTo::pack) {
    batch.positions.resize(positions);
    auto next = batch.positions.begin();
    for (const std::int64_t length : documents(rows, shape)) {
      std::iota(next, next + length, 0);
      next += length;
      ++batch.documents;
    }
  }
  batch.padded = static_cast<std::int64_t>(positions) - batch.real;
  return batch;
}

// Copies the samples of a row, one after another, starting at position `at`.
void Batches::place(const Row& row, std::size_t at, MicroBatch& batch) const {
  for (const std::uint32_t index : row) {
    const auto length = static_cast<std::size_t>(dataset_.length(index));
    dataset_.read(index, std::span(batch.tokens).subspan(at, length),
                  std::span(batch.labels).subspan(at, length));
    at += length;
    batch.valid += dataset_.valid(index);
    batch.real += static_cast<std::int64_t>(length);
  }
}

}  // namespace train
