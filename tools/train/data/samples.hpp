// Where the samples of a dataset are stored.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/order.hpp"

namespace train {

// Samples by index. Any thread may call all functions. Preconditions: 0 <= index < size().
class Samples {
 public:
  Samples() = default;
  Samples(const Samples&) = delete;
  Samples& operator=(const Samples&) = delete;
  virtual ~Samples() = default;

  virtual std::int64_t size() const noexcept = 0;
  virtual std::int64_t length(std::int64_t index) const noexcept = 0;
  virtual std::int64_t valid(std::int64_t index) const noexcept = 0;
  // The length of the longest sample.
  virtual std::int64_t longest() const noexcept = 0;
  // Writes tokens and labels of a sample; both spans have length(index) elements. Throws
  // Error(bad_data) if the file of the sample is damaged.
  virtual void read(std::int64_t index, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> labels) const = 0;
  // Hash of the contents.
  virtual std::uint64_t fingerprint() const noexcept = 0;
};

// Samples in memory.
class MemorySamples final : public Samples {
 public:
  // Copies both spans.
  void add(std::span<const std::int32_t> tokens, std::span<const std::int32_t> labels);

  std::int64_t size() const noexcept override { return static_cast<std::int64_t>(valid_.size()); }
  std::int64_t length(std::int64_t index) const noexcept override;
  std::int64_t valid(std::int64_t index) const noexcept override;
  std::int64_t longest() const noexcept override { return longest_; }
  void read(std::int64_t index, std::span<std::int32_t> tokens,
            std::span<std::int32_t> labels) const override;
  std::uint64_t fingerprint() const noexcept override;

 private:
  std::int64_t longest_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> labels_;
  // Index of each sample's first token, and the size of tokens_.
  std::vector<std::size_t> begin_{0};
  std::vector<std::int64_t> valid_;
};

// A set whose samples are those of other sets.
class BorrowedSamples : public Samples {
 public:
  std::int64_t length(std::int64_t index) const noexcept final;
  std::int64_t valid(std::int64_t index) const noexcept final;
  void read(std::int64_t index, std::span<std::int32_t> tokens,
            std::span<std::int32_t> labels) const final;

 protected:
  // The set of a sample, and the sample's index in it.
  struct Place {
    const Samples& rows;
    std::int64_t index;
  };
  virtual Place find(std::int64_t index) const noexcept = 0;
};

// Some samples of another set: places [first, first + size) of a permutation of it, which needs no
// memory.
class ChosenSamples final : public BorrowedSamples {
 public:
  ChosenSamples(std::shared_ptr<const Samples> rows, const Permutation& permutation,
                std::int64_t first, std::int64_t size)
      : rows_(std::move(rows)), permutation_(permutation), first_(first), size_(size) {}

  std::int64_t size() const noexcept override { return size_; }
  std::int64_t longest() const noexcept override { return rows_->longest(); }
  std::uint64_t fingerprint() const noexcept override;

 private:
  Place find(std::int64_t index) const noexcept override {
    return {*rows_, permutation_(first_ + index)};
  }

  std::shared_ptr<const Samples> rows_;
  Permutation permutation_;
  std::int64_t first_, size_;
};

// The samples of several sets, one set after another.
class JoinedSamples final : public BorrowedSamples {
 public:
  explicit JoinedSamples(std::vector<std::shared_ptr<const Samples>> sets);

  std::int64_t size() const noexcept override { return begin_.back(); }
  std::int64_t longest() const noexcept override;
  std::uint64_t fingerprint() const noexcept override;

 private:
  Place find(std::int64_t index) const noexcept override;

  std::vector<std::shared_ptr<const Samples>> sets_;
  std::vector<std::int64_t> begin_{0};
};

}  // namespace train
