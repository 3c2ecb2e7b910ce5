// Misuse of communicators, meshes and schedulers: ranks that open or allocate different things,
// handles that were moved from, wrong types and addresses.
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
using atoll_test::has;
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

// Calls `call` on two ranks, which must both get an error with `part`.
void check_both(std::string_view part, const std::function<void(World&)>& call) {
  for (const std::string& error : on_two(call)) CHECK(has(error, part));
}

}  // namespace

TEST_CASE("ranks that open two axes in different orders get an error at the first one") {
  check_both(
      "ranks disagree about the call: opening communicator world on rank 0, opening communicator "
      "shard on rank 1; all ranks must pass the same",
      [](World& world) {
        const auto mesh = Mesh::make(world, {1, 2});
        const auto one = Communicator::open(mesh.axis(world.rank() == 0 ? "world" : "shard"));
        const auto two = Communicator::open(mesh.axis(world.rank() == 0 ? "shard" : "world"));
      });
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
  CHECK(
      has(error, {"timeout: opening communicator own: all ranks must make this call: ", "rank 1"}));
  CHECK(error.find("key") == std::string::npos);
}

TEST_CASE("axes that do not describe ranks of the World are refused") {
  World world = atoll_test::single_rank();
  const auto refused = [&](std::vector<int> ranks, int index) {
    return error_of([&] { Communicator::open(axis_of(world, std::move(ranks), index)); });
  };
  CHECK(has(refused({0, 7}, 0), "axis mine has the ranks 0, 7: list ranks from 0 to 0"));
  CHECK(has(refused({0, 0}, 0), "axis mine has the ranks 0, 0: list ranks from 0 to 0, each once"));
  CHECK(has(refused({0}, 1), {"axis mine has the index 1 on rank 0", "position of this rank"}));
}

TEST_CASE("ranks that pass different arguments to Mesh get one error") {
  check_both("Mesh::plan: ranks disagree about MeshPlanOptions::tensor: 1 on rank 0, 2 on rank 1",
             [](World& world) {
               const auto topology = atoll::Topology::discover(world);
               Mesh::plan(topology, world, {.tensor = 1 + world.rank()});
             });
  check_both(
      "Mesh::from_plan: ranks disagree about the order of the ranks: 0, 1 on rank 0, 1, 0 on rank "
      "1",
      [](World& world) {
        atoll::MeshPlan plan;
        plan.replicate = 1;
        plan.shard = 2;
        plan.order = world.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0};
        Mesh::from_plan(world, plan);
      });
}

TEST_CASE("memory that cannot fit is an error on all ranks before a page is touched") {
  check_both("out of memory: cannot allocate 1152921504606846976 bytes for communicator own: ",
             [](World& world) {
               auto comm = open(world);
               atoll::allocate(comm.device(), std::size_t{1} << 60, {comm});
             });
}

TEST_CASE("ranks compare the sizes of memory, and what they do with it") {
  check_both("own: rank 0 passes 4096 bytes, but rank 1 passes 8192: pass the same size",
             [](World& world) {
               auto comm = open(world);
               const std::size_t pages = world.rank() == 0 ? 1 : 2;
               atoll::allocate(comm.device(), 4096 * pages, {comm});
             });
  check_both("own: rank 1 called register_memory where rank 0 called allocate", [](World& world) {
    auto comm = open(world);
    std::vector<float> data(1024);
    if (world.rank() == 0) {
      atoll::allocate(comm.device(), 4096, {comm});
    } else {
      const auto registration = atoll::register_memory(data.data(), 4096, {comm});
    }
  });
}

TEST_CASE("memory that is not mapped on one rank cannot be registered on any") {
  check_both("rank 1: register_memory on communicator own: the 4096 bytes at 0x1000 are not all",
             [](World& world) {
               auto comm = open(world);
               std::vector<float> data(1024);
               // An invalid address, because the kernel never maps the lowest pages.
               void* const garbage = reinterpret_cast<void*>(0x1000);
               void* const memory = world.rank() == 1 ? garbage : data.data();
               const auto registration = atoll::register_memory(memory, 4096, {comm});
             });
}

