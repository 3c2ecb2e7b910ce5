#include "data/samples.hpp"

#include <algorithm>

#include "data/dataset.hpp"
#include "data/random.hpp"

namespace train {

void MemorySamples::add(std::span<const std::int32_t> tokens,
                        std::span<const std::int32_t> labels) {
  const auto valid = static_cast<std::int64_t>(labels.size()) -
                     std::count(labels.begin(), labels.end(), ignored_label);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  begin_.push_back(tokens_.size());
  valid_.push_back(valid);
  longest_ = std::max(longest_, static_cast<std::int64_t>(tokens.size()));
}

std::int64_t MemorySamples::length(std::int64_t index) const noexcept {
  const auto i = static_cast<std::size_t>(index);
  return static_cast<std::int64_t>(begin_[i + 1] - begin_[i]);
}

std::int64_t MemorySamples::valid(std::int64_t index) const noexcept {
  return valid_[static_cast<std::size_t>(index)];
}

void MemorySamples::read(std::int64_t index, std::span<std::int32_t> tokens,
                         std::span<std::int32_t> labels) const {
  const std::size_t begin = begin_[static_cast<std::size_t>(index)];
  std::ranges::copy(std::span(tokens_).subspan(begin, tokens.size()), tokens.begin());
  std::ranges::copy(std::span(labels_).subspan(begin, labels.size()), labels.begin());
}

std::uint64_t MemorySamples::fingerprint() const noexcept {
  std::uint64_t hash = scramble(valid_.size());
  const auto mix = [&hash](std::uint64_t value) { hash = scramble(hash ^ value) + value; };
  for (const std::size_t begin : begin_) mix(begin);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    mix((static_cast<std::uint64_t>(static_cast<std::uint32_t>(tokens_[i])) << 32U) |
        static_cast<std::uint32_t>(labels_[i]));
  }
  return hash;
}

std::int64_t BorrowedSamples::length(std::int64_t index) const noexcept {
  const auto [rows, i] = find(index);
  return rows.length(i);
}

std::int64_t BorrowedSamples::valid(std::int64_t index) const noexcept {
  const auto [rows, i] = find(index);
  return rows.valid(i);
}

void BorrowedSamples::read(std::int64_t index, std::span<std::int32_t> tokens,
                           std::span<std::int32_t> labels) const {
  const auto [rows, i] = find(index);
  rows.read(i, tokens, labels);
}

std::uint64_t ChosenSamples::fingerprint() const noexcept {
  const auto first = static_cast<std::uint64_t>(first_), size = static_cast<std::uint64_t>(size_);
  return scramble(rows_->fingerprint() ^ scramble(scramble(first) + size));
}

JoinedSamples::JoinedSamples(std::vector<std::shared_ptr<const Samples>> sets)
    : sets_(std::move(sets)) {
  for (const auto& set : sets_) begin_.push_back(begin_.back() + set->size());
}

JoinedSamples::Place JoinedSamples::find(std::int64_t index) const noexcept {
  const auto next = std::upper_bound(begin_.begin(), begin_.end(), index);
  const auto set = static_cast<std::size_t>(next - begin_.begin()) - 1;
  return {*sets_[set], index - begin_[set]};
}

std::int64_t JoinedSamples::longest() const noexcept {
  std::int64_t longest = 0;
  for (const auto& set : sets_) longest = std::max(longest, set->longest());
  return longest;
}

std::uint64_t JoinedSamples::fingerprint() const noexcept {
  std::uint64_t hash = scramble(sets_.size());
  for (const auto& set : sets_) hash = scramble(hash ^ set->fingerprint()) + 1;
  return hash;
}

}  // namespace train
