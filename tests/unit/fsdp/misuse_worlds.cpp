// Engines, optimizers and meshes that the program uses after it has destroyed their World.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "atoll/checkpoint.hpp"
#include "atoll/optimizer.hpp"
#include "unit/fsdp/misuse.hpp"
#include "unit/rank_reports.hpp"

namespace fsdp = atoll::fsdp;
using atoll_test::elements;
using atoll_test::train;

TEST_CASE("misuse of Worlds: an engine, its optimizer and its mesh outlive the World") {
  auto world = std::make_unique<atoll::World>(atoll::World::single());
  auto mesh = atoll::Mesh::make(*world, {{"replicate", 1}, {"shard", 1}, {"tensor", 1}});
  auto engine = std::make_unique<fsdp::Engine>(mesh);
  atoll_test::add_units(*engine, {"a"}, elements);
  atoll_test::set_all(*engine, 1.0f);
  auto compute = engine->device().stream();
  std::optional<fsdp::Optimizer> optimizer(std::in_place, *engine);
  train(*engine, compute);
  optimizer->step(0.1f, compute);
  std::optional<fsdp::Pass> pass(engine->begin({}, compute));
  std::optional<fsdp::ForwardScope> scope(pass->forward(engine->unit("a")));
  world.reset();
  const auto error = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const atoll::Error& problem) {
      CHECK(problem.code() == atoll::ErrorCode::invalid_argument);
      return std::string(problem.what());
    }
    return std::string("no error");
  };
  const auto of_engine = [&](const std::string& call, const std::function<void()>& use) {
    CHECK(error(use) == call +
                            ": the World of this engine has been destroyed: destroy engines and "
                            "optimizers before their World");
  };
  of_engine("forward", [&] { std::ignore = pass->forward(engine->unit("a")); });
  scope.reset();
  pass.reset();
  of_engine("Engine::begin", [&] { std::ignore = engine->begin({}, compute); });
  of_engine("add_unit", [&] { engine->add_unit("b", {}); });
  of_engine("seal", [&] { engine->seal({"a"}); });
  of_engine("initialize", [&] { engine->initialize(1); });
  of_engine("assign", [&] { atoll_test::set_all(*engine, 1.0f); });
  of_engine("refresh", [&] { engine->refresh(); });
  of_engine("visit", [&] { engine->visit([](auto&, auto&, auto) {}); });
  of_engine("wait_gradients", [&] { engine->wait_gradients(compute); });
  of_engine("parameters_changed", [&] { engine->parameters_changed(compute); });
  of_engine("add_state", [&] { engine->add_state("m"); });
  of_engine("Optimizer::step", [&] { optimizer->step(0.1f, compute); });
  of_engine("update_in_backward", [&] { optimizer->update_in_backward(0.1f); });
  of_engine("set_steps", [&] { optimizer->set_steps(1); });
  CHECK(optimizer->steps() == 1);
  CHECK(engine->segments().size() == 1);
  const std::string of_world =
      "the World has been destroyed: destroy meshes, communicators, engines and optimizers before "
      "their World";
  CHECK(error([&] { use_groups(*engine, {}); }) == of_world);
  CHECK(error([&] { fsdp::save("/nowhere", *engine); }) == of_world);
  CHECK(error([&] { fsdp::load("/nowhere", *engine); }) == of_world);
  const auto name = [](const fsdp::Unit& unit, const fsdp::ParamSpec&) { return unit.name(); };
  CHECK(error([&] { fsdp::import_weights({"/nowhere"}, *engine, name); }) == of_world);
  CHECK(error([&] { fsdp::export_weights("/nowhere", *engine, atoll::DType::f32, name); }) ==
        of_world);
  const std::string of_mesh =
      "Mesh: its World has been destroyed: destroy meshes before their World";
  CHECK(error([&] { std::ignore = mesh.world(); }) == of_mesh);
  CHECK(error([&] { mesh.sub({"shard"}); }) == of_mesh);
  CHECK(error([&] { fsdp::Engine another(mesh); }) == of_mesh);
  CHECK(error([&] { atoll::Scheduler lanes(mesh.axis("shard"), {}); }) ==
        "Scheduler: the World of axis shard has been destroyed: it must outlive its meshes");
  optimizer.reset();
  engine.reset();
}

// These engines have communicators, and a gather may be in flight.
TEST_CASE("misuse of Worlds: engines of two ranks end after the World") {
  atoll_test::Messages messages;
  const auto reports = atoll_test::on_threads(2, [](atoll::World& given) {
    auto world = std::make_unique<atoll::World>(std::move(given));
    fsdp::Engine engine(atoll::Mesh::make(*world, {1, 2}),
                        {.strategy = fsdp::Strategy::full_shard});
    atoll_test::add_units(engine, {"a"}, elements);
    atoll_test::set_all(engine, 1.0f);
    const fsdp::Optimizer optimizer(engine);
    auto compute = engine.device().stream();
    train(engine, compute);
    fsdp::Pass pass = engine.begin({}, compute);
    const fsdp::ForwardScope scope = pass.forward(engine.unit("a"));
    world.reset();
    try {
      engine.refresh();
    } catch (const atoll::Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  });
  for (const std::string& report : reports) {
    CHECK(report ==
          "refresh: the World of this engine has been destroyed: destroy engines and optimizers "
          "before their World");
  }
  // Each rank has two lanes with a communicator.
  CHECK(messages.count("ends after its World: destroy communicators, engines and optimizers") == 4);
}
