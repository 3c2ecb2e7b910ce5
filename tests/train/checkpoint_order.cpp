// Which checkpoint of a results folder is the newest, and a results folder that is moved during the
// run or has folders that cannot be read.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/world.hpp"
#include "loop/checkpoints.hpp"
#include "loop/run_folder.hpp"
#include "unit/train/data_temporary.hpp"

using train_test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

// Creates a checkpoint folder with an index for each step.
void save(const TemporaryFolder& folder, const std::vector<std::int64_t>& steps) {
  for (const std::int64_t step : steps) {
    const fs::path place = train::checkpoint_folder(folder.path(), step);
    fs::create_directories(place);
    folder.write((place.lexically_relative(folder.path()) / "index.json").string(), "{}");
  }
}

std::vector<std::string> found(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const fs::path& path : train::find_checkpoints(folder.path())) {
    names.push_back(path.filename().string());
  }
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("the link of the last save decides, and deleting keeps the latest steps before it") {
  const TemporaryFolder folder;
  save(folder, {12, 4, 8});
  train::link_checkpoint(folder.path(), "checkpoint", 12);
  CHECK(found(folder) == Names{"step-00000012", "step-00000008", "step-00000004"});
  train::delete_old_checkpoints(folder.path(), 2, 0);
  CHECK(found(folder) == Names{"step-00000012", "step-00000008"});
}

TEST_CASE("leftovers of killed runs are deleted although some folders cannot be read") {
  const TemporaryFolder folder;
  const fs::path checkpoints = train::checkpoints_folder(folder.path());
  const auto before = fs::file_time_type::clock::now() - std::chrono::minutes(61);
  const fs::path left = folder.write("metrics.json.0-0-1.tmp", "half");
  fs::last_write_time(left, before);
  const std::vector<fs::path> locked{checkpoints / "step-00000001",
                                     checkpoints / "step-00000002.partial"};
  for (const fs::path& path : locked) {
    fs::create_directories(path);
    fs::last_write_time(path, before);
    fs::permissions(path, fs::perms::none);
  }
  fs::permissions(folder.path(), fs::perms::all);
  const bool is_root = ::geteuid() == 0;  // root can read every folder
  const bool may_read = is_root && ::seteuid(65534) != 0;
  const auto removed = train::remove_left_overs(checkpoints, {folder.path() / "metrics.json"});
  if (is_root) REQUIRE(::seteuid(0) == 0);
  for (const fs::path& path : locked) fs::permissions(path, fs::perms::all);
  if (may_read) return;
  CHECK(removed == std::vector{left});
}

TEST_CASE("steps of a run that was resumed before them are the oldest") {
  const TemporaryFolder folder;
  save(folder, {4, 8, 12, 5});  // step 5 was saved by a run that resumed from step 4
  train::link_checkpoint(folder.path(), "checkpoint", 5);
  CHECK(found(folder) == Names{"step-00000005", "step-00000004", "step-00000012", "step-00000008"});
}

TEST_CASE("a results folder that was moved or replaced is no longer that of the run") {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  train::RunOptions options;
  options.out = out.string();
  atoll::Config config;
  config.log = "error";
  auto world = atoll::World::single(config);
  const train::RunFolder held(world, options, out);
  CHECK_NOTHROW(held.check());
  fs::rename(out, folder.path() / "moved");
  CHECK_THROWS_WITH_AS(held.check(),
                       ("--out " + options.out +
                        ": the folder, or run.lock in it, has been moved or deleted while the run "
                        "wrote to it")
                           .c_str(),
                       atoll::Error);
  const train::RunFolder other(world, options, out);  // a second run locks the new folder
  CHECK_NOTHROW(other.check());
  CHECK_THROWS_AS(held.check(), atoll::Error);
}

TEST_CASE("without a link, steps decide; a pipe is no index") {
  const TemporaryFolder folder;
  save(folder, {4, 8});
  CHECK(found(folder) == Names{"step-00000008", "step-00000004"});
  const fs::path place = train::checkpoint_folder(folder.path(), 16);
  fs::create_directories(place);
  REQUIRE(::mkfifo((place / "index.json").c_str(), 0600) == 0);
  CHECK(found(folder).size() == 2);
}
