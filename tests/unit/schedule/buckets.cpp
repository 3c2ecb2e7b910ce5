// Tests of plan_bucket(), plan_buckets() and bucket_bytes().
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/schedule.hpp"

using atoll::Axis;
using atoll::bucket_bytes;
using atoll::BucketPlan;
using atoll::DType;
using atoll::plan_buckets;

namespace {

using Counts = std::vector<std::uint64_t>;
constexpr std::uint64_t mib = 1 << 20;

// Checks that locations match the layouts, that tensors are in order, and that no bucket is larger
// than necessary.
void check_plan(const BucketPlan& plan, const Counts& counts, DType dtype, std::uint64_t max_bytes,
                std::uint64_t shards) {
  REQUIRE(plan.locations.size() == counts.size());
  std::size_t tensor = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const auto& bucket = plan.buckets[b];
    CHECK(bucket.shards == shards);
    CHECK(bucket.elements % (shards * atoll::bucket_granularity) == 0);
    REQUIRE_FALSE(bucket.slots.empty());
    std::size_t real = 0;
    for (const auto& slot : bucket.slots) {
      CHECK(plan.locations[tensor].bucket == b);
      CHECK(plan.locations[tensor].slot.offset == slot.offset);
      CHECK(slot.count == counts[tensor]);
      CHECK(slot.offset + slot.count <= bucket.elements);
      real += slot.count > 0 ? 1 : 0;
      ++tensor;
    }
    if (real > 1) CHECK(bucket.elements * size_of(dtype) <= max_bytes);
  }
  CHECK(tensor == counts.size());
}

Axis axis_of(int ranks, double gbyte_s, double latency_us) {
  Axis axis;
  axis.ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(axis.ranks.begin(), axis.ranks.end(), 0);
  axis.rate = {.gbyte_s = gbyte_s, .latency_us = latency_us};
  return axis;
}

}  // namespace

TEST_CASE("a bucket aligns tensors and divides evenly into shards of whole blocks") {
  const std::vector<std::uint64_t> counts{10, 64, 5000, 1, 0};
  const auto one = atoll::plan_bucket(counts, 1);
  for (const std::uint64_t shards : {1u, 2u, 3u, 4u, 7u}) {
    const auto layout = atoll::plan_bucket(counts, shards);
    CHECK(layout.elements % (shards * atoll::bucket_granularity) == 0);
    CHECK(layout.shard_elements() * shards == layout.elements);
    std::vector<int> covered(layout.elements, 0);  // tensors and gaps tile the bucket
    const auto mark = [&](const atoll::BucketSlot& slot) {
      for (std::uint64_t i = 0; i < slot.count; ++i) ++covered[slot.offset + i];
    };
    for (std::size_t i = 0; i < counts.size(); ++i) {
      CHECK(layout.slots[i].offset % atoll::bucket_alignment == 0);
      CHECK(layout.slots[i].offset == one.slots[i].offset);  // for any number of shards
      CHECK(layout.slots[i].count == counts[i]);
      mark(layout.slots[i]);
    }
    for (const auto& gap : layout.gaps()) mark(gap);
    CHECK(std::ranges::all_of(covered, [](int n) { return n == 1; }));
  }
  CHECK_THROWS_AS(atoll::plan_bucket(counts, 0), atoll::Error);
}

TEST_CASE("tensors are packed in order, none is split") {
  const Counts counts{7, 104'729, 1, 0, 1'299'709, 65'537, 2, 0, 524'287, 524'287};
  for (const std::uint64_t shards : {1u, 2u, 3u, 7u}) {
    for (const std::uint64_t max_bytes : {std::uint64_t{0}, mib / 2, mib, 4 * mib, 1000 * mib}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const BucketPlan plan = plan_buckets(counts, dtype, max_bytes, shards);
        check_plan(plan, counts, dtype, max_bytes, shards);
        if (max_bytes == 1000 * mib) CHECK(plan.buckets.size() == 1);
      }
    }
  }
}

TEST_CASE("a bucket is closed only when the next tensor does not fit") {
  const std::uint64_t quarter = mib / 4 / sizeof(float);
  const BucketPlan plan = plan_buckets(Counts(9, quarter), DType::f32, mib);
  REQUIRE(plan.buckets.size() == 3);
  CHECK(plan.buckets[0].slots.size() == 4);
  CHECK(plan.buckets[0].elements * sizeof(float) == mib);
  CHECK(plan.buckets[2].slots.size() == 1);
  // With 16 bits per element, half as many buckets are enough.
  CHECK(plan_buckets(Counts(9, quarter), DType::bf16, mib).buckets.size() == 2);
  // A tensor larger than the limit is alone in its bucket.
  const BucketPlan large = plan_buckets(Counts{10, 3 * mib, 10, 10}, DType::f32, mib);
  REQUIRE(large.buckets.size() == 3);
  CHECK(large.buckets[1].slots.size() == 1);
  CHECK(large.buckets[2].slots.size() == 2);
}

TEST_CASE("plans without tensors, with empty tensors, and with too many elements") {
  CHECK(plan_buckets({}, DType::f32, mib).buckets.empty());
  const BucketPlan empty = plan_buckets(Counts{0, 0}, DType::f32, mib, 3);
  REQUIRE(empty.buckets.size() == 1);
  CHECK(empty.buckets[0].elements == 0);
  CHECK(empty.locations.size() == 2);
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  CHECK_THROWS_AS(plan_buckets(Counts{1}, DType::f32, mib, 0), atoll::Error);
  CHECK_THROWS_AS(plan_buckets(Counts{1, most}, DType::f32, most), atoll::Error);
  CHECK_THROWS_AS(plan_buckets(Counts{1}, DType::f32, most, most), atoll::Error);
  CHECK_THROWS_AS(atoll::plan_bucket(Counts{most / 2, most / 2, 9}, 1), atoll::Error);
  const std::uint64_t large = std::uint64_t{1} << 40;  // 2^40 elements of f32 are 4 TiB
  CHECK(plan_buckets(Counts{large, large}, DType::f32, most).buckets.size() == 1);
}

TEST_CASE("bucket_bytes() keeps latency a small share of the time of a collective") {
  // At 1 GB/s, 19 MB take 19 ms, so the latency of 1 ms is 5 % of the whole time.
  const Axis slow = axis_of(4, 1, 1000);
  const std::uint64_t bytes = bucket_bytes(slow);
  CHECK(bytes >= 19'000'000);
  CHECK(bytes < 19'000'000 + mib);
  CHECK(bytes % mib == 0);
  CHECK(bucket_bytes(slow, 0.5) == mib);
  CHECK(bucket_bytes(slow, 0.01) >= 99'000'000);
}

TEST_CASE("the bounds of bucket_bytes() and its default") {
  CHECK(bucket_bytes(axis_of(2, 0.1, 1)) == atoll::least_bucket_bytes);
  CHECK(bucket_bytes(axis_of(8, 360, 100)) == atoll::most_bucket_bytes);
  CHECK(bucket_bytes(axis_of(8, 0, 0)) == atoll::default_bucket_bytes);
  CHECK(bucket_bytes(axis_of(1, std::numeric_limits<double>::infinity(), 0)) ==
        atoll::default_bucket_bytes);
  for (const double share : {0.0, 1.0, -0.1, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_AS(bucket_bytes(axis_of(2, 1, 1), share), atoll::Error);
  }
}
