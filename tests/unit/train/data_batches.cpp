#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <set>

#include "data/batches.hpp"
#include "data/random.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using train::Batches;
using train::BatchOptions;
using train::Dataset;
using train::ignored_label;
using train::PadTo;
using train_test::failure_of;

// Returns a data set in which sample i has 3 + (7 i) mod 40 tokens, all equal to 1000 + i. The
// first i mod 3 labels of sample i are ignored.
Dataset numbered(int size) {
  Dataset data("numbered");
  for (int i = 0; i < size; ++i) {
    const auto length = static_cast<std::size_t>(3 + (7 * i) % 40);
    const std::vector<std::int32_t> tokens(length, 1000 + i);
    std::vector<std::int32_t> labels(length, 1000 + i);
    std::fill_n(labels.begin(), i % 3, ignored_label);
    data.add(tokens, labels);
  }
  return data;
}

// Returns the numbers of the samples that a micro batch contains, without padded rows.
std::vector<int> samples_in(const train::MicroBatch& batch) {
  std::vector<int> samples;
  for (std::int32_t row = 0; row < batch.rows; ++row) {
    const auto first = batch.tokens[static_cast<std::size_t>(row * batch.seq)];
    if (first >= 1000) samples.push_back(first - 1000);
  }
  return samples;
}

void check_consistent(const train::MicroBatch& batch) {
  const auto positions = static_cast<std::size_t>(batch.rows) * static_cast<std::size_t>(batch.seq);
  REQUIRE(batch.tokens.size() == positions);
  REQUIRE(batch.labels.size() == positions);
  CHECK(batch.real + batch.padded == static_cast<std::int64_t>(positions));
  const auto valid = static_cast<std::int64_t>(positions) -
                     std::count(batch.labels.begin(), batch.labels.end(), ignored_label);
  CHECK(valid == batch.valid);
  for (std::size_t t = 0; t < positions; ++t) {
    if (batch.tokens[t] < 1000) CHECK(batch.labels[t] == ignored_label);
  }
}

}  // namespace

TEST_CASE("order: a permutation, by seed and epoch") {
  for (const int size : {1, 2, 10, 1000}) {
    auto order = train::epoch_order(size, 3, 0);
    CHECK(order == train::epoch_order(size, 3, 0));
    std::sort(order.begin(), order.end());
    std::vector<std::uint32_t> all(static_cast<std::size_t>(size));
    std::iota(all.begin(), all.end(), 0U);
    CHECK(order == all);
  }
  CHECK(train::epoch_order(1000, 3, 0) != train::epoch_order(1000, 3, 1));
  CHECK(train::epoch_order(1000, 3, 0) != train::epoch_order(1000, 4, 0));
}

TEST_CASE("order: every place is about equally likely") {
  // Three items have 6 orders. Over 6,000 seeds, each order should appear about 1,000 times, with a
  // standard deviation of 29.
  std::vector<int> counts(27, 0);
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    const auto order = train::epoch_order(3, seed, 0);
    ++counts[order[0] * 9 + order[1] * 3 + order[2]];
  }
  for (const int n : counts) CHECK((n == 0 || (n > 850 && n < 1150)));
}

TEST_CASE("random: streams, indices and seeds differ; the values are pinned") {
  std::set<std::uint64_t> values;
  for (std::uint64_t seed : {0U, 1U}) {
    for (const auto stream : {train::RandomStream::shuffle, train::RandomStream::copy_tokens}) {
      for (std::int64_t index : {0, 1}) {
        const train::CounterRandom random({seed, stream, index});
        values.insert(random.bits(0));
        values.insert(random.bits(1));
      }
    }
  }
  CHECK(values.size() == 16);
  // These values must not change: other values would change the order of samples and every demo and
  // synthetic run, and would break resuming.
  CHECK(train::epoch_order(8, 42, 0) == std::vector<std::uint32_t>{7, 5, 0, 6, 4, 1, 2, 3});
}

