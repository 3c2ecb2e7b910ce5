// Tests of the settings of a communicator, of abort(), and of the errors of all_to_all_v and of
// reductions of 8-bit floating-point types.
#include <doctest/doctest.h>

#include <chrono>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

#include "atoll/communicator.hpp"
#include "core/parse.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"
#include "world/introduction.hpp"
#include "world/world_internals.hpp"

namespace {

using namespace std::chrono_literals;
using atoll::Communicator;
using atoll::CommunicatorOptions;
using atoll::World;
using atoll_test::error_of;
using atoll_test::has;

Communicator open(World& world, CommunicatorOptions options) {
  const auto mesh = atoll::Mesh::make(world, {1, world.size()});
  return Communicator::open(mesh.axis("shard"), std::move(options));
}

// Checks that open() throws an error with `difference` on each of `ranks` ranks.
template <class OptionsOf>
void check_texts(int ranks, const OptionsOf& options_of, const std::string& difference) {
  const auto results = atoll_test::on_threads(ranks, [&](World& world) {
    CommunicatorOptions options = options_of(world.rank());
    options.name = "own";
    const std::string error = error_of([&] { open(world, std::move(options)); });
    world.barrier();  // otherwise the first rank to leave would fail the World
    return error;
  });
  for (const std::string& result : results) {
    CHECK(result == "mismatch: opening communicator own: ranks disagree about " + difference +
                        "; all ranks must pass the same");
  }
}

}  // namespace

TEST_CASE("options with invalid values are refused") {
  World world = atoll_test::single_rank();
  const auto refused = [&](CommunicatorOptions options) {
    return error_of([&] { open(world, std::move(options)); });
  };
  CHECK(has(refused({.timeout = 0ms}), "CommunicatorOptions::timeout is 0 ms, but must be"));
  CHECK(has(refused({.deterministic = 2}), "CommunicatorOptions::deterministic is 2, but must be"));
  CHECK(has(refused({.algorithm = "all_reduce"}),
            "CommunicatorOptions::algorithm=\"all_reduce\": expected a comma-separated list"));
}

TEST_CASE("all ranks report different options with the same text") {
  const auto algorithm = [](int rank) {
    CommunicatorOptions one;
    if (rank == 2) one.algorithm = "all_reduce : ring";
    return one;
  };
  check_texts(3, algorithm,
              "the algorithm (ATOLL_ALGORITHM): \"\" on rank 0, \"all_reduce:ring\" on rank 2");
  check_texts(
      2, [](int rank) { return CommunicatorOptions{.backend = rank == 1 ? "mpi" : "host"}; },
      "the backend (ATOLL_BACKEND): \"host\" on rank 0, \"mpi\" on rank 1");
  check_texts(
      2, [](int rank) { return CommunicatorOptions{.levels = rank == 0}; },
      "CommunicatorOptions::levels: true on rank 0, false on rank 1");
}

TEST_CASE("an operation ends after the timeout of its communicator") {
  const auto start = std::chrono::steady_clock::now();
  const auto results = atoll_test::on_threads(2, [](World& world) {
    auto comm = open(world, {.name = "own", .timeout = 1s});
    world.barrier();
    auto child = comm.split(0, 0, "child");
    if (world.rank() == 1) return world.get("never put", 20s);
    auto stream = comm.device().stream();
    std::vector<float> data(10);
    child->all_reduce(data, data, atoll::ReduceOp::sum, stream).synchronize();
    return std::string("reduced");
  });
  CHECK(std::chrono::steady_clock::now() - start < 15s);
  CHECK(results[0].starts_with("timeout: "));
  CHECK(results[0].find("communicator child") != std::string::npos);
  CHECK(results[1].starts_with("aborted: "));
}

TEST_CASE("abort() on another rank, before this rank has opened the communicator") {
  World world = atoll_test::single_rank();
  const auto other = open(world, {.name = "other"});  // the World is told of failures from here on
  std::ostringstream id;
  id << "comm/own/" << std::hex << std::setw(16) << std::setfill('0') << atoll::fnv1a("0") << "/0";
  const atoll::Error why(atoll::ErrorCode::aborted,
                         "communicator own was aborted by rank 1: too slow");
  atoll::WorldInternals::store(world).announce(id.str() + "/end", atoll::encode(why), 1s);
  CHECK(error_of([&] { open(world, {.name = "own"}); }) ==
        "aborted: communicator own was aborted by rank 1: too slow");
  CHECK(!world.failure().has_value());
}

TEST_CASE("all_to_all_v with counts that differ between sender and receiver") {
  for (const std::string backend : {"host", "levelless"}) {
    CAPTURE(backend);
    std::string errors[2];
    const auto body = [&](World& world) {
      auto comm = open(world, {.name = "own", .backend = backend});
      auto stream = comm.device().stream();
      const bool receiver = world.rank() == 1;
      // Rank 0 sends 3 elements to rank 1, which expects 4.
      std::vector<float> src(receiver ? 0 : 3), dst(receiver ? 4 : 0);
      const std::vector<std::uint64_t> none{0, 0}, sent{0, 3}, received{4, 0};
      errors[world.rank()] = error_of([&] {
        comm.all_to_all_v(src, receiver ? none : sent, dst, receiver ? received : none, stream)
            .synchronize();
        // Rank 0 may complete its part before rank 1 finds the difference.
        comm.barrier(stream).synchronize();
      });
    };
    atoll_test::run_thread_ranks(
        2, body, [](atoll::Config& config) { config.plugin_path = ATOLL_TEST_PLUGINS; });
    CHECK(errors[1].starts_with("mismatch: "));
    CHECK(
        errors[1].find(backend == "host"
                           ? "all_to_all_v 0 (3 x f32 to rank 1"
                           : "all_to_all_v: rank 0 sends 3 elements to rank 1, which receives 4") !=
        std::string::npos);
    CHECK(errors[0] != "no error");
  }
}

TEST_CASE("8-bit floating-point elements cannot be reduced, and products take no factor") {
  World world = atoll_test::single_rank();
  auto comm = open(world, {.name = "own"});
  auto stream = comm.device().stream();
  std::vector<atoll::float8_e4m3> small(4);
  CHECK(has(error_of([&] { (void)comm.all_reduce(small, small, atoll::ReduceOp::max, stream); }),
            {"elements of f8e4m3 cannot be reduced", "convert them to bf16 or f32"}));
  std::vector<float> data(4), to(3);
  CHECK(has(error_of([&] {
              (void)comm.all_reduce(data, data, {atoll::ReduceOp::product, 2.0}, stream);
            }),
            "a factor of 2 is not supported with product"));
  const std::vector<std::uint64_t> one{4}, two{3};
  CHECK(has(error_of([&] { (void)comm.all_to_all_v(data, one, to, two, stream); }),
            "rank 0 sends 4 elements to itself, but receives 3"));
}
