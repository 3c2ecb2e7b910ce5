// Misuse of communicators, meshes and schedulers: ranks that open or allocate different things,
// handles that were moved from, wrong types and addresses. Every test checks the whole text.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/schedule.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"

namespace {

using namespace std::chrono_literals;
using atoll::Axis;
using atoll::Communicator;
using atoll::Mesh;
using atoll::ReduceOp;
using atoll::World;
using atoll_test::error_of;
using Texts = std::vector<std::string>;

// Calls `call` on two ranks and returns the errors. The ranks meet afterwards, so the errors have
// not failed the World.
Texts on_two(const std::function<void(World&)>& call) {
  return atoll_test::on_threads(2, [&](World& world) {
    const std::string error = error_of([&] { call(world); });
    world.barrier();
    return error;
  });
}

Communicator open(World& world, std::string name = "own") {
  const auto mesh = Mesh::make(world, {1, world.size()});
  return Communicator::open(mesh.axis("shard"), {.name = std::move(name), .backend = "host"});
}

Axis axis_of(World& world, std::vector<int> ranks, int index) {
  return {.world = &world, .name = "mine", .ranks = std::move(ranks), .index = index};
}

}  // namespace

TEST_CASE("ranks that open communicators of different names get one error") {
  const Texts errors = on_two([](World& world) { open(world, world.rank() == 0 ? "a" : "b"); });
  CHECK(
      errors[0] ==
      "mismatch: opening communicator a: ranks disagree about the call: opening communicator a on "
      "rank 0, opening communicator b on rank 1; all ranks must pass the same");
  CHECK(
      errors[1] ==
      "mismatch: opening communicator b: ranks disagree about the call: opening communicator a on "
      "rank 0, opening communicator b on rank 1; all ranks must pass the same");
}

TEST_CASE("ranks that open two axes in different orders get an error at the first one") {
  const Texts errors = on_two([](World& world) {
    const auto mesh = Mesh::make(world, {1, 2});
    const auto one = Communicator::open(mesh.axis(world.rank() == 0 ? "world" : "shard"));
    const auto two = Communicator::open(mesh.axis(world.rank() == 0 ? "shard" : "world"));
  });
  const std::string end =
      "ranks disagree about the call: opening communicator world on rank 0, opening communicator "
      "shard on rank 1; all ranks must pass the same";
  CHECK(errors[0] == "mismatch: opening communicator world: " + end);
  CHECK(errors[1] == "mismatch: opening communicator shard: " + end);
}

TEST_CASE("a wrong option of one rank is the error of all") {
  const Texts errors = on_two([](World& world) {
    const auto mesh = Mesh::make(world, {1, 2});
    atoll::CommunicatorOptions options{.name = "own"};
    if (world.rank() == 1) options.timeout = 0ms;
    Communicator::open(mesh.axis("shard"), std::move(options));
  });
  const std::string text = "CommunicatorOptions::timeout is 0 ms, but must be positive";
  CHECK(errors == Texts{"invalid argument: rank 1: " + text, "invalid argument: " + text});
}

TEST_CASE("a rank that opens nothing is named, with the communicator") {
  std::string error;
  const auto body = [&](World& world) {
    if (world.rank() == 0)
      error = error_of([&] { Communicator::open(axis_of(world, {0, 1}, 0), {.name = "own"}); });
    world.barrier();
  };
  atoll_test::run_thread_ranks(2, body, [](atoll::Config& config) {
    config.rendezvous_timeout = 1s;
    config.timeout = 20s;
  });
  CHECK(error.starts_with("timeout: opening communicator own: all ranks must make this call: "));
  CHECK(error.find("rank 1") != std::string::npos);
  CHECK(error.find("key") == std::string::npos);
}