TEST_CASE("step: the same samples for every number of ranks, each once per epoch") {
  const auto data = numbered(23);
  for (const std::int64_t global_batch : {1, 4, 5, 23, 40}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (const int micro_batch : {1, 2, 3}) {
        CAPTURE(global_batch);
        CAPTURE(ranks);
        CAPTURE(micro_batch);
        const BatchOptions options{
            .global_batch = global_batch, .micro_batch = micro_batch, .seq = 48, .seed = 9};
        const auto order = train::epoch_order(23, 9, 2);
        std::vector<int> seen;
        for (std::int64_t s = 0; s < Batches(data, options, {}).steps_per_epoch(); ++s) {
          for (int rank = 0; rank < ranks; ++rank) {
            Batches batches(data, options, {rank, ranks});
            const auto step = batches.step({2, s});
            for (int m = 0; m < step.micro_batches; ++m) {
              const auto batch = batches.micro_batch(step, m);
              const auto samples = samples_in(batch);
              seen.insert(seen.end(), samples.begin(), samples.end());
            }
          }
        }
        CHECK(std::equal(seen.begin(), seen.end(), order.begin(), order.end(),
                         [](int a, std::uint32_t b) { return a == static_cast<int>(b); }));
      }
    }
  }
}

TEST_CASE("step: totals agree on all ranks and with what the ranks compute") {
  const auto data = numbered(23);
  for (const auto pad_to : {PadTo::longest, PadTo::seq}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      CAPTURE(ranks);
      const BatchOptions options{
          .global_batch = 7, .micro_batch = 2, .seq = 50, .pad_token = 9, .pad_to = pad_to};
      for (std::int64_t s = 0; s < 4; ++s) {
        std::int64_t valid = 0;
        std::int64_t real = 0;
        std::int64_t padded = 0;
        std::optional<train::StepPlan> first;
        for (int rank = 0; rank < ranks; ++rank) {
          Batches batches(data, options, {rank, ranks});
          const auto step = batches.step({0, s});
          if (!first) first = step;
          CHECK(step.samples == (s < 3 ? 7 : 2));
          CHECK(step.valid == first->valid);
          CHECK(step.real == first->real);
          CHECK(step.padded == first->padded);
          CHECK(step.micro_batches == first->micro_batches);
          CHECK(step.shapes == first->shapes);
          for (int m = 0; m < step.micro_batches; ++m) {
            const auto batch = batches.micro_batch(step, m);
            check_consistent(batch);
            CHECK(batch.rows == step.micro_rows);
            CHECK(step.micro_rows <= 2);
            CHECK(train::RowShape{batch.rows, batch.seq} ==
                  step.shapes[static_cast<std::size_t>(rank * step.micro_batches + m)]);
            valid += batch.valid;
            real += batch.real;
            padded += batch.padded;
          }
        }
        CHECK(valid == first->valid);
        CHECK(real == first->real);
        CHECK(padded == first->padded);
      }
    }
  }
}

TEST_CASE(
    "step: uneven shares differ by one, micro batches are equal, short ranks get empty ones") {
  const auto data = numbered(30);
  const BatchOptions options{.global_batch = 9, .micro_batch = 2, .seq = 48, .pad_token = 7};
  std::vector<std::size_t> shares;
  for (int rank = 0; rank < 4; ++rank) {
    Batches batches(data, options, {rank, 4});
    const auto step = batches.step({0, 0});
    // Rank 0 has 3 samples, so it needs two micro batches of at most 2 samples each.
    CHECK(step.micro_batches == 2);
    shares.push_back(step.rows.size());
    const auto last = batches.micro_batch(step, 1);
    if (rank == 0) {
      CHECK(samples_in(last).size() == 1);
    } else {
      CHECK(last.valid == 0);
      CHECK(last.real == 0);
      CHECK(last.rows == 2);
      CHECK(last.seq == train::row_multiple);
      CHECK(std::count(last.tokens.begin(), last.tokens.end(), 7) == 32);
      CHECK(std::count(last.labels.begin(), last.labels.end(), ignored_label) == 32);
    }
  }
  CHECK(shares == std::vector<std::size_t>{3, 2, 2, 2});
}

