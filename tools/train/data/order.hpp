// The order of samples: which sample stands at which place of which epoch. It depends on the seed
// only, so every rank computes the same order, and a resumed run needs no state.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace train {

// A part of a dataset that is mixed with others: samples [first, first + size).
struct Portion {
  std::int64_t first = 0;
  std::int64_t size = 0;
  double weight = 1;
};

// The permutation of [0, size) that is epoch `epoch` under `seed`. Needs 4 bytes per sample.
std::vector<std::uint32_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

// A permutation of [0, size) that needs no memory: a Feistel network on the smallest even number of
// bits that holds `size`, applied again while the result lies outside [0, size).
class Permutation {
 public:
  // Precondition: 1 <= size < 2^62.
  Permutation(std::int64_t size, std::uint64_t key) noexcept;
  // Precondition: 0 <= place < size.
  std::int64_t operator()(std::int64_t place) const noexcept;

 private:
  std::uint64_t once(std::uint64_t value) const noexcept;

  std::uint64_t size_;
  std::uint64_t key_;
  unsigned half_ = 1;  // number of bits in each half of a value
};

// Where an epoch takes its samples from. A set that is not mixed is shuffled once per epoch. An
// epoch of a mixture has as many samples as all portions together. Each portion gives its share by
// weight, rounded to whole samples. A portion is shuffled, given out from first to last, and then
// shuffled again; the next epoch goes on where the last one ended. So a portion with a large weight
// is passed several times per epoch, and one with a small weight in part.
class SampleOrder {
 public:
  // Shuffles sets up to this size as a whole, and larger ones by Permutation.
  static constexpr std::int64_t largest_table = std::int64_t{1} << 22U;

  SampleOrder(std::int64_t size, std::vector<Portion> portions, std::uint64_t seed);

  // The samples at places [first, last) of an epoch. Preconditions: 0 <= epoch, and the places
  // exist.
  std::vector<std::uint32_t> samples(std::int64_t epoch, std::int64_t first, std::int64_t last);

  // Samples that portion `p` gives to each epoch. Precondition: there is more than one portion.
  std::int64_t given(std::size_t p) const noexcept { return counts_[p]; }

 private:
  std::int64_t mixed(std::int64_t epoch, std::int64_t place) const noexcept;

  std::int64_t size_;
  std::vector<Portion> portions_;
  std::vector<std::int64_t> counts_;
  std::uint64_t seed_;
  std::int64_t table_epoch_ = -1;
  std::vector<std::uint32_t> table_;
};

}  // namespace train
