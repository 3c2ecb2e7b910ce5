// Tests of wrong calls of save(), load(), export_weights() and import_weights(): every rank gets
// the same message, and no file is lost or left over.
#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <stdexcept>

#include "unit/checkpoint/checkpoint.hpp"

using namespace atoll_test::checkpoint;
using atoll_test::run_thread_ranks;
using train_test::failure_of;
using train_test::TemporaryFolder;

TEST_CASE("checkpoint misuse: the optimizer of another engine, and none") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  const std::string other =
      ": the Optimizer belongs to another engine: pass the Optimizer of this engine";
  const std::string none =
      ": the engine has an Optimizer: pass it, because its moments belong to the checkpoint";
  CHECK(message_of([&](atoll::World& world, Job& job) {
          const Job another(world, few);
          fsdp::save(path, job.engine, another.optimizer);
        }) == "save" + other);
  CHECK(message_of([&](atoll::World&, Job& job) { fsdp::save(path, job.engine); }) ==
        "save" + none);
  CHECK(fs::is_empty(folder.path()));
  CHECK(save_to(path) == "");
  CHECK(message_of([&](atoll::World& world, Job& job) {
          Job another(world, few);
          fsdp::load(path, job.engine, another.optimizer);
        }) == "load" + other);
  CHECK(message_of([&](atoll::World&, Job& job) { fsdp::load(path, job.engine); }) ==
        "load" + none);
}

TEST_CASE("checkpoint misuse: ranks that save to different folders, or with different extra") {
  const TemporaryFolder folder;
  const auto path = [&](int rank) { return folder.path() / ("k" + std::to_string(rank)); };
  CHECK(message_of([&](atoll::World& world, Job& job) {
          fsdp::save(path(world.rank()), job.engine, job.optimizer);
        }) == "save: ranks disagree about the folder: \"" + path(0).string() + "\" on rank 0, \"" +
                  path(1).string() + "\" on rank 1; all ranks must pass the same");
  CHECK(message_of([&](atoll::World& world, Job& job) {
          fsdp::save(path(0), job.engine, job.optimizer, {{"step", std::to_string(world.rank())}});
        }) ==
        "save: ranks disagree about extra[\"step\"]: \"0\" on rank 0, \"1\" on rank 1; all ranks "
        "must pass the same");
  CHECK(message_of([&](atoll::World& world, Job& job) {
          fsdp::save(path(0), job.engine, job.optimizer, {{world.rank() == 0 ? "a" : "b", ""}});
        }) ==
        "save: ranks disagree about the keys of `extra`: [\"a\"] on rank 0, [\"b\"] on rank 1; all "
        "ranks must pass the same");
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("checkpoint misuse: ranks that load different saves") {
  const TemporaryFolder folder;
  const auto path = [&](int rank) { return folder.path() / ("k" + std::to_string(rank)); };
  save(2, path(0), 1.0f, 0, few);
  const auto load = [&] {
    return message_of([&](atoll::World& world, Job& job) {
      job.fill(3.0f);
      const auto restore =
          failure_of([&] { fsdp::load(path(world.rank()), job.engine, job.optimizer); });
      world.barrier();
      CHECK(job.has(restore.thrown ? 3.0f : 1.0f));
      if (restore.thrown) throw atoll::Error(restore.code, restore.message);
    });
  };
  fs::copy(path(0), path(1));
  CHECK(load() == "");
  fs::remove_all(path(1));
  save(2, path(1), 1.0f, 0, few);
  const auto id = [&](int rank) { return fsdp::read_index(path(rank) / "index.json").save; };
  CHECK(load() == "load: ranks read different checkpoints: " + path(0).string() + " (save " +
                      id(0) + ") on rank 0, " + path(1).string() + " (save " + id(1) +
                      ") on rank 1; all ranks must load the same save");
}

TEST_CASE("checkpoint misuse: a save replaces only checkpoints and empty folders") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "out", thesis = path / "thesis.txt";
  fs::create_directories(path);
  CHECK(save_to(path) == "");
  CHECK(save_to(path) == "");
  std::ofstream(thesis) << "hi";
  const std::string refused = path.string() +
                              ": contains thesis.txt, which is not a file of a checkpoint, so no "
                              "checkpoint can replace the "
                              "folder: move the file, or save to another folder";
  CHECK(save_to(path) == refused);
  CHECK(refusal(2, path, 1.0f).find("the shape of parameter w") != std::string::npos);  // is whole
  fs::remove(path / "index.json");
  for (const auto& name : {shard(0, 2), shard(1, 2)}) fs::remove(path / name);
  CHECK(save_to(path) == refused);
  CHECK(TemporaryFolder::read(thesis) == "hi");
  fs::rename(thesis, path / "index.json");
  CHECK(save_to(path) == path.string() +
                             ": contains index.json without shard files, and thus is not a "
                             "checkpoint, so no checkpoint can replace it: delete the folder, or "
                             "save to another folder");
  CHECK_FALSE(fs::exists(folder.path() / "out.partial"));
  CHECK(save_to("") == "save: \"\" does not name a folder: pass a path such as \"out/checkpoint\"");
}

