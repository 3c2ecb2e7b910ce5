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
#include "unit/collected_log.hpp"
#include "unit/fsdp/misuse.hpp"
#include "unit/rank_reports.hpp"

namespace fsdp = atoll::fsdp;
using atoll_test::elements;
using atoll_test::error_of;
using atoll_test::has;
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
  const auto of_engine = [&](const std::string& call, const std::function<void()>& use) {
    CHECK(has(error_of(use), "invalid argument: " + call + ": the World of this engine has been "));
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
  const auto name = [](const fsdp::Unit& unit, const fsdp::ParamSpec&) { return unit.name(); };
  const std::function<void()> of_world[] = {
      [&] { use_groups(*engine, {}); }, [&] { fsdp::save("/nowhere", *engine); },
      [&] { fsdp::load("/nowhere", *engine); },
      [&] { fsdp::import_weights({"/nowhere"}, *engine, name); },
      [&] { fsdp::export_weights("/nowhere", *engine, atoll::DType::f32, name); }};
  for (const auto& call : of_world) CHECK(has(error_of(call), ": the World has been destroyed: "));
  const std::function<void()> of_mesh[] = {[&] { std::ignore = mesh.world(); },
                                           [&] { mesh.sub({"shard"}); },
                                           [&] { fsdp::Engine another(mesh); }};
  for (const auto& call : of_mesh) CHECK(has(error_of(call), "Mesh: its World has been destroyed"));
  CHECK(has(error_of([&] { atoll::Scheduler lanes(mesh.axis("shard"), {}); }),
            "Scheduler: the World of axis shard has been destroyed"));
  optimizer.reset();
  engine.reset();
}

// These engines have communicators, and a gather may be in flight.
TEST_CASE("misuse of Worlds: engines of two ranks end after the World") {
  const atoll_test::CollectedLog log;
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
    return error_of([&] { engine.refresh(); });
  });
  for (const std::string& report : reports) {
    CHECK(has(report, "refresh: the World of this engine has been destroyed"));
  }
  // Each of the two ranks has two communicators, and each of these logs a line.
  CHECK(log.count("ends after its World: destroy communicators, engines and optimizers") == 4);
}
