// Tests what the nccl backend does with different versions of NCCL (fake_gpu.hpp).
#include <doctest/doctest.h>
#include <sys/utsname.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "fake_gpu.hpp"
#include "unit/plugin/collectives.hpp"

using namespace plugin_ranks;

namespace {

const char* machine = "x86_64";

}  // namespace

// Stands in for the function of the C library, also in the backend.
extern "C" int uname(utsname* names) noexcept {
  *names = {};
  std::strncpy(names->machine, machine, sizeof names->machine - 1);
  return 0;
}

namespace {

const atoll_backend& fake_backend() {
  static const atoll_backend& table = load(ATOLL_PLUGIN_NCCL_FAKE);
  return table;
}

const GroupOptions without_units{.compute_units = ATOLL_COMPUTE_UNITS_NONE,
                                 .memory = ATOLL_MEMORY_CUDA};

}  // namespace

TEST_CASE("memory for which NCCL makes no window is registered as a buffer, and is no window") {
  FakeCore core;
  const int before = fake_gpu::left().windows;
  auto ranks = open_ranks(fake_backend(), core, {0, 0}, without_units);
  std::array<void*, 2> memories{};
  fake_gpu::give_windows(false);
  in_threads(2, [&](int r) {
    void*& memory = memories[static_cast<std::size_t>(r)];
    REQUIRE(fake_backend().mem_alloc(4096, ATOLL_MEMORY_CUDA, r, &memory) == ATOLL_OK);
    Rank& rank = ranks[static_cast<std::size_t>(r)];
    expect_ok(rank.register_memory(memory, 4096));
    auto* data = static_cast<float*>(memory);
    data[r] = static_cast<float>(r + 1);
    expect_ok(rank.submit(rank.operation(ATOLL_ALL_GATHER, ATOLL_F32, data + r, data, 1)));
    CHECK(data[1] == 2.0f);
    CHECK(rank.deregister_caller_memory(memory).status == ATOLL_NOT_FOUND);
    std::string slow;
    CHECK(rank.register_caller_memory(memory, 8, slow)
              .text.ends_with("memory from allocate() needs no other registration"));
  });
  fake_gpu::give_windows(true);
  CHECK(fake_gpu::left().windows == before + 2);
  CHECK(std::string(fake_backend().transports(nullptr)).find("copy_engines=no") !=
        std::string::npos);
  close_ranks(ranks);
  CHECK(fake_gpu::left().windows == before);
  for (void* const memory : memories) CHECK(fake_backend().mem_free(memory) == ATOLL_OK);
}

TEST_CASE("a group without compute units gets a policy that the loaded NCCL has") {
  for (const auto& [version, policy] : {std::pair{22'707, 1}, {22'800, 2}}) {
    CAPTURE(version);
    fake_gpu::set_version(version);
    FakeCore core;
    auto ranks = open_ranks(fake_backend(), core, {0, 0}, without_units);
    CHECK(fake_gpu::policy("shard") == policy);
    close_ranks(ranks);
  }
  fake_gpu::set_version(NCCL_VERSION_CODE);
}

TEST_CASE("on ARM, an NCCL that hangs there between hosts is warned of") {
  static std::string warnings;
  const auto warns = [](const char* here, int version, const Layout& layout) {
    machine = here;
    fake_gpu::set_version(version);
    warnings.clear();
    FakeCore core;
    core.services().log = [](void*, std::int32_t level, const char* text) {
      if (level == ATOLL_LOG_WARN) warnings += text;
    };
    auto ranks = open_ranks(fake_backend(), core, layout, without_units);
    close_ranks(ranks);
    machine = "x86_64";
    fake_gpu::set_version(NCCL_VERSION_CODE);
    return warnings.find("2.29.3") != std::string::npos;
  };
  CHECK_FALSE(warns("x86_64", 22'809, {0, 1}));
  CHECK_FALSE(warns("aarch64", 22'903, {0, 1}));
  CHECK_FALSE(warns("aarch64", 22'809, {0, 0}));
  CHECK(warns("aarch64", 22'809, {0, 1}));
}
