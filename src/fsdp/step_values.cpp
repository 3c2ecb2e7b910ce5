#include "fsdp/step_values.hpp"

#include <fmt/core.h>

#include <bit>

#include "world/agreement.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

constexpr std::uint64_t longest_interval = 1024;  // largest number of steps between comparisons

}  // namespace

StepComparison::StepComparison(const RankSet& ranks)
    : ranks_(ranks), every_step_(!ranks.world().config().check.empty()) {}

bool StepComparison::is_due(std::uint64_t step) const noexcept {
  return every_step_ || step % longest_interval == 0 ||
         (step < longest_interval && std::has_single_bit(step));
}

void StepComparison::add(const StepValues& values, const std::function<void()>& check) {
  const std::uint64_t step = steps_ + 1;
  if (ranks_.ranks().size() == 1) {
    check();
  } else if (!is_due(step)) {
    check();
    since_.push_back(values);
  } else {
    agree(ranks_, "Optimizer::step", [&] {
      check();
      std::vector<Declaration> all{{"the number of this step", fmt::format("{}", step)}};
      const auto declare = [&](std::uint64_t number, const StepValues& of_step) {
        all.push_back({fmt::format("the learning rate of step {}", number),
                       fmt::format("{}", of_step.learning_rate)});
        all.push_back({fmt::format("StepOptions::gradient_scale of step {}", number),
                       fmt::format("{}", of_step.gradient_scale)});
      };
      std::uint64_t number = step - since_.size();
      for (const StepValues& earlier : since_) declare(number++, earlier);
      declare(step, values);
      return all;
    });
    since_.clear();
  }
  steps_ = step;
}

}  // namespace atoll_v1::atoll::fsdp
