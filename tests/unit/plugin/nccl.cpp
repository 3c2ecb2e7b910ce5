// Tests the nccl backend with threads as ranks on an emulated GPU and an emulated NCCL
// (fake_gpu.hpp): its NCCL calls, waiting, failures and cleanup. The tests of the backend on the
// real NCCL cover only its table and probe().
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <string>
#include <thread>

#include "fake_gpu.hpp"
#include "unit/plugin/collectives.hpp"

using namespace plugin_ranks;

namespace {

std::atomic<int> sleeps{0};

}  // namespace

// Stands in for the function of the C library, also in the backend, and counts its calls.
extern "C" int nanosleep(const timespec* time, timespec* left) {
  ++sleeps;
  return ::clock_nanosleep(CLOCK_MONOTONIC, 0, time, left) == 0 ? 0 : -1;
}

namespace {

const atoll_backend& backend() {
  static const atoll_backend& table = load(ATOLL_PLUGIN_NCCL_FAKE);
  return table;
}

const GroupOptions on_gpus{.memory = ATOLL_MEMORY_CUDA};
GroupOptions with_timeout(std::int64_t ms) {
  GroupOptions options = on_gpus;
  options.timeout_ns = ms * 1'000'000;
  return options;
}

const std::vector<std::int32_t> summed = {ATOLL_F32, ATOLL_F64, ATOLL_I32, ATOLL_I64,
                                          ATOLL_U8,  ATOLL_I8,  ATOLL_U32, ATOLL_U64};
const std::vector<std::int32_t> moved = {
    ATOLL_F32, ATOLL_BF16, ATOLL_F16, ATOLL_F64,    ATOLL_I32,    ATOLL_I64, ATOLL_U8,  ATOLL_I8,
    ATOLL_U16, ATOLL_U32,  ATOLL_U64, ATOLL_F8E4M3, ATOLL_F8E5M2, ATOLL_I16, ATOLL_BOOL};

bool has(const Result& result, const char* what) {
  return result.text.find(what) != std::string::npos;
}

Result add_one(Rank& rank, std::uint64_t count = 5) {
  std::vector<float> data(count, 1.0f);
  return rank.submit(rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, data.data(), data.data(), count));
}

}  // namespace

TEST_CASE("the backend on the real NCCL loads and reports a missing GPU") {
  const atoll_backend& real = load(ATOLL_PLUGIN_NCCL);
  CHECK(std::string(real.name) == "nccl");
  CHECK(real.size == sizeof(atoll_backend));
  const Group on_gpu({0}, 0, on_gpus), on_host({0}, 0);
  if (real.probe(nullptr, &on_gpu.get()) == 0) {
    CHECK(std::string(real.last_error(nullptr)).find("the CUDA runtime finds no GPU") == 0);
  }
  CHECK(real.probe(nullptr, &on_host.get()) == 0);
  CHECK(std::string(real.last_error(nullptr)) == "the nccl backend supports GPU memory only");
}

TEST_CASE("16-bit sums, floating-point averages and CPU memory are reported as unsupported") {
  const auto can = [](std::int32_t kind, std::int32_t dtype, std::int32_t op) {
    return backend().capability(kind, dtype, op, ATOLL_MEMORY_CUDA);
  };
  for (const auto kind : {ATOLL_ALL_REDUCE, ATOLL_REDUCE_SCATTER, ATOLL_REDUCE_SCATTER_V}) {
    for (const auto dtype : summed) CHECK(can(kind, dtype, ATOLL_SUM) == 1);
    CHECK(can(kind, ATOLL_BF16, ATOLL_SUM) == 2);
    CHECK(can(kind, ATOLL_F16, ATOLL_MAX) == 2);
    CHECK(can(kind, ATOLL_F32, ATOLL_AVG) == 2);
    CHECK(can(kind, ATOLL_I32, ATOLL_AVG) == 1);
    CHECK(can(kind, ATOLL_F64, ATOLL_PRODUCT) == 1);
    CHECK(can(kind, ATOLL_U16, ATOLL_SUM) == 0);
    CHECK(can(kind, ATOLL_I16, ATOLL_SUM) == 0);
    CHECK(can(kind, ATOLL_I32, ATOLL_BXOR) == 0);
    CHECK(can(kind, ATOLL_BOOL, ATOLL_MAX) == 1);
    CHECK(can(kind, ATOLL_BOOL, ATOLL_AVG) == 0);
    CHECK(can(kind, ATOLL_F8E4M3, ATOLL_SUM) == 0);
  }
  for (const auto dtype : moved) CHECK(can(ATOLL_ALL_GATHER, dtype, 0) == 1);
  CHECK(can(17, ATOLL_F32, ATOLL_SUM) == 0);
  CHECK(can(ATOLL_ALL_GATHER, 17, ATOLL_SUM) == 0);
  CHECK(backend().capability(ATOLL_ALL_GATHER, ATOLL_F32, 0, ATOLL_MEMORY_CPU) == 0);
}

