// Ranks find a difference between their numbers of micro batches, also if only some of them change
// the number.
#include "fsdp/step_comparison.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"

using atoll::World;
using atoll::fsdp::MicroCount;

namespace {

using Reports = std::vector<std::string>;

// Runs steps with the numbers of micro batches that `numbers` returns for the rank. Rank `late`
// sleeps before the last step, so that other ranks begin that step first. Returns "agreed" or the
// error. The barrier replaces the collectives of the last step.
Reports reports(int size, int late, const std::function<std::vector<int>(int rank)>& numbers) {
  return atoll_test::on_threads(size, [&](World& world) {
    MicroCount count{world};
    const std::vector<int> mine = numbers(world.rank());
    for (std::size_t step = 0; step < mine.size(); ++step) {
      if (world.rank() == late && step + 1 == mine.size())
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
      count.begin_step(mine[step]);
    }
    world.barrier();
    return std::string("agreed");
  });
}

void check_found(const Reports& found, const std::string& difference) {
  const std::string text = "begin: ranks disagree about PassOptions::of in step " + difference +
                           "; all ranks must pass the same";
  std::size_t mismatches = 0;
  for (const std::string& report : found) {
    CAPTURE(report);
    CHECK(report.ends_with(text));
    CHECK((report == "mismatch: " + text || report.starts_with("aborted: rank ")));
    mismatches += report == "mismatch: " + text ? 1 : 0;
  }
  CHECK(mismatches > 0);
}

}  // namespace

TEST_CASE("number of micro batches: ranks that change it together agree, also if one is late") {
  const auto numbers = [](int) { return std::vector<int>{2, 2, 3, 3, 1}; };
  CHECK(reports(3, -1, numbers) == Reports{"agreed", "agreed", "agreed"});
  CHECK(reports(3, 1, [](int) { return std::vector<int>{2, 3}; }) == Reports(3, "agreed"));
  CHECK(reports(1, -1, numbers) == Reports{"agreed"});
}

TEST_CASE("number of micro batches: a rank that changes it alone is found, early or late") {
  const auto changes_alone = [](int rank) { return std::vector<int>{2, rank == 1 ? 3 : 2}; };
  check_found(reports(2, 1, changes_alone), "2: 2 on rank 0, 3 on rank 1");
  check_found(reports(2, 0, changes_alone), "2: 2 on rank 0, 3 on rank 1");
  // Rank 0 has already begun later steps.
  const auto keeps = [](int rank) {
    return rank == 0 ? std::vector<int>{2, 2, 2, 2} : std::vector<int>{2, 3};
  };
  check_found(reports(2, 1, keeps), "2: 2 on rank 0, 3 on rank 1");
  // Rank 0 changes to the same number one step later, so both numbers are equal when rank 1 asks.
  const auto follows = [](int rank) {
    return rank == 0 ? std::vector<int>{2, 2, 3} : std::vector<int>{2, 3};
  };
  check_found(reports(2, 1, follows), "2: 2 on rank 0, 3 on rank 1");
}

TEST_CASE("number of micro batches: a rank that does not begin the step is named") {
  std::string late;
  atoll_test::run_thread_ranks(
      2,
      [&](World& world) {
        MicroCount count{world};
        count.begin_step(2);
        if (world.rank() == 1) {
          (void)world.get("rank 0 gave up", std::chrono::seconds(30));
          return;
        }
        late = atoll_test::error_of([&] { count.begin_step(3); });
        world.put("rank 0 gave up", "");
      },
      [](atoll::Config& config) { config.timeout = std::chrono::seconds(1); });
  CHECK(atoll_test::has(late, {"timeout: begin: PassOptions::of changes from 2 to 3 in step 2 on",
                               "but rank 1 did not begin this step within 1 s"}));
}
