#include "loop/rank_figures.hpp"

namespace train {

FigureExchange::FigureExchange(const atoll::Mesh& mesh, const atoll::Device& device,
                               const std::string& backend) {
  const atoll::Axis& world = mesh.axis("world");
  ranks_.resize(static_cast<std::size_t>(world.size()));
  memory_ = device.allocate(ranks_.size() * sizeof(RankFigures));
  if (world.size() == 1) return;
  totals_.emplace(atoll::Communicator::open(
      world, {.name = "totals", .backend = backend, .device = device, .levels = false}));
}

std::span<const RankFigures> FigureExchange::exchange(const RankFigures& mine,
                                                      atoll::Stream& compute) {
  constexpr std::uint64_t each = sizeof(RankFigures) / sizeof(double);
  const auto rank = totals_ ? static_cast<std::size_t>(totals_->rank()) : 0;
  const atoll::View whole = memory_.view(atoll::DType::f64);
  const atoll::View part = whole.part(each * rank, each);
  ranks_[rank] = mine;
  if (!totals_) return ranks_;
  compute.copy(part.data, &ranks_[rank], sizeof(mine));
  totals_->all_gather(part, whole, compute).wait(compute);
  compute.copy(ranks_.data(), whole.data, whole.bytes());
  compute.synchronize();
  return ranks_;
}

}  // namespace train