TEST_CASE("axes that do not describe ranks of the World are refused") {
  World world = atoll_test::single_rank();
  const auto refused = [&](std::vector<int> ranks, int index) {
    return error_of([&] { Communicator::open(axis_of(world, std::move(ranks), index)); });
  };
  CHECK(refused({0, 7}, 0) ==
        "invalid argument: Communicator::open: axis mine has the ranks 0, 7: list ranks from 0 to "
        "0, each once");
  CHECK(refused({0, 0}, 0) ==
        "invalid argument: Communicator::open: axis mine has the ranks 0, 0: list ranks from 0 to "
        "0, each once");
  CHECK(refused({0}, 1) ==
        "invalid argument: Communicator::open: axis mine has the index 1 on rank 0, but its ranks "
        "are 0: the index is the position of this rank among them");
}

TEST_CASE("ranks that pass different arguments to Mesh get one error") {
  const auto ranks_disagree = [](const std::string& about) {
    return Texts(2, "mismatch: " + about + "; all ranks must pass the same");
  };
  CHECK(on_two([](World& world) {
          Mesh::make(world, world.rank() == 0 ? atoll::MeshShape{1, 2} : atoll::MeshShape{2, 1});
        }) ==
        ranks_disagree("Mesh::make: ranks disagree about the axes of the mesh: 1x2 on rank 0, "
                       "2x1 on rank 1"));
  CHECK(on_two([](World& world) {
          const auto topology = atoll::Topology::discover(world);
          Mesh::plan(topology, world, {.inner = 1 + world.rank()});
        }) ==
        ranks_disagree("Mesh::plan: ranks disagree about MeshPlanOptions::inner: 1 on rank 0, "
                       "2 on rank 1"));
  CHECK(on_two([](World& world) {
          atoll::MeshPlan plan;
          plan.replicate = 1;
          plan.shard = 2;
          plan.order = world.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0};
          Mesh::from_plan(world, plan);
        }) ==
        ranks_disagree("Mesh::from_plan: ranks disagree about the order of the ranks: 0, 1 on "
                       "rank 0, 1, 0 on rank 1"));
}

TEST_CASE("memory that cannot fit is an error on all ranks before a page is touched") {
  const Texts errors = on_two([](World& world) {
    auto comm = open(world);
    atoll::allocate(comm.device(), std::size_t{1} << 60, {comm});
  });
  CHECK(errors[0] == errors[1]);
  CHECK(errors[0].starts_with(
      "out of memory: cannot allocate 1152921504606846976 bytes for communicator own: "));
}

TEST_CASE("ranks compare the sizes of memory, and what they do with it") {
  const Texts sizes = on_two([](World& world) {
    auto comm = open(world);
    atoll::allocate(comm.device(), 4096 * (1 + static_cast<std::size_t>(world.rank())), {comm});
  });
  const std::string size_text =
      "mismatch: allocate on communicator own: rank 0 passes 4096 bytes, but rank 1 passes 8192: "
      "pass the same size on all ranks";
  CHECK(sizes == Texts(2, size_text));
  const Texts calls = on_two([](World& world) {
    auto comm = open(world);
    std::vector<float> data(1024);
    if (world.rank() == 0) {
      atoll::allocate(comm.device(), 4096, {comm});
    } else {
      const auto registration = atoll::register_memory(data.data(), 4096, {comm});
    }
  });
  CHECK(calls == Texts(2,
                       "mismatch: communicator own: rank 1 called register_memory where rank 0 "
                       "called allocate"));
}

TEST_CASE("memory that is not mapped on one rank cannot be registered on any") {
  const Texts errors = on_two([](World& world) {
    auto comm = open(world);
    std::vector<float> data(1024);
    // The kernel never maps the lowest pages.
    void* const garbage = reinterpret_cast<void*>(0x1000);
    const auto registration =
        atoll::register_memory(world.rank() == 1 ? garbage : data.data(), 4096, {comm});
  });
  CHECK(errors == Texts(2,
                        "invalid argument: rank 1: register_memory on communicator own: the 4096 "
                        "bytes at 0x1000 are not all memory of this process: pass memory that is "
                        "allocated"));
}

