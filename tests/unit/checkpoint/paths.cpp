// Tests of paths that are not what save() and export_weights() make: links, folders, FIFOs, and
// names that two engines use. No file of the user is changed, and every rank gets the same message.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>

#include "unit/checkpoint/checkpoint.hpp"
#include "unit/error_text.hpp"

using namespace atoll_test::checkpoint;
using atoll_test::has;
using atoll_test::run_thread_ranks;
using train_test::TemporaryFolder;

namespace {

std::string export_to(const fs::path& file) {
  return message_of([&](atoll::World&, Job& job) {
    fsdp::export_weights(file, job.engine, atoll::DType::f32, name_of);
  });
}

}  // namespace

TEST_CASE("checkpoint paths: a save writes and deletes nothing through a link FOLDER.partial") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "out", link = folder.path() / "out.partial";
  const fs::path home = folder.path() / "home";
  fs::create_directories(home);
  folder.write("home/thesis.txt", "hi");
  fs::create_directory_symlink("home", link);
  const std::string refused = link.string() + ": is a symbolic link, but save() makes and deletes";
  CHECK(has(save_to(path), {refused, "delete the link"}));
  CHECK(TemporaryFolder::read(home / "thesis.txt") == "hi");
  CHECK_FALSE(fs::exists(path));
  CHECK(fs::is_symlink(link));
  fs::remove(link);
  fs::create_directory_symlink("absent", link);
  CHECK(has(save_to(path), refused));
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
  // A crash of a save leaves this state on a file system that cannot exchange two names.
  fs::rename(disk / "run", disk / "run.old");
  CHECK(refusal(2, link, 2.0f) == "");
  CHECK(save_to(link) == "");
  CHECK_FALSE(fs::exists(disk / "run.old"));
  CHECK(std::distance(fs::directory_iterator(disk), fs::directory_iterator()) == 1);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 2);

  fs::remove(link);
  fs::create_directory_symlink("round", link);
  fs::create_directory_symlink("out", folder.path() / "round");
  CHECK(has(save_to(link), link.string() + ": the symbolic links lead to each other"));
}

TEST_CASE("checkpoint paths: an export replaces only files and links") {
  const TemporaryFolder folder;
  const fs::path fifo = folder.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(
      has(export_to(fifo), fifo.string() + ": is a FIFO, and only a regular file may be replaced"));
  CHECK(has(export_to("/dev/null"), "/dev/null: is a device, and only a regular file"));
  CHECK(has(export_to(folder.path()), "does not name a file"));
  CHECK(fs::is_fifo(fifo));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);

  const fs::path link = folder.path() / "link", text = folder.write("text", "hi");
  fs::create_symlink("text", link);
  CHECK(export_to(link) == "");
  CHECK(fs::is_regular_file(fs::symlink_status(link)));
  CHECK(TemporaryFolder::read(text) == "hi");
}

TEST_CASE("checkpoint paths: two engines that export to one file leave the whole file of one") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "model.safetensors";
  run_thread_ranks(2, [&](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {{"tensor", 2}, {"shard", 1}});
    fsdp::Engine engine(mesh, {.strategy = fsdp::Strategy::no_shard});
    const std::int64_t elements = 100'000 * (1 + world.rank());
    engine.add_unit("a", {{"w", {elements}}});
    engine.seal({"a"});
    engine.assign([&](const fsdp::Segment&, std::span<float> out) {
      std::ranges::fill(out, static_cast<float>(world.rank()));
    });
    for (int i = 0; i < 20; ++i) {
      world.barrier();
      CHECK_NOTHROW(fsdp::export_weights(file, engine, atoll::DType::f32, name_of));
      world.barrier();
      if (world.rank() != 0) continue;
      const auto weights = fsdp::SafetensorsFile::open(file);
      const atoll::ConstView data = weights.at("a.w").data;
      const float writer = data.count == 100'000 ? 0.0f : 1.0f;
      bool is_whole = true;
      for (std::size_t at = 0; at < data.count; ++at) {
        float value = 0;
        std::memcpy(&value, static_cast<const std::byte*>(data.data) + at * sizeof(value),
                    sizeof(value));
        is_whole = is_whole && value == writer;
      }
      CHECK(is_whole);
      CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
    }
    world.barrier();
  });
}
