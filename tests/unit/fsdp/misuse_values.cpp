// Uses of parameters that have no values yet, and a plan that does not fit into the memory.
#include <doctest/doctest.h>

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "unit/fsdp/misuse.hpp"
#include "unit/rank_reports.hpp"
#include "unit/train/data_temporary.hpp"

namespace fsdp = atoll::fsdp;
using atoll_test::has;
using Reader = std::function<void(fsdp::Engine&)>;

namespace {

std::string error(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& problem) {
    return problem.what();
  }
  return "no error";
}

std::string name_of(const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
  return unit.name() + "." + param.name;
}

// The calls that read parameters, by name.
std::vector<std::pair<std::string, Reader>> readers() {
  return {{"visit", [](fsdp::Engine& e) { e.visit([](auto&, auto&, auto) {}); }},
          {"save", [](fsdp::Engine& e) { fsdp::save("/nowhere/saved", e); }},
          {"export_weights",
           [](fsdp::Engine& e) {
             fsdp::export_weights("/nowhere/weights", e, atoll::DType::f32, name_of);
           }},
          {"Engine::begin", [](fsdp::Engine& e) {
             auto compute = e.device().stream();
             const auto pass = e.begin({.kind = fsdp::PassOptions::Kind::eval}, compute);
           }}};
}

std::string without(const std::string& call, const std::string& what) {
  return call + ": " + what +
         " no values: call initialize(), assign(), load() or import_weights() first, or refresh() "
         "after writing Segment::values";
}

}  // namespace

TEST_CASE("parameters without values cannot be read") {
  atoll::World world = atoll::World::single();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  atoll_test::add_units(engine, {"a", "b"}, 3);
  const auto all_name = [&](const std::string& what) {
    for (const auto& [call, use] : readers())
      CHECK(error([&] { use(engine); }) == without(call, what));
  };
  all_name("the parameters have");
  CHECK(error([&] {
          engine.assign([](const fsdp::Segment& segment, std::span<float>) {
            if (segment.unit->name() == "b") throw std::runtime_error("no file for b");
          });
        }) == "no file for b");
  all_name("parameter w of unit b has");
  CHECK(error([&] { fsdp::load("/nowhere/saved", engine); }) != "no error");
  CHECK(error([&] { fsdp::import_weights({"/nowhere/weights"}, engine, name_of); }) != "no error");
  all_name("parameter w of unit b has");
  engine.refresh();  // declares that Segment::values have been written
  CHECK(error([&] { readers().front().second(engine); }) == "no error");
  CHECK(error([&] { readers().back().second(engine); }) == "no error");
}

TEST_CASE("a weights file that does not fit, and a folder instead of a file, are named") {
  atoll::World world = atoll::World::single();
  const auto mesh = atoll::Mesh::make(world, {1, 1});
  const train_test::TemporaryFolder folder;
  const auto file = folder.path() / "weights";
  fsdp::Engine engine(mesh), other(mesh);
  atoll_test::add_units(engine, {"a"}, 6);
  engine.initialize(1);
  other.add_unit("a", {{.name = "w", .shape = {2, 3}}});
  other.seal({"a"});
  fsdp::export_weights(file, engine, atoll::DType::f32, name_of);
  CHECK(has(error([&] { fsdp::import_weights({file}, other, name_of); }),
            {file.string() + ": tensor a.w is f32 of shape [6]", "of shape [2, 3]"}));
  const auto x = [](auto&, auto&) { return std::string("x"); };
  CHECK(has(error([&] { fsdp::import_weights({file, file}, engine, x); }), "no tensor x"));
  CHECK(has(error([&] { fsdp::export_weights(folder.path(), engine, atoll::DType::f32, name_of); }),
            "does not name a file"));
}

TEST_CASE("a parameter that one rank has not filled has no values on any rank") {
  const auto reports = atoll_test::on_threads(2, [](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}), {.strategy = fsdp::Strategy::full_shard});
    atoll_test::add_units(engine, {"a"}, atoll_test::elements);
    const std::string failed = error([&] {
      engine.assign([&](const fsdp::Segment&, std::span<float>) {
        if (world.rank() == 1) throw std::runtime_error("no file");
      });
    });
    const auto visit = readers().front().second, begin = readers().back().second;
    return failed + "\n" + error([&] { visit(engine); }) + "\n" + error([&] { begin(engine); });
  });
  CHECK(reports[0] == "rank 1: assign: the callback threw an exception: no file\n" +
                          without("visit", "the parameters have") + "\n" +
                          without("Engine::begin", "the parameters have"));
  CHECK(reports[1] == "no file\nrank 0: " + without("visit", "the parameters have") + "\n" +
                          without("Engine::begin", "parameter w of unit a has"));
}

TEST_CASE("misuse of engines: an error about memory is one line") {
  atoll::World world = atoll::World::single();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}), {.memory_bytes = 1});
  engine.add_unit("a", {{"w", {atoll_test::elements}}});
  const std::string text = error([&] { engine.seal({"a"}); });
  CHECK(has(text, {"more than the 1 bytes of Options::memory_bytes; the plan: ", ", total "}));
  CHECK(text.find('\n') == std::string::npos);
}
