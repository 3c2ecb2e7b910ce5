// Loses power after every call of a save that changes the disk, and resumes from each disk that may
// be left: it holds the old checkpoint or the new one, whole.
#include <doctest/doctest.h>

#include "unit/checkpoint/checkpoint.hpp"
#include "unit/disk_log.hpp"

using namespace atoll_test::checkpoint;
using atoll_test::DiskReplay;
using atoll_test::Exchange;
using atoll_test::run_thread_ranks;

namespace {

constexpr std::int64_t elements = 40;

// Returns the value that load() finds (1 or 2), 0 if there is no checkpoint, or -1 if a damaged or
// mixed one is found.
int value_in(Job& job, const fs::path& folder) {
  job.fill(0);
  try {
    fsdp::load(folder, job.engine, job.optimizer);
  } catch (const atoll::Error& error) {
    const std::string what = error.what();
    INFO(what);
    return what.find("not a checkpoint") != std::string::npos ? 0 : -1;
  }
  return job.has(1.0f) ? 1 : job.has(2.0f) ? 2 : -1;
}

void lose_power(Exchange exchange) {
  const train_test::TemporaryFolder temporary;
  const fs::path root = fs::canonical(temporary.path()) / "disk", copy = temporary.path() / "copy";
  fs::create_directories(root);
  atoll_test::watch_disk(root, exchange);
  save(2, root / "out" / "checkpoint", 1.0f, 1, elements);
  const std::size_t first = atoll_test::disk_calls();
  save(2, root / "out" / "checkpoint", 2.0f, 2, elements);
  const auto log = atoll_test::stop_watching();
  REQUIRE(first > 10);
  REQUIRE(log.size() > first + 10);

  DiskReplay replay(log);
  auto world = atoll_test::single_rank();
  Job job(world, elements);
  int disks = 0, found[3] = {};
  for (std::size_t calls = 0; calls <= log.size(); ++calls) {
    CAPTURE(calls);
    replay.after(calls, copy, [&] {
      const int value = value_in(job, copy / "out" / "checkpoint");
      // A save that has returned is durable.
      const int least = calls == log.size() ? 2 : calls >= first ? 1 : 0;
      const int most = calls > first ? 2 : 1;
      CHECK(value >= least);
      CHECK(value <= most);
      ++found[std::max(value, 0)];
      ++disks;
    });
  }
  MESSAGE(log.size() << " calls, " << disks << " disks: " << found[0] << " before any checkpoint, "
                     << found[1] << " with the first, " << found[2] << " with the second");
  CHECK(found[1] > 10);
  CHECK(found[2] > 5);
}

}  // namespace

TEST_CASE("power loss during a save: names are exchanged") { lose_power(Exchange::possible); }

TEST_CASE("power loss during a save: two renames") { lose_power(Exchange::impossible); }