TEST_CASE("memory that overlaps registered memory on one rank cannot be registered on any") {
  const Texts errors = atoll_test::on_threads(2, [&](World& world) {
    auto comm = open(world);
    auto other = open(world, "other");
    std::vector<float> data(2048), apart(1024);
    auto first = atoll::register_memory(data.data(), 4096, {other});
    float* const next = world.rank() == 1 ? data.data() + 1023 : apart.data();
    // Only `other` on rank 1 knows the memory, and the ranks compare their calls on `comm` first.
    const std::string error = error_of([&] {
      std::ignore = atoll::register_memory(next, 4096, {comm, other});
    });
    first.deregister();
    const auto again = atoll::register_memory(next, 4096, {comm, other});
    atoll::allocate(comm.device(), 4096, {comm, other});  // both communicators still work
    return error;
  });
  for (const std::string& error : errors) {
    CHECK(has(error, {"rank 1: register_memory on communicator other: the 4096 bytes at ",
                      " overlap the 4096 bytes at ", "end that registration first"}));
  }
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
    CHECK(has(error, "rank 0: register_memory on communicator own: the 4096 bytes at "));
    buffer = {};
    const auto registration = atoll::register_memory(apart.data(), 4096, {comm});
  });
  CHECK(errors == Texts(2, "no error"));
}

TEST_CASE("a communicator that one rank names twice allocates and registers nothing on any") {
  check_both("rank 0: allocate on communicator own: the call names this communicator twice",
             [](World& world) {
               auto comm = open(world);
               auto other = open(world, "other");
               if (world.rank() == 0) {
                 atoll::allocate(comm.device(), 4096, {comm, other, comm});
               } else {
                 atoll::allocate(comm.device(), 4096, {comm, other});
               }
             });
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
  // NOLINTBEGIN(bugprone-use-after-move): this use is what the test is about
  const std::function<void()> calls[] = {
      [&] { static_cast<void>(comm.rank()); },
      [&] { static_cast<void>(comm.name()); },
      [&] { comm.barrier(stream).synchronize(); },
      [&] { comm.all_reduce(data, data, ReduceOp::sum, stream).synchronize(); },
      [&] { comm.abort("x"); },
      [&] { atoll::allocate(atoll::Device::cpu(), 4, {comm}); },
      [&] { Communicator::open(axis_of(world, {0}, 0), {.parent = &comm}); }};
  // NOLINTEND(bugprone-use-after-move)
  for (const auto& call : calls)
    CHECK(has(error_of(call), "this Communicator was moved from: use"));
}

TEST_CASE("abort() on another rank ends a wait for the ranks that allocate or register") {
  const Texts errors = on_two([](World& world) {
    auto comm = open(world), other = open(world);
    std::vector<float> data(4);
    world.barrier();
    if (world.rank() == 1) {
      std::this_thread::sleep_for(100ms);
      comm.abort("no progress");
      other.abort("no progress");
    } else {
      const auto start = std::chrono::steady_clock::now();
      const std::string text = "aborted: communicator own was aborted by rank 1: no progress";
      CHECK(has(error_of([&] { atoll::allocate(comm.device(), 4096, {comm}); }), text));
      CHECK(has(error_of([&] {
                  const auto registration = atoll::register_memory(data.data(), 16, {other});
                }),
                text));
      CHECK(std::chrono::steady_clock::now() - start < 5s);  // the communicator's timeout is 20 s
    }
    auto again = open(world);  // of the same name
    auto stream = again.device().stream();
    again.barrier(stream).synchronize();
  });
  CHECK(errors == Texts(2, "no error"));
}

TEST_CASE("dtypes and ops that do not exist are refused, and late scratch memory") {
  World world = atoll_test::single_rank();
  auto comm = open(world);
  auto stream = comm.device().stream();
  std::vector<float> data(4);
  const atoll::View unknown(data.data(), 4, static_cast<atoll::DType>(77));
  const auto no_op = static_cast<ReduceOp>(77);
  const auto reduce = [&](const atoll::View& view, ReduceOp op) {
    return error_of([&] { comm.all_reduce(view, view, op, stream).synchronize(); });
  };
  CHECK(has(reduce(unknown, ReduceOp::sum), "own: src has the dtype 77, which does not exist"));
  CHECK(has(reduce(atoll::View(data), no_op), "own: the op 77 does not exist"));
  CHECK(has(error_of([&] { comm.broadcast(unknown, 0, stream).synchronize(); }),
            "own: data has the dtype 77, which does not exist"));
  comm.barrier(stream).synchronize();
  CHECK(has(error_of([&] { comm.reserve_scratch(100); }),
            "reserve_scratch() must be called before the first operation"));
}

