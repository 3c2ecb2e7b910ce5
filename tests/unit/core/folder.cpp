#include "core/folder.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "unit/train/data_temporary.hpp"

namespace fs = std::filesystem;
using atoll::names_in;
using atoll::remove_tree;
using train_test::TemporaryFolder;

TEST_CASE("folder: a tree is deleted, but nothing to which its links lead") {
  const TemporaryFolder folder;
  const fs::path tree = folder.path() / "tree";
  fs::create_directories(folder.path() / "home");
  folder.write("home/thesis.txt", "hi");
  fs::create_directories(tree / "one" / "two" / "three");
  folder.write("tree/one/two/file", "x");
  fs::create_directory_symlink("../../home", tree / "one" / "link");
  fs::create_symlink("../home/thesis.txt", tree / "file");
  REQUIRE(::mkfifo((tree / "fifo").c_str(), 0600) == 0);
  remove_tree(tree);
  CHECK_FALSE(fs::exists(fs::symlink_status(tree)));
  CHECK(TemporaryFolder::read(folder.path() / "home/thesis.txt") == "hi");

  fs::create_directory_symlink("home", folder.path() / "link");
  remove_tree(folder.path() / "link");
  remove_tree(folder.path() / "absent");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"home"});
  CHECK_THROWS_AS(remove_tree(folder.path() / "home/thesis.txt/x"), fs::filesystem_error);
}
