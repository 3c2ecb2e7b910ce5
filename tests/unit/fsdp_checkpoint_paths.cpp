// Tests of paths that are not what save() and export_weights() make: links, folders, FIFOs, and
// names that two engines use. No file of the user is changed, and every rank gets the same message.
#include <doctest/doctest.h>

#include "fsdp_checkpoint.hpp"

using namespace atoll_test::checkpoint;
using train_test::TemporaryFolder;

TEST_CASE("checkpoint paths: a save writes and deletes nothing through a link FOLDER.partial") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "out", link = folder.path() / "out.partial";
  const fs::path home = folder.path() / "home";
  fs::create_directories(home);
  folder.write("home/thesis.txt", "hi");
  fs::create_directory_symlink("home", link);
  const std::string refused = link.string() +
                              ": is a symbolic link, but save() makes and deletes a folder of this "
                              "name: delete the link";
  CHECK(save_to(path) == refused);
  CHECK(TemporaryFolder::read(home / "thesis.txt") == "hi");
  CHECK_FALSE(fs::exists(path));
  CHECK(fs::is_symlink(link));
  fs::remove(link);
  fs::create_directory_symlink("absent", link);
  CHECK(save_to(path) == refused);
  CHECK_FALSE(fs::exists(folder.path() / "absent"));
  fs::remove(link);
  CHECK(save_to(path) == "");
}

TEST_CASE("checkpoint paths: a save to a link replaces the folder to which it leads") {
  const TemporaryFolder folder;
  const fs::path link = folder.path() / "out", disk = folder.path() / "disk";
  fs::create_directories(disk);
  fs::create_directory_symlink("disk/run", link);
  for (const float value : {1.0f, 2.0f}) {
    save(2, link / "", value);
    CHECK(fs::read_symlink(link) == "disk/run");
    CHECK(fs::is_directory(fs::symlink_status(disk / "run")));
    CHECK(refusal(2, disk / "run", value) == "");
    CHECK(refusal(2, link, value) == "");
  }
  // As a crash leaves it on a file system that cannot exchange two names.
  fs::rename(disk / "run", disk / "run.old");
  CHECK(refusal(2, link, 2.0f) == "");
  CHECK(save_to(link) == "");
  CHECK_FALSE(fs::exists(disk / "run.old"));
  CHECK(std::distance(fs::directory_iterator(disk), fs::directory_iterator()) == 1);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 2);

  fs::remove(link);
  fs::create_directory_symlink("round", link);
  fs::create_directory_symlink("out", folder.path() / "round");
  CHECK(save_to(link) == link.string() + ": the symbolic links lead to each other");
}