TEST_CASE("memory of the caller is registered until its registration ends or the group closes") {
  FakeCore core;
  const fake_gpu::Left before = fake_gpu::left();
  auto ranks = open_ranks(backend(), core, {0, 0}, on_gpus);
  std::array<std::vector<float>, 2> memories{std::vector<float>(10, 1.0f),
                                             std::vector<float>(10, 2.0f)};
  in_threads(2, [&](int r) {
    Rank& rank = ranks[static_cast<std::size_t>(r)];
    float* data = memories[static_cast<std::size_t>(r)].data();
    std::string slow;
    expect_ok(rank.register_caller_memory(data, 40, slow));
    CHECK(slow.find("symmetric kernels need memory from allocate()") != std::string::npos);
    CHECK(rank.register_caller_memory(data, 40, slow).status == ATOLL_INVALID_ARGUMENT);
    expect_ok(rank.submit(rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, data, data, 10)));
    CHECK(data[9] == 3.0f);
    if (r == 0) expect_ok(rank.deregister_caller_memory(data));
  });
  CHECK(fake_gpu::left().windows == before.windows + 1);
  CHECK(ranks[0].deregister_caller_memory(memories[0].data()).status == ATOLL_NOT_FOUND);
  close_ranks(ranks);
  CHECK(fake_gpu::left().windows == before.windows);
}

TEST_CASE("memory of the caller that overlaps registered memory is refused") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0}, on_gpus);
  Rank& rank = ranks[0];
  std::vector<float> memory(100);
  std::string slow;
  expect_ok(rank.register_caller_memory(&memory[40], 80, slow));  // elements 40 to 59
  struct Range {
    std::size_t first, count;
  };
  for (const auto& [first, count] :
       {Range{40, 20}, {40, 1}, {59, 1}, {50, 30}, {20, 21}, {0, 100}}) {
    CAPTURE(first);
    const auto result = rank.register_caller_memory(&memory[first], 4 * count, slow);
    CHECK(result.status == ATOLL_INVALID_ARGUMENT);
    CHECK(result.text.find("which are registered already: end that registration first") !=
          std::string::npos);
  }
  expect_ok(rank.register_caller_memory(&memory[20], 80, slow));
  expect_ok(rank.register_caller_memory(&memory[60], 80, slow));
  expect_ok(rank.deregister_caller_memory(&memory[40]));
  expect_ok(rank.register_caller_memory(&memory[45], 20, slow));

  void* window = nullptr;
  REQUIRE(backend().mem_alloc(4096, ATOLL_MEMORY_CUDA, 0, &window) == ATOLL_OK);
  expect_ok(rank.register_memory(window, 4096));
  const auto result = rank.register_caller_memory(static_cast<char*>(window) + 8, 8, slow);
  CHECK(result.status == ATOLL_INVALID_ARGUMENT);
  CHECK(result.text.ends_with("memory from allocate() needs no other registration"));
  CHECK(rank.deregister_caller_memory(window).status == ATOLL_NOT_FOUND);
  close_ranks(ranks);
  CHECK(backend().mem_free(window) == ATOLL_OK);
}