TEST_CASE("step: rows are spread evenly over micro batches, unless all have one shape") {
  const auto data = numbered(30);
  const auto rows_of = [&](std::int64_t samples, PadTo pad_to) {
    const BatchOptions options{
        .global_batch = samples, .micro_batch = 4, .seq = 64, .pad_to = pad_to};
    Batches batches(data, options, {0, 1});
    const auto step = batches.step({0, 0});
    std::vector<std::int32_t> rows;
    std::size_t found = 0;
    for (int m = 0; m < step.micro_batches; ++m) {
      const auto batch = batches.micro_batch(step, m);
      rows.push_back(batch.rows);
      if (pad_to != PadTo::pack) found += samples_in(batch).size();
    }
    if (pad_to != PadTo::pack) CHECK(found == static_cast<std::size_t>(samples));
    return rows;
  };
  using Rows = std::vector<std::int32_t>;
  CHECK(rows_of(1, PadTo::longest) == Rows{1});
  CHECK(rows_of(5, PadTo::longest) == Rows{3, 3});
  CHECK(rows_of(8, PadTo::longest) == Rows{4, 4});
  CHECK(rows_of(9, PadTo::longest) == Rows{3, 3, 3});
  CHECK(rows_of(5, PadTo::seq) == Rows{4, 4});
  CHECK(rows_of(1, PadTo::pack) == Rows{1});
}

TEST_CASE("rows: longest rounds up to 16 and never beyond seq") {
  Dataset data("two");
  const std::vector<std::int32_t> tokens(17, 1000);
  data.add(tokens, tokens);
  const auto seq_of = [&](std::int32_t seq, PadTo pad_to) {
    Batches batches(data, {.global_batch = 1, .seq = seq, .pad_to = pad_to}, {});
    const auto step = batches.step({0, 0});
    return batches.micro_batch(step, 0).seq;
  };
  CHECK(seq_of(64, PadTo::longest) == 32);
  CHECK(seq_of(20, PadTo::longest) == 20);
  CHECK(seq_of(17, PadTo::longest) == 17);
  CHECK(seq_of(64, PadTo::seq) == 64);
}

TEST_CASE("position: steps of a run, epoch by epoch") {
  const auto data = numbered(10);
  const Batches batches(data, {.global_batch = 4, .seq = 48}, {});
  CHECK(batches.steps_per_epoch() == 3);
  for (std::int64_t n = 0; n <= 10; ++n) {
    CHECK(batches.position(n) == train::Position{n / 3, n % 3});
  }
}

TEST_CASE("options: out of range is refused") {
  const auto data = numbered(10);
  const auto refused = [&](const BatchOptions& options, train::Share share) {
    const auto failure = failure_of([&] { Batches(data, options, share); });
    return failure.thrown && failure.code == ErrorCode::invalid_argument;
  };
  CHECK(refused({.global_batch = 0, .seq = 48}, {}));
  CHECK(refused({.micro_batch = 0, .seq = 48}, {}));
  CHECK(refused({.seq = 0}, {}));
  CHECK(refused({.seq = 20}, {}));  // one sample is longer than 20 tokens
  CHECK(refused({.seq = 48}, {2, 2}));
  CHECK(refused({.seq = 48}, {-1, 2}));
  CHECK(refused({.micro_batch = 100'000, .seq = 100'000}, {}));
  const Dataset empty("empty");
  CHECK(failure_of([&] { Batches(empty, {}, {}); }).thrown);
  Batches batches(data, {.global_batch = 5, .seq = 48}, {});
  CHECK(failure_of([&] { (void)batches.step({0, 2}); }).says("an epoch has 2 steps"));
  CHECK(failure_of([&] { (void)batches.step({-1, 0}); }).thrown);
}

TEST_CASE("options: a huge global batch is one step of everything") {
  const auto data = numbered(10);
  Batches batches(data, {.global_batch = INT64_MAX, .micro_batch = 3, .seq = 48}, {1, 2});
  CHECK(batches.steps_per_epoch() == 1);
  CHECK(batches.step({0, 0}).rows.size() == 5);
}

