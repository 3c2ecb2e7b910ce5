#include "loop/norms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>

namespace train {
namespace {

namespace fsdp = atoll::fsdp;

enum Kind {
  local,
  gradient,
  weight,
  kinds
};

// Weight of the newest sample in the averages of the noise scale, after the first samples.
constexpr double newest = 0.1;

}  // namespace

void NoiseScale::add(const Sample& small, const Sample& large) {
  if (small.tokens <= 0 || small.tokens >= large.tokens) return;
  const double signal =
      (large.tokens * large.squares - small.tokens * small.squares) / (large.tokens - small.tokens);
  const double noise = (small.squares - large.squares) / (1 / small.tokens - 1 / large.tokens);
  ++samples_;
  const double part = std::max(newest, 1 / static_cast<double>(samples_));
  signal_ += part * (signal - signal_);
  noise_ += part * (noise - noise_);
}

std::optional<double> NoiseScale::tokens() const {
  if (samples_ == 0 || signal_ <= 0 || noise_ <= 0) return std::nullopt;
  return noise_ / signal_;
}

// The sums of squares that a rank sends to the other ranks.
struct NormLog::Squares {
  double local = 0;   // of the gradient of the rank's tokens, divided by the tokens of the step
  double tokens = 0;  // that this gradient covers
  std::vector<double> gradient, weight;  // of this rank's shards, by unit

  std::string encode() const {
    std::string text = fmt::format("{} {}", local, tokens);
    for (std::size_t u = 0; u < gradient.size(); ++u) {
      text += fmt::format(" {} {}", gradient[u], weight[u]);
    }
    return text;
  }
  static Squares decode(const std::string& text, std::size_t units) {
    std::istringstream in(text);
    // Unlike operator>>, strtod reads "inf" and "nan".
    const auto next = [&] {
      std::string word;
      in >> word;
      return std::strtod(word.c_str(), nullptr);
    };
    Squares squares;
    squares.local = next();
    squares.tokens = next();
    for (std::size_t u = 0; u < units; ++u) {
      squares.gradient.push_back(next());
      squares.weight.push_back(next());
    }
    return squares;
  }
};

NormLog::NormLog(atoll::World& world, fsdp::Engine& engine,
                 std::shared_ptr<muon::Arithmetic> arithmetic, std::int64_t every)
    : world_(world), engine_(engine), arithmetic_(std::move(arithmetic)), every_(every) {
  for (const auto& unit : engine.units()) units_.push_back(unit.get());
  memory_ = engine.device().allocate(kinds * units_.size() * sizeof(muon::Figures));
}

std::size_t NormLog::index_of(const fsdp::Unit& unit) const {
  return static_cast<std::size_t>(std::ranges::find(units_, &unit) - units_.begin());
}

muon::Figures* NormLog::figures(int kind, std::size_t unit) const {
  return static_cast<muon::Figures*>(memory_.data()) +
         static_cast<std::size_t>(kind) * units_.size() + unit;
}

ObserveGradients NormLog::observer(atoll::Stream& compute, std::int64_t before, std::int64_t last) {
  accumulated_ = false;
  before_ = before;
  last_ = last;
  return [this, &compute](const fsdp::Unit& unit, const fsdp::BackwardScope& scope) {
    std::vector<atoll::ConstView> views;
    for (const fsdp::ParamSpec& param : unit.params()) {
      if (!param.trainable) continue;
      const fsdp::Gradient found = scope.grad(param.name);
      views.emplace_back(found.view);
      // Only the first unit, whose table a tied head also uses, can accumulate within a pass.
      accumulated_ |= &unit != units_.front() && found.mode == fsdp::WriteMode::accumulate;
    }
    arithmetic_->sum_squares(compute, views, figures(local, index_of(unit)));
  };
}

void NormLog::complete(StepRecord& record, atoll::Stream& compute) {
  std::vector<std::vector<atoll::ConstView>> gradients(units_.size()), weights(units_.size());
  for (const fsdp::Segment& segment : engine_.segments()) {
    if (segment.gradient.count == 0) continue;
    gradients[index_of(*segment.unit)].emplace_back(segment.gradient);
    weights[index_of(*segment.unit)].emplace_back(segment.values);
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    arithmetic_->sum_squares(compute, gradients[u], figures(gradient, u));
    arithmetic_->sum_squares(compute, weights[u], figures(weight, u));
  }
  std::vector<muon::Figures> host(kinds * units_.size());
  compute.copy(host.data(), memory_.data(), host.size() * sizeof(muon::Figures));
  compute.synchronize();
  Squares mine;
  mine.tokens = static_cast<double>(accumulated_ ? before_ + last_ : last_);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    mine.local += host[local * units_.size() + u].squares;
    mine.gradient.push_back(host[gradient * units_.size() + u].squares);
    mine.weight.push_back(host[weight * units_.size() + u].squares);
  }
  // Each shard is on as many ranks as there are replicas.
  const double copies = engine_.sharding().replicate;
  std::vector<double> gradient_squares(units_.size()), weight_squares(units_.size());
  const auto valid = static_cast<double>(record.valid);
  for (const std::string& text : world_.exchange("train/norms", mine.encode())) {
    const Squares rank = Squares::decode(text, units_.size());
    for (std::size_t u = 0; u < units_.size(); ++u) {
      gradient_squares[u] += rank.gradient[u] / copies;
      weight_squares[u] += rank.weight[u] / copies;
    }
    if (record.nonfinite || rank.tokens == 0) continue;
    // The loss of every token is divided by the tokens of the whole step.
    const double scale = valid / rank.tokens;
    noise_.add({rank.tokens, rank.local * scale * scale},
               {valid, record.grad_norm * record.grad_norm});
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (gradients[u].empty()) continue;  // this rank has no part of it, or it is frozen
    record.norms[std::string(units_[u]->name())] = {std::sqrt(gradient_squares[u]),
                                                    std::sqrt(weight_squares[u])};
  }
  record.gradient_noise_tokens = noise_.tokens();
}

}  // namespace train