TEST_CASE("checkpoint misuse: two engines that save to one folder") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "out";
  run_thread_ranks(2, [&](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {{"tensor", 2}, {"shard", 1}});
    auto engine =
        std::make_unique<fsdp::Engine>(mesh, fsdp::Options{.strategy = fsdp::Strategy::no_shard});
    engine->add_unit("a", {{"w", {few + world.rank()}}});
    engine->seal({"a"});
    engine->initialize(1);
    const auto save = [&] { return failure_of([&] { fsdp::save(path, *engine); }).message; };
    if (world.rank() == 0) {
      CHECK(save() == "");
      CHECK(save() == "");  // to its own folder
    }
    world.barrier();
    if (world.rank() == 1) {
      CHECK(save() == path.string() +
                          ": another engine saves to this folder, or has saved to it: each engine "
                          "needs a separate folder");
    }
    world.barrier();
    if (world.rank() == 0) {
      CHECK_NOTHROW(fsdp::load(path, *engine));
      engine.reset();
    }
    world.barrier();
    if (world.rank() == 1) CHECK(save() == "");
    world.barrier();  // all ranks check only once rank 1 has saved
    CHECK_FALSE(fs::exists(folder.path() / "out.partial"));
    world.barrier();
  });
}

TEST_CASE("checkpoint misuse: a save on one rank only names the call") {
  const TemporaryFolder folder;
  std::string message;
  run_thread_ranks(
      2,
      [&](atoll::World& world) {
        Job job(world, few);
        if (world.rank() == 0) {
          message = failure_of([&] {
                      fsdp::save(folder.path() / "only0", job.engine, job.optimizer);
                    }).message;
        }
        // Not barrier(), which would time out on rank 1 while rank 0 waits in save().
        if (world.rank() == 0) world.put("save has failed", "yes");
        (void)world.get("save has failed", std::chrono::seconds(60));
      },
      [](atoll::Config& config) { config.timeout = std::chrono::seconds(3); });
  CAPTURE(message);
  CHECK(message.starts_with("save: all ranks must make this call: "));
  CHECK(message.find("rank 1") != std::string::npos);
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("checkpoint misuse: names of an export and an import") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "model.safetensors";
  const auto exported = [&](const std::function<fsdp::ParamName(int rank)>& name) {
    return message_of([&](atoll::World& world, Job& job) {
      fsdp::export_weights(file, job.engine, atoll::DType::f32, name(world.rank()));
    });
  };
  CHECK(exported([](int) { return [](const auto&, const auto& p) { return p.name; }; }) ==
        "export_weights: the name of parameter w of unit a and the name of parameter w of unit b "
        "are both \"w\": each parameter needs a different name");
  CHECK(exported([](int) { return [](const auto&, const auto&) { return std::string(); }; }) ==
        "export_weights: `name` returns \"\" for every parameter, so there is nothing to write");
  CHECK(exported([](int) { return [](const auto&, const auto&) { return "__metadata__"; }; }) ==
        "export_weights: the name of parameter w of unit a is \"__metadata__\", which safetensors "
        "reserves: return another name");
  CHECK(exported([](int) { return [](const auto&, const auto&) { return "w\xff"; }; }) ==
        "export_weights: the name of parameter w of unit a is not valid UTF-8");
  CHECK(exported([](int rank) { return rank == 0 ? fsdp::ParamName() : name_of; }) ==
        "export_weights: `name` is empty: pass a function that returns a name");
  CHECK(exported([](int rank) {
          return [rank](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
            if (rank == 0 && param.name == "v") throw std::runtime_error("no name");
            return name_of(unit, param);
          };
        }) == "export_weights: the name of parameter v of unit a: `name` has thrown: no name");
  CHECK(exported([](int rank) {
          return [rank](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
            return name_of(unit, param) + std::to_string(rank);
          };
        }) ==
        "export_weights: ranks disagree about the name of parameter w of unit a: \"a.w0\" on rank "
        "0, \"a.w1\" on rank 1; all ranks must pass the same");
  CHECK(fs::is_empty(folder.path()));
  CHECK(exported([](int) { return name_of; }) == "");
  CHECK(message_of([&](atoll::World& world, Job& job) {
          fsdp::import_weights({file}, job.engine, world.rank() == 0 ? fsdp::ParamName() : name_of);
        }) == "import_weights: `name` is empty: pass a function that returns a name");
}

TEST_CASE("weights files: a parameter whose name is empty is neither written nor read") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "model.safetensors";
  const auto without_a = [](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
    return unit.name() == "a" ? "" : name_of(unit, param);
  };
  CHECK(message_of([&](atoll::World&, Job& job) {
          job.fill(2.0f);
          fsdp::export_weights(file, job.engine, atoll::DType::f32, without_a);
          job.fill(5.0f);
          fsdp::import_weights({file}, job.engine, without_a);
          job.engine.visit([](const fsdp::Unit& unit, const fsdp::ParamSpec&, auto values) {
            REQUIRE(values.front() == (unit.name() == "a" ? 5.0f : 2.0f));
          });
        }) == "");
  CHECK(message_of([&](atoll::World&, Job& job) {
          fsdp::import_weights({file}, job.engine, name_of);
        }) == file.string() + ": no tensor a.w");
}

TEST_CASE("checkpoint misuse: text in `extra` that is not UTF-8") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "out";
  const auto saved = [&](const std::map<std::string, std::string>& extra) {
    return message_of(
        [&](atoll::World&, Job& job) { fsdp::save(path, job.engine, job.optimizer, extra); });
  };
  const std::string remedy = ": store other bytes as text, such as base64";
  CHECK(saved({{"random", "ab\xff"}}) ==
        "save: extra[\"random\"] is not valid UTF-8 at byte 2" + remedy);
  CHECK(saved({{"k\x80", ""}}) ==
        "save: the key \"k\\ufffd\" of `extra` is not valid UTF-8 at byte 1" + remedy);
  CHECK(fs::is_empty(folder.path()));
  const std::map<std::string, std::string> good{{"größe", std::string("\0\n\xf0\x9f\x90\x8b", 6)}};
  CHECK(saved(good) == "");
  CHECK(message_of([&](atoll::World&, Job& job) {
          CHECK(fsdp::load(path, job.engine, job.optimizer) == good);
        }) == "");
}
