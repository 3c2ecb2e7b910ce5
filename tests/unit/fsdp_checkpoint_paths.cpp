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