TEST_CASE("memory that overlaps registered memory on one rank cannot be registered on any") {
  void* taken = nullptr;
  const Texts errors = atoll_test::on_threads(2, [&](World& world) {
    auto comm = open(world);
    auto other = open(world, "other");
    std::vector<float> data(2048), apart(1024);
    auto first = atoll::register_memory(data.data(), 4096, {other});
    if (world.rank() == 1) taken = data.data();
    float* const next = world.rank() == 1 ? data.data() + 1023 : apart.data();
    // Only `other` on rank 1 knows the memory, and the ranks compare their calls on `comm` first.
    const std::string error = error_of([&] {
      std::ignore = atoll::register_memory(next, 4096, {comm, other});
    });
    first.deregister();
    const auto again = atoll::register_memory(next, 4096, {comm, other});
    atoll::allocate(comm.device(), 4096, {comm, other});  // both communicators go on
    return error;
  });
  CHECK(errors ==
        Texts(2, fmt::format("invalid argument: rank 1: register_memory on communicator other: the "
                             "4096 bytes at {} overlap the 4096 bytes at {}, which are registered "
                             "already: end that registration first",
                             fmt::ptr(static_cast<float*>(taken) + 1023), fmt::ptr(taken))));
}

TEST_CASE("memory of allocate() cannot be registered again") {
  const Texts errors = on_two([](World& world) {
    auto comm = open(world);
    auto buffer = atoll::allocate(comm.device(), 8192, {comm});
    std::vector<float> apart(1024);
    const std::string error = error_of([&] {
      void* const memory = world.rank() == 0 ? buffer.data() : apart.data();
      std::ignore = atoll::register_memory(memory, 4096, {comm});
    });
    CHECK(error.find("rank 0: register_memory on communicator own: the 4096 bytes at ") !=
          std::string::npos);
    buffer = {};
    const auto registration = atoll::register_memory(apart.data(), 4096, {comm});
  });
  CHECK(errors == Texts(2, "no error"));
}

TEST_CASE("a communicator that one rank names twice allocates and registers nothing on any") {
  const Texts errors = on_two([](World& world) {
    auto comm = open(world);
    auto other = open(world, "other");
    if (world.rank() == 0) {
      atoll::allocate(comm.device(), 4096, {comm, other, comm});
    } else {
      atoll::allocate(comm.device(), 4096, {comm, other});
    }
  });
  CHECK(errors == Texts(2,
                        "invalid argument: rank 0: allocate on communicator own: the call names "
                        "this communicator twice: name each communicator once"));
}

TEST_CASE("a rank that does not allocate is named") {
  std::string error;
  const auto body = [&](World& world) {
    auto comm = Communicator::open(axis_of(world, {0, 1}, world.rank()), {.timeout = 1s});
    if (world.rank() == 0) error = error_of([&] { atoll::allocate(comm.device(), 4096, {comm}); });
    world.barrier();
  };
  atoll_test::run_thread_ranks(2, body);
  CHECK(
      error.starts_with("timeout: allocate on communicator mine: all ranks must make this call: "));
  CHECK(error.find("rank 1") != std::string::npos);
}

TEST_CASE("memory of a Buffer that is destroyed too early stays for its operations") {
  std::latch destroyed{1};
  const auto reports = atoll_test::on_threads(2, [&](World& world) -> std::string {
    constexpr std::size_t bytes = std::size_t{1} << 20;
    auto comm = open(world);
    auto stream = comm.device().stream();
    auto buffer = atoll::allocate(comm.device(), bytes, {comm});
    const auto view = buffer.view(atoll::DType::f32);
    auto* const first = view.as<float>();
    std::fill_n(first, view.count, 1.0f);
    if (world.rank() == 1) destroyed.wait();
    const auto work = comm.all_reduce(view, view, ReduceOp::sum, stream);
    if (world.rank() == 0) {
      buffer = {};
      destroyed.count_down();
    }
    work.synchronize();
    const auto wrong =
        view.count - static_cast<std::uint64_t>(std::count(first, first + view.count, 2.0f));
    comm.barrier(stream).synchronize();
    const bool mapped = ::msync(first, bytes, MS_ASYNC) == 0;
    world.barrier();
    return fmt::format("{} wrong, {}", wrong, mapped ? "mapped" : "freed");
  });
  CHECK(reports == Texts{"0 wrong, freed", "0 wrong, mapped"});
}

