// Uses of parameters and gradients on the host at a wrong time, under ATOLL_CHECK=lifetimes. Each
// ends the process with a message, so the ranks of these tests are child processes.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "atoll/fsdp.hpp"
#include "unit/child_process.hpp"
#include "unit/rank_reports.hpp"

namespace fsdp = atoll::fsdp;
using namespace std::chrono_literals;

namespace {

struct End {
  int signal = 0;    // the signal that ended the process; 0 if it ended by itself
  std::string text;  // what the process wrote to stderr
};

// Runs `body` on ranks that are processes, under the checker.
std::vector<End> ends_of(int ranks, const std::function<std::string(atoll::World&)>& body) {
  const atoll_test::ReservedPort port;
  std::vector<atoll_test::ChildProcess> children;
  for (int rank = 0; rank < ranks; ++rank) {
    atoll::Config config = atoll_test::thread_rank_config(rank, ranks, port);
    config.check = "lifetimes";
    children.emplace_back([&](int out) {
      const rlimit no_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      ::dup2(out, STDERR_FILENO);
      std::string text;
      try {
        atoll::World world = atoll::World::from_env(config);
        text = body(world);
      } catch (const atoll::Error& error) {
        text = error.what();
      }
      ::dprintf(STDERR_FILENO, "%s\n", text.c_str());
      ::_exit(0);
    });
  }
  std::vector<End> all;
  for (atoll_test::ChildProcess& child : children) {
    End& end = all.emplace_back();
    end.text = child.rest();
    const int status = child.status();
    if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  }
  return all;
}

// Runs `use` in a child process, on an engine of one rank whose unit "a" has the parameters v and
// w.
End end_of(const std::function<void(fsdp::Engine&, atoll::Stream&)>& use) {
  return ends_of(1, [&](atoll::World& world) -> std::string {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
    engine.add_unit("a", {{.name = "v", .shape = {3}}, {.name = "w", .shape = {8192}}});
    engine.seal({"a"});
    engine.initialize(1);
    auto compute = engine.device().stream();
    use(engine, compute);
    compute.synchronize();
    return "no fault";
  })[0];
}

void read(const atoll::View& view) {
  volatile float sink = 0;
  sink = view.as<float>()[view.count - 1];
  static_cast<void>(sink);
}

// Keeps the stream busy, so that later work of the stream has not run when the host continues.
void delay(atoll::Stream& compute) {
  compute.enqueue([] { std::this_thread::sleep_for(2s); });
}

void check_fault(const End& end, const std::string& message, int rank = 0) {
  const std::string start =
      "rank " + std::to_string(rank) + ": ATOLL_CHECK=lifetimes: " + message + "\n";
  CHECK(end.signal == SIGSEGV);
  CHECK(end.text.starts_with(start));
  if (!end.text.starts_with(start)) MESSAGE(end.text);
}

constexpr const char* remedy =
    "call synchronize() on the compute stream after the scope opens, or enqueue the work on it";

}  // namespace

TEST_CASE("guards: the host reads parameters before the stream has reached the scope") {
  const auto read_w = [](fsdp::Engine& engine, atoll::Stream& compute, bool synchronizes) {
    auto pass = engine.begin({.kind = fsdp::PassOptions::Kind::eval}, compute);
    delay(compute);
    const auto scope = pass.forward(engine.unit("a"));
    if (synchronizes) compute.synchronize();
    read(scope["w"]);
  };
  using namespace std::placeholders;
  check_fault(
      end_of(std::bind(read_w, _1, _2, false)),
      std::string("parameter w of unit a is read before its gather has arrived: ") + remedy);
  const End right = end_of(std::bind(read_w, _1, _2, true));
  CHECK(right.signal == 0);
  CHECK(right.text == "no fault\n");
}

TEST_CASE("guards: the host writes a gradient before the stream has reached the scope") {
  const End end = end_of([](fsdp::Engine& engine, atoll::Stream& compute) {
    auto pass = engine.begin({}, compute);
    { const auto scope = pass.forward(engine.unit("a")); }
    delay(compute);
    const auto scope = pass.backward(engine.unit("a"));
    scope.grad("v").view.as<float>()[0] = 1.0f;
  });
  check_fault(end, std::string("the gradient of parameter v of unit a is used while an earlier use "
                               "of its memory may still run: ") +
                       remedy);
}

TEST_CASE("guards: a view is used after its scope") {
  check_fault(end_of([](fsdp::Engine& engine, atoll::Stream& compute) {
                auto pass = engine.begin({.kind = fsdp::PassOptions::Kind::eval}, compute);
                atoll::View late;
                {
                  const auto scope = pass.forward(engine.unit("a"));
                  late = scope["w"];
                  compute.synchronize();
                  read(late);
                }
                compute.synchronize();
                read(late);
              }),
              "parameter w of unit a is used after the end of its forward scope: copy what you "
              "need before");
}

TEST_CASE("guards: work of the stream writes a parameter") {
  check_fault(end_of([](fsdp::Engine& engine, atoll::Stream& compute) {
                auto pass = engine.begin({.kind = fsdp::PassOptions::Kind::eval}, compute);
                const auto scope = pass.forward(engine.unit("a"));
                compute.enqueue([v = scope["v"].as<float>()] { v[1] = 2.0f; });
                compute.synchronize();
              }),
              "parameter v of unit a is written in a scope, where parameters are only read: write "
              "them with Engine::assign()");
}

TEST_CASE("guards: the other ranks get the message of a rank that reads before the gather") {
  const auto ends = ends_of(2, [](atoll::World& world) -> std::string {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}), {.strategy = fsdp::Strategy::full_shard});
    engine.add_unit("a", {{.name = "w", .shape = {8192}}});
    engine.seal({"a"});
    engine.initialize(1);
    auto compute = engine.device().stream();
    // In the first pass all ranks meet.
    { const auto first = engine.begin({.kind = fsdp::PassOptions::Kind::eval}, compute); }
    // Rank 0 never begins its second pass, so the gather of rank 1 cannot complete.
    if (world.rank() == 0) world.get("never", 20s);
    auto pass = engine.begin({.kind = fsdp::PassOptions::Kind::eval}, compute);
    const auto scope = pass.forward(engine.unit("a"));
    read(scope["w"]);
    return "no fault";
  });
  const std::string message =
      std::string("parameter w of unit a is read before its gather has arrived: ") + remedy;
  check_fault(ends[1], message, 1);
  CHECK(ends[0].signal == 0);
  CHECK(ends[0].text.find("rank 1 (host ") != std::string::npos);
  CHECK(ends[0].text.find("): rank 1: ATOLL_CHECK=lifetimes: " + message) != std::string::npos);
}