TEST_CASE("packed: every sample appears once, with positions from 0") {
  const auto data = numbered(60);
  const BatchOptions options{
      .global_batch = 25, .micro_batch = 2, .seq = 64, .pad_token = 9, .pad_to = PadTo::pack};
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    std::set<int> seen;
    for (std::int64_t s = 0; s < 3; ++s) {
      std::int64_t computed = 0, longest_rows = 0;
      std::vector<std::int64_t> lengths;
      std::optional<train::StepPlan> first;
      for (int rank = 0; rank < ranks; ++rank) {
        Batches batches(data, options, {rank, ranks});
        const auto step = batches.step({0, s});
        if (!first) first = step;
        CHECK(step.shapes == first->shapes);
        CHECK(step.lengths == first->lengths);
        CHECK(step.micro_batches == first->micro_batches);
        longest_rows = std::max(longest_rows, static_cast<std::int64_t>(step.rows.size()));
        for (int m = 0; m < step.micro_batches; ++m) {
          const auto batch = batches.micro_batch(step, m);
          check_consistent(batch);
          REQUIRE(batch.positions.size() == batch.tokens.size());
          computed += batch.real + batch.padded;
          CHECK(batch.documents == std::ranges::count(batch.positions, 0));
          if (batch.padded >= train::document_multiple + batch.rows) {
            CHECK(batch.documents % train::document_multiple == 0);
          }
          for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
            const std::int32_t token = batch.tokens[t];
            const bool begins =
                t % static_cast<std::size_t>(batch.seq) == 0 || batch.tokens[t - 1] != token;
            if (batch.positions[t] == 0) lengths.push_back(0);
            ++lengths.back();
            if (begins || token >= 1000) {
              CHECK(batch.positions[t] == (begins ? 0 : batch.positions[t - 1] + 1));
            } else if (batch.positions[t] != 0) {
              CHECK(batch.positions[t] == batch.positions[t - 1] + 1);
            }
            if (!begins || token < 1000) continue;
            CHECK(seen.insert(token - 1000).second);
            // All tokens of the sample must be in the same row.
            const auto length = static_cast<std::size_t>(data.length(token - 1000));
            REQUIRE(t % static_cast<std::size_t>(batch.seq) + length <=
                    static_cast<std::size_t>(batch.seq));
            CHECK(batch.tokens[t + length - 1] == token);
          }
        }
      }
      CHECK(computed ==
            std::accumulate(first->lengths.begin(), first->lengths.end(), std::int64_t{0}));
      CHECK(first->real + first->padded == computed);
      CHECK(lengths == first->lengths);
      // The first two steps have 25 samples and the last step has 10, with 3 to 42 tokens each. In
      // rows of 64 tokens, packing must save about a quarter of the rows.
      CHECK(longest_rows < (s < 2 ? 25 : 10) * 3 / 4 / ranks + 2);
    }
    CHECK(seen.size() == 60);
  }
}

TEST_CASE("packed: best fit, longest first, and the order of samples in a row") {
  const std::vector<std::int64_t> lengths{4, 7, 3, 6, 5, 5, 10};
  std::vector<std::uint32_t> samples(lengths.size());
  std::iota(samples.begin(), samples.end(), 0U);
  const auto length = [&](std::uint32_t sample) { return lengths[sample]; };
  const std::vector<train::Row> expected{{6}, {1, 2}, {0, 3}, {4, 5}};
  CHECK(train::pack_rows(samples, length, 10) == expected);
  CHECK(train::pack_rows({}, length, 10).empty());
}

TEST_CASE("packed: only sufficient padding is cut into documents") {
  const auto data = numbered(1);
  const auto length = static_cast<std::int32_t>(data.length(0));
  for (const std::int32_t spare : {0, 1, 14, 15, 16}) {
    CAPTURE(spare);
    const BatchOptions options{.global_batch = 1, .seq = length + spare, .pad_to = PadTo::pack};
    Batches batches(data, options, {0, 1});
    const auto step = batches.step({0, 0});
    const auto batch = batches.micro_batch(step, 0);
    const std::int32_t padding = batch.seq - length;
    const std::int64_t documents =
        padding > 0 ? std::bit_floor(1U + static_cast<unsigned>(padding)) : 1;
    CHECK(batch.documents == std::min(documents, train::document_multiple));
    CHECK(step.lengths.size() == static_cast<std::size_t>(batch.documents));
    CHECK(batch.positions[static_cast<std::size_t>(length) - 1] == length - 1);
  }
}

TEST_CASE("packed: more ranks than samples, and names of pad_to") {
  const auto data = numbered(2);
  const BatchOptions options{.global_batch = 2, .seq = 64, .pad_to = PadTo::pack};
  Batches idle(data, options, {3, 4});
  const auto step = idle.step({0, 0});
  CHECK(step.rows.empty());
  const auto batch = idle.micro_batch(step, 0);
  CHECK(batch.seq == train::row_multiple);
  CHECK(batch.valid == 0);
  CHECK(batch.documents == train::document_multiple);
  CHECK(train::pad_to_from_name("pack") == PadTo::pack);
  CHECK(failure_of([] { train::pad_to_from_name("packed"); }).says("longest, seq or pack"));
}