TEST_CASE("every call of a communicator that was moved from is an error") {
  World world = atoll_test::single_rank();
  auto comm = open(world);
  auto stream = comm.device().stream();
  const auto other = std::move(comm);
  std::vector<float> data(4);
  const std::string text =
      "invalid argument: this Communicator was moved from: use the object that it was moved to, or "
      "assign to it first";
  // NOLINTBEGIN(bugprone-use-after-move): this use is what the test is about
  CHECK(error_of([&] { static_cast<void>(comm.rank()); }) == text);
  CHECK(error_of([&] { static_cast<void>(comm.name()); }) == text);
  CHECK(error_of([&] { comm.barrier(stream).synchronize(); }) == text);
  CHECK(error_of([&] { comm.all_reduce(data, data, ReduceOp::sum, stream).synchronize(); }) ==
        text);
  CHECK(error_of([&] { comm.abort("x"); }) == text);
  CHECK(error_of([&] { atoll::allocate(atoll::Device::cpu(), 4, {comm}); }) == text);
  CHECK(error_of([&] { Communicator::open(axis_of(world, {0}, 0), {.parent = &comm}); }) == text);
  // NOLINTEND(bugprone-use-after-move)
}

TEST_CASE("a communicator that was aborted allocates and registers nothing") {
  const Texts errors = on_two([](World& world) {
    auto comm = open(world);
    if (world.rank() == 1) return;
    comm.abort("no progress");
    std::vector<float> data(4);
    const auto start = std::chrono::steady_clock::now();
    const std::string text = "aborted: rank 0: communicator own was aborted by rank 0: no progress";
    CHECK(error_of([&] { atoll::allocate(comm.device(), 4096, {comm}); }) == text);
    CHECK(error_of([&] {
            const auto registration = atoll::register_memory(data.data(), 16, {comm});
          }) == text);
    CHECK(std::chrono::steady_clock::now() - start < 5s);  // the communicator's timeout is 20 s
  });
  CHECK(errors == Texts(2, "no error"));
}

TEST_CASE("abort() on another rank ends a wait for the ranks that allocate or register") {
  const Texts errors = on_two([](World& world) {
    auto comm = open(world), other = open(world);
    std::vector<float> data(4);
    if (world.rank() == 1) {
      world.barrier();
      std::this_thread::sleep_for(100ms);
      comm.abort("no progress");
      other.abort("no progress");
      return;
    }
    world.barrier();
    const auto start = std::chrono::steady_clock::now();
    const std::string text = "aborted: rank 0: communicator own was aborted by rank 1: no progress";
    CHECK(error_of([&] { atoll::allocate(comm.device(), 4096, {comm}); }) == text);
    CHECK(error_of([&] {
            const auto registration = atoll::register_memory(data.data(), 16, {other});
          }) == text);
    CHECK(std::chrono::steady_clock::now() - start < 5s);  // the communicator's timeout is 20 s
  });
  CHECK(errors == Texts(2, "no error"));
}

TEST_CASE("dtypes and ops that do not exist are refused, and late scratch memory") {
  World world = atoll_test::single_rank();
  auto comm = open(world);
  auto stream = comm.device().stream();
  std::vector<float> data(4);
  const atoll::View unknown(data.data(), 4, static_cast<atoll::DType>(77));
  CHECK(
      error_of([&] { comm.all_reduce(unknown, unknown, ReduceOp::sum, stream).synchronize(); }) ==
      "invalid argument: rank 0: all_reduce on communicator own: src has the dtype 77, which does "
      "not exist");
  CHECK(
      error_of([&] { comm.broadcast(unknown, 0, stream).synchronize(); }) ==
      "invalid argument: rank 0: broadcast on communicator own: data has the dtype 77, which does "
      "not exist");
  const auto op = static_cast<ReduceOp>(77);
  CHECK(error_of([&] { comm.all_reduce(data, data, op, stream).synchronize(); }) ==
        "invalid argument: rank 0: all_reduce on communicator own: the op 77 does not exist");
  comm.barrier(stream).synchronize();
  CHECK(error_of([&] { comm.reserve_scratch(100); }) ==
        "invalid argument: communicator own: reserve_scratch() must be called before the first "
        "operation");
}

