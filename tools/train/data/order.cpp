#include "data/order.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/random.hpp"

namespace train {
namespace {

constexpr int rounds = 6;

std::uint64_t key_of(std::uint64_t seed, RandomStream stream, std::int64_t index) noexcept {
  return CounterRandom({seed, stream, index}).bits(0);
}

// Divides `total` by weight, rounded down; the largest fractions get the samples that are left.
std::vector<std::int64_t> divide(std::int64_t total, const std::vector<Portion>& portions) {
  double weights = 0;
  for (const Portion& portion : portions) weights += portion.weight;
  std::vector<std::int64_t> counts;
  std::vector<std::pair<double, std::size_t>> fractions;
  std::int64_t left = total;
  for (std::size_t p = 0; p < portions.size(); ++p) {
    const double exact = static_cast<double>(total) * portions[p].weight / weights;
    counts.push_back(static_cast<std::int64_t>(std::floor(exact)));
    fractions.emplace_back(std::floor(exact) - exact, p);
    left -= counts.back();
  }
  std::ranges::sort(fractions);
  for (std::size_t i = 0; left > 0; ++i, --left) ++counts[fractions[i % fractions.size()].second];
  return counts;
}

}  // namespace

std::vector<std::uint32_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::uint32_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0U);
  const CounterRandom random({seed, RandomStream::shuffle, epoch});
  for (std::size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[static_cast<std::size_t>(random.below(left, left))]);
  }
  return order;
}

Permutation::Permutation(std::int64_t size, std::uint64_t key) noexcept
    : size_(static_cast<std::uint64_t>(size)), key_(key) {
  while ((std::uint64_t{1} << (2 * half_)) < size_) ++half_;
}

std::uint64_t Permutation::once(std::uint64_t value) const noexcept {
  const std::uint64_t low = (std::uint64_t{1} << half_) - 1;
  std::uint64_t left = value >> half_, right = value & low;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::uint64_t mixed = scramble(key_ ^ scramble(right * rounds + round + 1)) & low;
    left = std::exchange(right, left ^ mixed);
  }
  return left << half_ | right;
}

std::int64_t Permutation::operator()(std::int64_t place) const noexcept {
  auto value = once(static_cast<std::uint64_t>(place));
  while (value >= size_) value = once(value);
  return static_cast<std::int64_t>(value);
}

SampleOrder::SampleOrder(std::int64_t size, std::vector<Portion> portions, std::uint64_t seed)
    : size_(size), portions_(std::move(portions)), seed_(seed) {
  if (portions_.size() > 1) counts_ = divide(size, portions_);
}

std::int64_t SampleOrder::mixed(std::int64_t epoch, std::int64_t place) const noexcept {
  const Permutation shuffle(size_, key_of(seed_, RandomStream::shuffle, epoch));
  std::int64_t left = shuffle(place);
  std::size_t p = 0;
  while (left >= counts_[p]) left -= counts_[p++];
  const Portion& portion = portions_[p];
  const std::int64_t drawn = epoch * counts_[p] + left;
  const std::uint64_t seed = scramble(seed_ + p + 1);
  const Permutation pass(portion.size, key_of(seed, RandomStream::mixture, drawn / portion.size));
  return portion.first + pass(drawn % portion.size);
}

std::vector<std::uint32_t> SampleOrder::samples(std::int64_t epoch, std::int64_t first,
                                                std::int64_t last) {
  std::vector<std::uint32_t> chosen;
  chosen.reserve(static_cast<std::size_t>(last - first));
  const bool mixes = portions_.size() > 1;
  if (!mixes && size_ <= largest_table) {
    if (table_epoch_ != epoch) {
      table_ = epoch_order(size_, seed_, epoch);
      table_epoch_ = epoch;
    }
    chosen.assign(table_.begin() + first, table_.begin() + last);
    return chosen;
  }
  const Permutation shuffle(size_, key_of(seed_, RandomStream::shuffle, epoch));
  for (std::int64_t place = first; place < last; ++place) {
    chosen.push_back(static_cast<std::uint32_t>(mixes ? mixed(epoch, place) : shuffle(place)));
  }
  return chosen;
}

}  // namespace train