TEST_CASE("an algorithm that does not exist is quoted as the user wrote it") {
  check_both("algorithm \"all_reduce:rnig\" is unknown", [](World& world) {
    const auto mesh = Mesh::make(world, {1, 2});
    Communicator::open(mesh.axis("shard"), {.backend = "host", .algorithm = "all_reduce:rnig"});
  });
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
  CHECK(has(errors[0],
            "rank 1: communicator own: an operation was dropped, because its stream had "
            "already failed: kernel broke"));
  CHECK(has(errors[1], {"aborted: ", "an operation was dropped", "kernel broke"}));
}

TEST_CASE("buffers whose sizes do not fit together are named with their sizes") {
  const Texts errors = atoll_test::on_threads(3, [](World& world) {
    auto comm = open(world);
    auto stream = comm.device().stream();
    std::vector<float> hundred(100), ten(10);
    return error_of([&] { (void)comm.all_gather(ten, hundred, stream); }) +
           error_of([&] { (void)comm.reduce_scatter(hundred, ten, ReduceOp::sum, stream); }) +
           error_of([&] { (void)comm.all_to_all(hundred, std::span(hundred), stream); });
  });
  for (const std::string& error : errors) {
    CHECK(has(error, {"dst has 100 elements, not 3 ranks x the 10 elements of src",
                      "src has 100 elements, not 3 ranks x the 10 elements of dst",
                      "src has 100 elements, which is no multiple of 3 ranks"}));
  }
}

TEST_CASE("a message of a rank to itself needs a group") {
  World world = atoll_test::single_rank();
  auto comm = open(world);
  auto stream = comm.device().stream();
  std::vector<float> data(4), received(4);
  const std::string remedy = "pass a send and its receive to one group()";
  CHECK(has(error_of([&] { comm.send(data, 0, stream).synchronize(); }),
            {"messages of this rank to itself: 1 sends, but 0 receives", remedy}));
  CHECK(has(error_of([&] { comm.recv(data, 0, stream).synchronize(); }),
            {"messages of this rank to itself: 0 sends, but 1 receives", remedy}));
  using Message = Communicator::SendRecv;
  const Message send{Message::Kind::send, data, 0}, receive{Message::Kind::recv, received, 0};
  const auto group = [&](std::vector<Message> messages) {
    return error_of([&] { comm.group(messages, stream).synchronize(); });
  };
  CHECK(has(group({send, receive, send}), {"2 sends, but 1 receives", remedy}));
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
  CHECK(has(errors[0],
            {"mismatch: rank 0: communicator own: ", "called send 0 (10 x f32 to rank 0"}));
  for (const std::string& error : errors) {
    CHECK(has(error, "called recv 0 (20 x f32 from rank 1"));
  }
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
  CHECK(has(error_of([&] { comm->barrier(stream).synchronize(); }),
            "communicator own: its World has been destroyed, but must outlive it"));
  CHECK(has(error_of([&] { Communicator::open(*axis); }),
            "Communicator::open: the World of axis shard has been destroyed"));
  comm.reset();
}

TEST_CASE("a scheduler refuses what it was not made for") {
  World world = atoll_test::single_rank();
  const auto mesh = Mesh::make(world, {1, 1});
  atoll::Scheduler scheduler(mesh.axis("shard"), mesh.axis("replicate"));
  std::vector<float> data(4);
  const atoll::View view(data);
  CHECK(has(error_of([&] { scheduler.all_gather_secondary(view, view, {}).synchronize(); }),
            "all_gather_secondary() needs SchedulerOptions::secondary, which is empty"));
  CHECK(error_of([&] { scheduler.reserve_scratch(atoll::Lane::replicate, 100); }) == "no error");
  auto other = std::move(scheduler);
  // NOLINTBEGIN(bugprone-use-after-move): this use is what the test is about
  CHECK(has(error_of([&] { scheduler.all_reduce(view, {}).synchronize(); }),
            "this Scheduler was moved from: use the object that it was moved to"));
  CHECK(has(error_of([&] { static_cast<void>(scheduler.stream(atoll::Lane::replicate)); }),
            "this Scheduler was moved from"));
  // NOLINTEND(bugprone-use-after-move)
  other.synchronize();
}
