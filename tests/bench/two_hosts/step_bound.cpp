#include "two_hosts/step_bound.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace atoll_bench {
namespace {

// An interval in which a unit of the model stays gathered: for forward of the unit, for backward,
// or for both.
struct Residence {
  std::size_t unit = 0;
  bool forward = false, backward = false;
};

std::vector<Residence> residences_of(std::size_t units) {
  std::vector<Residence> all;
  for (std::size_t u = 0; u < units; ++u) all.push_back({u, true, false});
  all.back().backward = true;  // the last unit stays gathered between its forward and its backward
  for (std::size_t u = units - 1; u-- > 0;) all.push_back({u, false, true});
  return all;
}

class Simulation {
 public:
  explicit Simulation(const StepShape& shape)
      : shape_(shape), residences_(residences_of(shape.units.size())) {}

  StepBound run() {
    for (int micro = 0; micro < shape_.micro_batches; ++micro) pass(micro);
    reduce();
    bound_.seconds = std::max(compute_, reduced_);
    bound_.wire_seconds = bound_.wire_bytes / shape_.link_Bps;
    return bound_;
  }

 private:
  double transfer(double ready, double bytes) {
    if (bytes <= 0) return ready;
    bound_.wire_bytes += bytes;
    const double seconds = bytes / shape_.link_Bps;
    // Finds the earliest idle interval of the link that is long enough for the transfer.
    double start = ready;
    std::size_t place = 0;
    for (; place < busy_.size(); ++place) {
      if (start + seconds <= busy_[place].first) break;
      start = std::max(start, busy_[place].second);
    }
    busy_.insert(busy_.begin() + static_cast<std::ptrdiff_t>(place), {start, start + seconds});
    return start + seconds;
  }

  // True if the unit needs no gather, because it is still gathered from its last use: in forward,
  // or in the previous micro batch.
  bool is_there(std::size_t residence, int micro) const {
    const std::size_t slots = static_cast<std::size_t>(shape_.prefetch) + 1;
    const std::size_t turn = residences_.size() / 2;
    if (residence > turn) return residence < turn + slots;
    return micro > 0 && residence < slots;
  }

  void pass(int micro) {
    const auto slots = static_cast<std::size_t>(shape_.prefetch) + 1;
    std::vector<double> left(residences_.size(), 0), gathered(residences_.size(), 0);
    const double begin = compute_;
    std::size_t next = 0;
    const auto gather_to = [&](std::size_t last) {
      // The next gather needs a free slot. A slot becomes free when the unit that was gathered
      // `slots` places earlier is released, and that time is already known here.
      for (; next <= last && next < residences_.size(); ++next) {
        if (is_there(next, micro)) continue;
        const double free = next < slots ? begin : left[next - slots];
        lane_ = transfer(std::max(free, lane_), shape_.units[residences_[next].unit].gather_bytes);
        gathered[next] = lane_;
      }
    };
    for (std::size_t r = 0; r < residences_.size(); ++r) {
      gather_to(r + static_cast<std::size_t>(shape_.prefetch));
      reduce();
      const StepUnit& unit = shape_.units[residences_[r].unit];
      compute_ = std::max(compute_, gathered[r]);
      if (residences_[r].forward) compute_ += unit.forward_s;
      if (residences_[r].backward) backward(unit, micro);
      left[r] = compute_;
    }
  }

  void backward(const StepUnit& unit, int micro) {
    const auto buffers = static_cast<std::size_t>(shape_.reduce_buffers);
    if (buffers > 0 && reductions_.size() >= buffers) {
      compute_ = std::max(compute_, reductions_[reductions_.size() - buffers]);
    }
    compute_ += unit.backward_s;
    const bool last = micro + 1 == shape_.micro_batches;
    waiting_ = {compute_, last ? unit.last_reduce_bytes : unit.reduce_bytes};
  }

  // Starts the reduction of the gradients that backward has produced. Does nothing without
  // gradients.
  void reduce() {
    if (!waiting_) return;
    reduced_ = transfer(std::max(waiting_->first, reduced_), waiting_->second);
    reductions_.push_back(reduced_);
    waiting_.reset();
  }

  const StepShape& shape_;
  std::vector<Residence> residences_;
  StepBound bound_;
  double compute_ = 0;  // time at which compute has finished all work so far
  double lane_ = 0;     // time at which the last gather so far ends
  double reduced_ = 0;  // time at which the last reduction so far ends
  std::vector<double> reductions_;
  // Gradients that have not been reduced yet: the time at which they are ready, and their bytes.
  std::optional<std::pair<double, double>> waiting_;
  std::vector<std::pair<double, double>> busy_;  // busy intervals of the link, in ascending order
};

}  // namespace

StepBound step_bound(const StepShape& shape) { return Simulation(shape).run(); }

}  // namespace atoll_bench