TEST_CASE("windows end with their communicator, and memory when it is freed") {
  FakeCore core;
  const fake_gpu::Left before = fake_gpu::left();
  auto ranks = open_ranks(backend(), core, {0, 0}, on_gpus);
  std::array<void*, 2> memories{};
  in_threads(2, [&](int r) {
    void*& memory = memories[static_cast<std::size_t>(r)];
    REQUIRE(backend().mem_alloc(4096, ATOLL_MEMORY_CUDA, r, &memory) == ATOLL_OK);
    expect_ok(ranks[static_cast<std::size_t>(r)].register_memory(memory, 4096));
  });
  CHECK(backend().mem_alloc(1, ATOLL_MEMORY_CPU, 0, nullptr) == ATOLL_UNSUPPORTED);
  CHECK((backend().deregister_memory == nullptr));
  CHECK(fake_gpu::left().windows == before.windows + 2);
  close_ranks(ranks);
  for (void* const memory : memories) CHECK(backend().mem_free(memory) == ATOLL_OK);
  const fake_gpu::Left after = fake_gpu::left();
  CHECK(after.windows == before.windows);
  CHECK(after.allocations == before.allocations);
  CHECK(after.communicators == before.communicators);
}

TEST_CASE("options that NCCL cannot honor are refused before waiting for other ranks") {
  FakeCore core;
  atoll_comm* comm = nullptr;
  GroupOptions wishes = on_gpus;
  wishes.deterministic = 1;
  const Group ordered({0, 0}, 0, wishes);
  CHECK(backend().open(&core.services(), &ordered.get(), &comm) == ATOLL_UNSUPPORTED);
  wishes = on_gpus;
  wishes.tuning = "all_reduce 0 ring\n";
  const Group tuned({0, 0}, 0, wishes);
  CHECK(backend().open(&core.services(), &tuned.get(), &comm) == ATOLL_INVALID_ARGUMENT);
  CHECK(std::string(backend().last_error(nullptr)).find("NCCL_ALGO") != std::string::npos);
  const Group on_host({0, 0}, 0);
  CHECK(backend().open(&core.services(), &on_host.get(), &comm) == ATOLL_UNSUPPORTED);
}

TEST_CASE("opening names the absent rank at the timeout") {
  FakeCore core;
  const Group alone({0, 0}, 0, with_timeout(100));
  atoll_comm* comm = nullptr;
  CHECK(backend().open(&core.services(), &alone.get(), &comm) == ATOLL_TIMEOUT);
  const std::string text = backend().last_error(nullptr);
  CHECK_MESSAGE(text.find("group/nccl/ready/1") != std::string::npos, text);
}

TEST_CASE("opening ends soon after the job has failed, such as when a rank has died in it") {
  static std::atomic<bool> failed{false};
  static decltype(atoll_core::get) get = nullptr;
  FakeCore core;
  get = core.services().get;
  core.services().get = [](void* ctx, const char* key, void* value, std::size_t* n,
                           std::int64_t timeout_ns) -> atoll_status {
    return failed ? ATOLL_PEER_LOST : get(ctx, key, value, n, timeout_ns);
  };
  core.services().put(&core, "group/nccl/ready/1", nullptr, 0);  // rank 1 dies after this
  const Group group({0, 0}, 0, with_timeout(5000));
  atoll_comm* comm = nullptr;
  const auto begin = std::chrono::steady_clock::now();
  std::jthread dying([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    failed = true;
  });
  CHECK(backend().open(&core.services(), &group.get(), &comm) == ATOLL_ABORTED);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));
}

TEST_CASE("an absent call ends in a timeout, and the communicator is cleaned up") {
  FakeCore core;
  const int communicators = fake_gpu::left().communicators;
  {
    auto ranks = open_ranks(backend(), core, {0, 0}, on_gpus);
    ranks[0].timeout_ns = 50'000'000;
    const Result late = add_one(ranks[0]);
    CHECK(late.status == ATOLL_TIMEOUT);
    CHECK_MESSAGE(has(late, "all_reduce 0 (5 x f32, 20 bytes, sum)"), late.text);
    CHECK(add_one(ranks[0]).status == ATOLL_ABORTED);
    ranks[1].abort();
  }
  CHECK(fake_gpu::left().communicators == communicators);
}