TEST_CASE("an algorithm that does not exist is quoted as the user wrote it") {
  const Texts errors = atoll_test::on_threads(2, [](World& world) {
    const auto mesh = Mesh::make(world, {1, 2});
    return error_of([&] {
      Communicator::open(mesh.axis("shard"),
                         {.name = "own", .backend = "host", .algorithm = "all_reduce:rnig"});
    });
  });
  for (const std::string& error : errors)
    CHECK_MESSAGE(error.find("algorithm \"all_reduce:rnig\" is unknown") != std::string::npos,
                  error);
}

TEST_CASE("the error of a stream's task reaches the ranks that wait for its collective") {
  const Texts errors = atoll_test::on_threads(2, [](World& world) {
    auto comm = open(world);
    auto stream = comm.device().stream();
    std::vector<float> data(10);
    if (world.rank() == 1) stream.enqueue([] { throw std::runtime_error("kernel broke"); });
    return error_of([&] {
      try {
        comm.all_reduce(data, data, ReduceOp::sum, stream).synchronize();
      } catch (const std::runtime_error& error) {
        throw atoll::Error(atoll::ErrorCode::aborted, error.what());
      }
    });
  });
  const std::string text =
      "rank 1: communicator own: an operation was dropped, because its stream had already failed: "
      "kernel broke";
  CHECK_MESSAGE(errors[0].find(text) != std::string::npos, errors[0]);
  CHECK(errors[1] == "aborted: kernel broke");
}

TEST_CASE("buffers whose sizes do not fit together are named with their sizes") {
  const auto errors = atoll_test::on_threads(3, [](atoll::World& world) {
    const auto mesh = Mesh::make(world, {{"data", 3}});
    auto comm = Communicator::open(mesh.axis("data"));
    auto stream = comm.device().stream();
    std::vector<float> hundred(100), ten(10);
    return error_of([&] { (void)comm.all_gather(ten, hundred, stream); }) + "\n" +
           error_of([&] { (void)comm.reduce_scatter(hundred, ten, ReduceOp::sum, stream); }) +
           "\n" + error_of([&] { (void)comm.all_to_all(hundred, std::span(hundred), stream); });
  });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("dst has 100 elements, not 3 ranks x the 10 elements of src") != error.npos);
    CHECK(error.find("src has 100 elements, not 3 ranks x the 10 elements of dst") != error.npos);
    CHECK(error.find("src has 100 elements, which is no multiple of 3 ranks") != error.npos);
  }
}

TEST_CASE("a message of a rank to itself needs a group") {
  World world = atoll_test::single_rank();
  auto comm = open(world);
  auto stream = comm.device().stream();
  std::vector<float> data(4), received(4);
  const std::string text = " on communicator own: messages of this rank to itself: ";
  const std::string end = ": pass a send and its receive to one group()";
  CHECK(error_of([&] { comm.send(data, 0, stream).synchronize(); }) ==
        "invalid argument: rank 0: send" + text + "1 sends, but 0 receives" + end);
  CHECK(error_of([&] { comm.recv(data, 0, stream).synchronize(); }) ==
        "invalid argument: rank 0: recv" + text + "0 sends, but 1 receives" + end);
  using Message = Communicator::SendRecv;
  const Message send{Message::Kind::send, data, 0}, receive{Message::Kind::recv, received, 0};
  const auto group = [&](std::vector<Message> messages) {
    return error_of([&] { comm.group(messages, stream).synchronize(); });
  };
  CHECK(group({send, receive, send}) ==
        "invalid argument: rank 0: group" + text + "2 sends, but 1 receives" + end);
  CHECK(group({send, receive}) == "no error");
}

