// Tests of wrong calls of save(), load(), export_weights() and import_weights(): every rank gets
// the same message, and no file is lost or left over.
#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "unit/checkpoint/checkpoint.hpp"
#include "unit/error_text.hpp"

using namespace atoll_test::checkpoint;
using atoll_test::has;
using atoll_test::run_thread_ranks;
using train_test::failure_of;
using train_test::TemporaryFolder;

TEST_CASE("checkpoint misuse: the optimizer of another engine, and none") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  const std::string other = ": the Optimizer belongs to another engine: pass the Optimizer of this";
  const std::string none = ": the engine has an Optimizer: pass it";
  CHECK(has(message_of([&](atoll::World& world, Job& job) {
              const Job another(world, few);
              fsdp::save(path, job.engine, another.optimizer);
            }),
            "save" + other));
  CHECK(has(message_of([&](atoll::World&, Job& job) { fsdp::save(path, job.engine); }),
            "save" + none));
  CHECK(fs::is_empty(folder.path()));
  CHECK(save_to(path) == "");
  CHECK(has(message_of([&](atoll::World& world, Job& job) {
              Job another(world, few);
              fsdp::load(path, job.engine, another.optimizer);
            }),
            "load" + other));
  CHECK(has(message_of([&](atoll::World&, Job& job) { fsdp::load(path, job.engine); }),
            "load" + none));
}

TEST_CASE("checkpoint misuse: ranks that save to different folders, or with different extra") {
  const TemporaryFolder folder;
  const auto path = [&](int rank) { return folder.path() / ("k" + std::to_string(rank)); };
  CHECK(has(message_of([&](atoll::World& world, Job& job) {
              fsdp::save(path(world.rank()), job.engine, job.optimizer);
            }),
            "save: ranks disagree about the folder: \"" + path(0).string() + "\" on rank 0, \""));
  const auto saved = [&](const std::function<std::map<std::string, std::string>(int)>& extra) {
    return message_of([&](atoll::World& world, Job& job) {
      fsdp::save(path(0), job.engine, job.optimizer, extra(world.rank()));
    });
  };
  using Extra = std::map<std::string, std::string>;
  CHECK(has(saved([](int rank) {
              return Extra{{"step", std::to_string(rank)}};
            }),
            "save: ranks disagree about extra[\"step\"]: \"0\" on rank 0, \"1\" on rank 1"));
  CHECK(has(saved([](int rank) {
              return Extra{{rank == 0 ? "a" : "b", ""}};
            }),
            "the keys of `extra`: [\"a\"] on rank 0, [\"b\"] on rank 1"));
  const std::string remedy = ": store other bytes as text, such as base64";
  CHECK(has(saved([](int) {
              return Extra{{"random", "ab\xff"}};
            }),
            "save: extra[\"random\"] is not valid UTF-8 at byte 2" + remedy));
  CHECK(has(saved([](int) {
              return Extra{{"k\x80", ""}};
            }),
            "save: the key \"k\\ufffd\" of `extra` is not valid UTF-8 at byte 1" + remedy));
  CHECK(fs::is_empty(folder.path()));
  const Extra good{{"größe", std::string("\0\n\xf0\x9f\x90\x8b", 6)}};
  CHECK(saved([&](int) { return good; }) == "");
  CHECK(message_of([&](atoll::World&, Job& job) {
          CHECK(fsdp::load(path(0), job.engine, job.optimizer) == good);
        }) == "");
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
  CHECK(has(load(), {"load: ranks read different checkpoints: ", "(save " + id(0) + ") on rank 0",
                     "(save " + id(1) + ") on rank 1; all ranks must load the same save"}));
}

TEST_CASE("checkpoint misuse: a save replaces only checkpoints and empty folders") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "out", thesis = path / "thesis.txt";
  fs::create_directories(path);
  CHECK(save_to(path) == "");
  CHECK(save_to(path) == "");
  std::ofstream(thesis) << "hi";
  const std::string refused = path.string() + ": contains thesis.txt, which is not a file of a";
  CHECK(has(save_to(path), {refused, "move the file, or save to another folder"}));
  CHECK(refusal(2, path, 1.0f).find("the shape of parameter w") != std::string::npos);  // whole
  fs::remove(path / "index.json");
  for (const auto& name : {shard(0, 2), shard(1, 2)}) fs::remove(path / name);
  CHECK(has(save_to(path), refused));
  CHECK(TemporaryFolder::read(thesis) == "hi");
  fs::rename(thesis, path / "index.json");
  CHECK(has(save_to(path), ": contains index.json without shard files, and thus is not a"));
  CHECK_FALSE(fs::exists(folder.path() / "out.partial"));
  CHECK(has(save_to(""), "save: \"\" does not name a folder: pass a path such as"));
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
      CHECK(save() == "");  // replaces the checkpoint of this engine
    }
    world.barrier();
    if (world.rank() == 1) CHECK(has(save(), ": another engine saves to this folder, or has"));
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
  CHECK(has(message, {"save: all ranks must make this call: ", "rank 1"}));
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
  const auto always = [&](const std::string& text) {
    return exported([&](int) { return [&](const auto&, const auto&) { return text; }; });
  };
  CHECK(has(exported([](int) { return [](const auto&, const auto& p) { return p.name; }; }),
            "w of unit a and the name of parameter w of unit b are both \"w\""));
  CHECK(has(always(""), "`name` returns \"\" for every parameter, so there is nothing to write"));
  CHECK(has(always("__metadata__"), "is \"__metadata__\", which safetensors reserves"));
  CHECK(has(always("w\xff"), "the name of parameter w of unit a is not valid UTF-8"));
  CHECK(has(exported([](int rank) { return rank == 0 ? fsdp::ParamName() : name_of; }),
            "export_weights: `name` is empty: pass a function that returns a name"));
  CHECK(has(exported([](int rank) {
              return [rank](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                if (rank == 0 && param.name == "v") throw std::runtime_error("no name");
                return name_of(unit, param);
              };
            }),
            "the name of parameter v of unit a: `name` has thrown: no name"));
  CHECK(has(exported([](int rank) {
              return [rank](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                return name_of(unit, param) + std::to_string(rank);
              };
            }),
            "the name of parameter w of unit a: \"a.w0\" on rank 0, \"a.w1\" on rank 1"));
  CHECK(fs::is_empty(folder.path()));
  CHECK(exported([](int) { return name_of; }) == "");
  CHECK(has(message_of([&](atoll::World& world, Job& job) {
              fsdp::import_weights({file}, job.engine,
                                   world.rank() == 0 ? fsdp::ParamName() : name_of);
            }),
            "import_weights: `name` is empty: pass a function that returns a name"));
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
  CHECK(has(message_of([&](atoll::World&, Job& job) {
              fsdp::import_weights({file}, job.engine, name_of);
            }),
            file.string() + ": no tensor a.w"));
}