TEST_CASE("abort ends a wait on another thread at once, and later calls fail") {
  FakeCore core;
  const int aborted = fake_gpu::aborted();
  Result result;
  {
    auto ranks = open_ranks(backend(), core, {0, 0}, on_gpus);
    {
      std::jthread waiting([&] { result = add_one(ranks[0]); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ranks[0].abort();
    }
    CHECK(result.status == ATOLL_ABORTED);
    CHECK(add_one(ranks[0]).status == ATOLL_ABORTED);
    CHECK(ranks[0].async_error().status == ATOLL_ABORTED);
    ranks[0].abort();
    ranks[1].abort();
  }
  CHECK(fake_gpu::aborted() == aborted + 2);
}

TEST_CASE("NCCL errors, at the launch or later, are reported with NCCL's text") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 0}, on_gpus);
  fake_gpu::fail_next(0, ncclRemoteError);
  const Result lost = add_one(ranks[0]);
  CHECK(lost.status == ATOLL_PEER_LOST);
  CHECK_MESSAGE(has(lost, "remote error (as planted)"), lost.text);
  ranks[0].abort();
  ranks[1].abort();

  auto others = open_ranks(backend(), core, {0, 0}, {.id = "later", .memory = ATOLL_MEMORY_CUDA});
  in_threads(2, [&](int r) { expect_ok(add_one(others[static_cast<std::size_t>(r)])); });
  expect_ok(others[0].async_error());
  fake_gpu::fail_later(ncclSystemError);
  const Result later = others[0].async_error();
  fake_gpu::fail_later(ncclSuccess);
  CHECK(later.status == ATOLL_BACKEND);
  CHECK(add_one(others[0]).status == ATOLL_ABORTED);
  for (Rank& rank : others) rank.abort();
}

TEST_CASE("a launch does not sleep: its thread launches compute as well") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0}, on_gpus);
  const int before = sleeps;
  for (int i = 0; i < 100; ++i) expect_ok(add_one(ranks[0]));
  // A launch may sleep a few times, because another program may take the processor.
  CHECK(sleeps - before < 10);
}

TEST_CASE("transports() reports the GPU memory of the open communicators of this process") {
  const auto bytes = [] {
    const std::string text = backend().transports(nullptr);
    const auto at = text.find("device_bytes=");
    return at == std::string::npos ? std::string() : text.substr(at);
  };
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 0}, on_gpus);
  CHECK(bytes() == "device_bytes=96000000\n");
  {
    FakeCore other;
    auto more = open_ranks(backend(), other, {0}, on_gpus);
    CHECK(bytes() == "device_bytes=144000000\n");
  }
  CHECK(bytes() == "device_bytes=96000000\n");
  ranks[1].abort();
  CHECK(bytes() == "device_bytes=48000000\n");
  ranks[0].abort();
  CHECK(bytes() == "");
}

TEST_CASE("transports() forgets NCCL's log when the last communicator of the process closes") {
  const auto knows = [] {
    return std::string(backend().transports(nullptr)).find("network=Socket") != std::string::npos;
  };
  ::setenv("FAKE_NCCL_LOG", "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n", 1);
  {
    FakeCore core, other;
    auto ranks = open_ranks(backend(), core, {0, 0}, on_gpus);
    { const auto more = open_ranks(backend(), other, {0}, on_gpus); }
    CHECK(knows());
    close_ranks(ranks);
  }
  ::unsetenv("FAKE_NCCL_LOG");
  CHECK_FALSE(knows());
}

TEST_CASE("an invalid operation is refused, and the communicator stays usable") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0}, on_gpus);
  float value = 1;
  auto o = ranks[0].operation(ATOLL_ALL_REDUCE, ATOLL_I16, &value, &value, 1);
  CHECK(ranks[0].submit(o).status == ATOLL_UNSUPPORTED);
  o = ranks[0].operation(ATOLL_ALL_REDUCE, ATOLL_F32, nullptr, &value, 1);
  CHECK(ranks[0].submit(o).status == ATOLL_INVALID_ARGUMENT);
  o.src = &value;
  o.factor = 0.5;
  CHECK(ranks[0].submit(o).status == ATOLL_UNSUPPORTED);
  o.factor = 1;
  o.memory = ATOLL_MEMORY_CPU;
  CHECK(ranks[0].submit(o).status == ATOLL_UNSUPPORTED);
  expect_ok(add_one(ranks[0]));
}