TEST_CASE("a message of another size shows both sides") {
  const Texts errors = atoll_test::on_threads(2, [](World& world) {
    auto comm = open(world);
    auto stream = comm.device().stream();
    std::vector<float> data(20);
    return error_of([&] {
      if (world.rank() == 1) comm.send(atoll::View(data).part(0, 10), 0, stream).synchronize();
      if (world.rank() == 0) comm.recv(data, 1, stream).synchronize();
      comm.barrier(stream).synchronize();
    });
  });
  CHECK(
      errors[0] ==
      "mismatch: rank 0: communicator own: rank 0 (world rank 0) called recv 0 (20 x f32 from rank "
      "1 (world rank 1)) where rank 1 (world rank 1) called send 0 (10 x f32 to rank 0 (world rank "
      "0))");
  CHECK_MESSAGE(errors[1].find("called recv 0 (20 x f32 from rank 1") != std::string::npos,
                errors[1]);
}

TEST_CASE("a communicator that outlives its World is an error, not a crash") {
  std::optional<Communicator> comm;
  std::optional<Axis> axis;
  auto stream = atoll::Device::cpu().stream();
  {
    World world = atoll_test::single_rank();
    const auto mesh = Mesh::make(world, {1, 1});
    axis = mesh.axis("shard");
    comm = Communicator::open(*axis, {.name = "own", .backend = "host"});
  }
  CHECK(error_of([&] { comm->barrier(stream).synchronize(); }) ==
        "invalid argument: communicator own: its World has been destroyed, but must outlive it");
  CHECK(error_of([&] { Communicator::open(*axis); }) ==
        "invalid argument: Communicator::open: the World of axis shard has been destroyed: it must "
        "outlive its meshes");
  comm.reset();
}

TEST_CASE("a scheduler refuses what it was not made for") {
  World world = atoll_test::single_rank();
  const auto mesh = Mesh::make(world, {1, 1});
  atoll::Scheduler scheduler(mesh.axis("shard"), mesh.axis("replicate"));
  std::vector<float> data(4);
  const atoll::View view(data);
  CHECK(
      error_of([&] { scheduler.all_gather_secondary(view, view, {}).synchronize(); }) ==
      "invalid argument: Scheduler: all_gather_secondary() needs SchedulerOptions::inner, which is "
      "empty");
  CHECK(error_of([&] { scheduler.reserve_scratch(atoll::Lane::replicate, 100); }) == "no error");
  auto other = std::move(scheduler);
  const std::string text =
      "invalid argument: this Scheduler was moved from: use the object that it was moved to, or "
      "assign to it first";
  // NOLINTBEGIN(bugprone-use-after-move): this use is what the test is about
  CHECK(error_of([&] { scheduler.all_reduce(view, {}).synchronize(); }) == text);
  CHECK(error_of([&] { static_cast<void>(scheduler.stream(atoll::Lane::replicate)); }) == text);
  // NOLINTEND(bugprone-use-after-move)
  other.synchronize();
}

TEST_CASE("schedulers on axes that do not belong together") {
  const Texts errors = on_two([](World& world) {
    const auto mesh = Mesh::make(world, {1, 2});
    const bool first = world.rank() == 0;
    const atoll::Scheduler scheduler(first ? Axis{} : mesh.axis("shard"),
                                     first ? mesh.axis("world") : Axis{});
  });
  const std::string end =
      "ranks disagree about the call: opening communicator world.replicate on rank 0, opening "
      "communicator shard.gather on rank 1; all ranks must pass the same";
  CHECK(errors == Texts{"mismatch: opening communicator world.replicate: " + end,
                        "mismatch: opening communicator shard.gather: " + end});
}
