#include <algorithm>

#include "atoll/schedule.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {
namespace {

static_assert(bucket_granularity == norm_block, "a norm block never spans two shards");

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

BucketLayout plan_bucket(std::span<const std::uint64_t> counts, std::uint64_t shards) {
  if (shards == 0) throw Error(ErrorCode::invalid_argument, "plan_bucket: zero shards");
  BucketLayout layout;
  layout.shards = shards;
  std::uint64_t end = 0;
  for (const std::uint64_t count : counts) {
    const std::uint64_t offset = round_up(end, bucket_alignment);
    layout.slots.push_back({offset, count});
    end = offset + count;
  }
  layout.elements = round_up(end, bucket_granularity * shards);
  return layout;
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
