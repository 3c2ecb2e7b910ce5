#include <algorithm>
#include <cmath>

#include "atoll/schedule.hpp"
#include "core/errors.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {
namespace {

static_assert(bucket_granularity == norm_block,
              "a block of the gradient norm must not span two shards");

// This limit ensures that rounding up and conversion to bytes do not overflow 64 bits.
constexpr std::uint64_t most_elements = std::uint64_t{1} << 60;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void check_size(std::uint64_t offset, std::uint64_t count, std::uint64_t shards) {
  if (shards <= most_elements / bucket_granularity && offset <= most_elements &&
      count <= most_elements - offset) {
    return;
  }
  throw invalid("a bucket is too large: it has a tensor of {} elements at offset {}, in {} shards",
                count, offset, shards);
}

}  // namespace

BucketLayout plan_bucket(std::span<const std::uint64_t> counts, std::uint64_t shards) {
  if (shards == 0) throw invalid("plan_bucket: the number of shards must be at least 1");
  BucketLayout layout;
  layout.shards = shards;
  std::uint64_t end = 0;
  for (const std::uint64_t count : counts) {
    const std::uint64_t offset = round_up(end, bucket_alignment);
    check_size(offset, count, shards);
    layout.slots.push_back({offset, count});
    end = offset + count;
  }
  layout.elements = round_up(end, bucket_granularity * shards);
  return layout;
}

BucketPlan plan_buckets(std::span<const std::uint64_t> counts, DType dtype, std::uint64_t max_bytes,
                        std::uint64_t shards) {
  if (shards == 0) throw invalid("plan_buckets: the number of shards must be at least 1");
  BucketPlan plan;
  std::size_t first = 0;  // index of the first tensor in the current bucket
  std::uint64_t end = 0;
  const auto close = [&](std::size_t last) {
    if (first == last) return;
    plan.buckets.push_back(plan_bucket(counts.subspan(first, last - first), shards));
    for (const BucketSlot& slot : plan.buckets.back().slots) {
      plan.locations.push_back({plan.buckets.size() - 1, slot});
    }
    first = last;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::uint64_t offset = round_up(end, bucket_alignment);
    check_size(offset, counts[i], shards);
    const std::uint64_t padded = round_up(offset + counts[i], bucket_granularity * shards);
    if (padded > max_bytes / size_of(dtype)) {
      close(i);
      offset = 0;
    }
    end = offset + counts[i];
  }
  close(counts.size());
  return plan;
}

std::uint64_t bucket_bytes(const Axis& axis, double latency_share) {
  require(latency_share > 0 && latency_share < 1,
          "bucket_bytes: latency_share is {}, but must be between 0 and 1", latency_share);
  if (axis.size() < 2 || !axis.rate.is_known()) return default_bucket_bytes;
  const double latency_bytes = axis.rate.latency_us * 1e-6 * axis.rate.gbyte_s * 1e9;
  const double bytes = (1 - latency_share) / latency_share * latency_bytes;
  constexpr double mib = 1 << 20;
  const double whole =
      std::clamp(std::ceil(bytes / mib) * mib, static_cast<double>(least_bucket_bytes),
                 static_cast<double>(most_bucket_bytes));
  return static_cast<std::uint64_t>(whole);
}

std::vector<BucketSlot> BucketLayout::gaps() const {
  std::vector<BucketSlot> found;
  std::uint64_t end = 0;
  for (const auto& slot : slots) {
    if (slot.offset > end) found.push_back({end, slot.offset - end});
    end = slot.offset + slot.count;
  }
  if (elements > end) found.push_back({end, elements - end});
  return found;
}

}  // namespace atoll_v1::atoll
