#include "fsdp/step_comparison.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "atoll/rank_set.hpp"
#include "core/errors.hpp"
#include "core/parse.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using std::chrono::milliseconds;

// First wait for the other ranks, before this rank asks them. Ranks that change their number of
// micro batches in the same step meet within this time, unless some are late.
constexpr milliseconds first_pause{250};
// Time limit for answers of the other ranks. A process that is not stopped answers at once.
constexpr milliseconds patience{500};

constexpr std::uint64_t longest_interval = 1024;  // largest number of steps between comparisons

std::string names_of(const std::vector<int>& ranks) {
  constexpr std::size_t most = 16;
  const auto shown = std::span(ranks).first(std::min(most, ranks.size()));
  return fmt::format("rank{} {}{}", ranks.size() == 1 ? "" : "s", fmt::join(shown, ", "),
                     ranks.size() > most ? ", ..." : "");
}

// A rank, and the number of micro batches that it has passed to begin(), as text.
struct Said {
  int rank;
  std::string number;
};

std::string disagreement(std::uint64_t step, const Said& a, const Said& b) {
  return fmt::format(
      "begin: ranks disagree about PassOptions::of in step {}: {} on rank {}, {} on rank {}; all "
      "ranks must pass the same",
      step, a.number, a.rank, b.number, b.rank);
}

}  // namespace

std::string MicroCount::Record::encode(int rank) const {
  return fmt::format("{} {} {} {} {}", rank, step, number, changed, before);
}

std::optional<MicroCount::Heard> MicroCount::decode(std::string_view text) {
  const auto words = split(text, ' ');
  if (words.size() != 5) return std::nullopt;
  const auto rank = number_from<int>(words[0]), number = number_from<int>(words[2]),
             before = number_from<int>(words[4]);
  const auto step = number_from<std::uint64_t>(words[1]),
             changed = number_from<std::uint64_t>(words[3]);
  if (!rank || !step || !number || !changed || !before) return std::nullopt;
  return Heard{*rank, {*step, *number, *changed, *before}};
}

MicroCount::MicroCount(const RankSet& ranks)
    : ranks_(ranks), flight_(Flight::of(ranks.world())), key_(ranks.key("micro batches")) {
  flight_->questions().add(key_, [this](std::string_view question) { return respond(question); });
}

MicroCount::~MicroCount() { flight_->questions().remove(key_); }

std::string MicroCount::respond(std::string_view question) {
  const std::lock_guard lock(mutex_);
  if (const auto heard = decode(question); heard && heard->rank != ranks_.world().rank())
    heard_ = heard;
  return record_.encode(ranks_.world().rank());
}

void MicroCount::begin_step(int number) {
  Record mine;
  std::optional<Heard> heard;
  {
    const std::lock_guard lock(mutex_);
    ++record_.step;
    record_.number = number;
    if (number != agreed_) {
      record_.changed = record_.step;
      record_.before = agreed_;
    }
    mine = record_;
    heard = heard_;
  }
  if (ranks_.ranks().size() == 1) return;
  if (number != agreed_) {
    if (agreed_ == 0) {
      compare_first(number);
    } else {
      compare_change(mine);
    }
    agreed_ = number;
  } else if (heard && heard->record.step == mine.step && heard->record.number != number) {
    fail(mine, heard->rank, heard->record.number);
  }
}

// In the first step no rank has a number to keep, so all ranks compare.
void MicroCount::compare_first(int number) {
  agree(ranks_, "begin", [&]() -> std::vector<Declaration> {
    return {{"PassOptions::of", fmt::format("{}", number)}};
  });
}

void MicroCount::compare_change(const Record& mine) {
  const milliseconds timeout = ranks_.world().config().timeout;
  const auto began = std::chrono::steady_clock::now();
  const auto left = [&] {
    return timeout -
           std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - began);
  };
  for (milliseconds pause = first_pause;; pause *= 2) {
    if (meet(mine, std::clamp(left(), milliseconds(1), pause))) return;
    const std::vector<int> late = ask(mine);
    if (left() > milliseconds(0)) continue;
    throw make_error(
        ErrorCode::timeout,
        "begin: PassOptions::of changes from {} to {} in step {} on rank {}, but {} did not begin "
        "this step within {} s; all ranks must pass the same",
        mine.before, mine.number, mine.step, ranks_.world().rank(),
        late.empty() ? "another rank" : names_of(late),
        std::chrono::duration<double>(timeout).count());
  }
}

bool MicroCount::meet(const Record& mine, milliseconds pause) {
  std::vector<std::string> texts;
  try {
    texts = ranks_.exchange(fmt::format("{} in step {}", key_, mine.step),
                            fmt::format("{}", mine.number), pause);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) return false;
    if (error.code() != ErrorCode::peer_lost || ranks_.world().failure()) throw;
    throw make_error(ErrorCode::peer_lost, "begin: all ranks must make this call: {}",
                     error.what());
  }
  const auto other = std::ranges::find_if(texts, [&](const auto& t) { return t != texts[0]; });
  if (other == texts.end()) return true;
  // All ranks throw this error, so no rank waits for another.
  const auto& ranks = ranks_.ranks();
  throw Error(ErrorCode::mismatch,
              disagreement(mine.step, {ranks[0], texts[0]},
                           {ranks[static_cast<std::size_t>(other - texts.begin())], *other}));
}

std::vector<int> MicroCount::ask(const Record& mine) {
  const int self = ranks_.world().rank();
  const auto answers = WorldInternals::store(ranks_.world()).ask(key_, mine.encode(self), patience);
  std::vector<int> late;
  for (const int rank : ranks_.ranks()) {
    const auto heard = decode(answers.at(static_cast<std::size_t>(rank)).text);
    if (!heard || heard->record.step < mine.step) {
      late.push_back(rank);
      continue;
    }
    const int number = heard->record.number_in(mine.step);
    if (number != mine.number) fail(mine, rank, number);
  }
  return late;
}

void MicroCount::fail(const Record& mine, int other_rank, int other_number) {
  Said a{ranks_.world().rank(), fmt::format("{}", mine.number)};
  Said b{other_rank, fmt::format("{}", other_number)};
  if (b.rank < a.rank) std::swap(a, b);
  const std::string text = disagreement(mine.step, a, b);
  ranks_.world().fail(text);
  throw Error(ErrorCode::mismatch, text);
}

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
