// Tests atoll-busbw with buffers in GPU memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "job.hpp"
#include "sweep.hpp"
#include "thread_ranks.hpp"
#include "verdict.hpp"

namespace {

// Runs `body` with up to three threads as ranks, each with a separate GPU.
void run_ranks(const std::function<void(atoll::World&)>& body) {
  atoll_test::run_thread_ranks(std::min(3, atoll::Device::cuda_count()), body,
                               [](atoll::Config& config) {
                                 config.log = "error";
                                 config.owns_process = 1;
                                 config.plugin_path = atoll::Config::from_env().plugin_path;
                               });
}

busbw::Options options_of() {
  busbw::Options options;
  options.device = "cuda";
  options.min_bytes = 4;
  options.max_bytes = 4096;
  options.step_factor = 32;
  options.iterations = 2;
  options.checks = 2;
  return options;
}

}  // namespace

TEST_CASE("every collective and element type, registered or not: results are right") {
  run_ranks([](atoll::World& world) {
    for (const auto memory : {busbw::MemoryKind::registered, busbw::MemoryKind::plain}) {
      busbw::Options options = options_of();
      options.memory = memory;
      options.dtypes = {atoll::DType::f32, atoll::DType::bf16, atoll::DType::u8};
      options.ops = {busbw::Op::sum, busbw::Op::avg, busbw::Op::mulsum};
      busbw::Job job(world, options);
      REQUIRE(job.is_on_gpu());
      REQUIRE(job.communicator->backend() == "nccl");
      busbw::Sweep sweep(job, options);
      using enum busbw::Collective;
      for (const auto collective :
           {all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, all_to_all,
            all_gather_v, reduce_scatter_v, send_recv}) {
        const busbw::Table table = sweep.run(collective);
        REQUIRE(!table.rows.empty());
        REQUIRE(table.verdict.wrong_rows == 0);
        for (const busbw::Row& row : table.rows) {
          REQUIRE(row.out.wrong == 0);
          REQUIRE(row.out.time_us > 0);
        }
      }
    }
  });
}

TEST_CASE("the devices of all ranks are listed as nccl-tests lists them") {
  run_ranks([](atoll::World& world) {
    const busbw::Options options = options_of();
    busbw::Job job(world, options);
    const std::string text = busbw::preamble(job, options, busbw::Collective::all_reduce);
    for (int rank = 0; rank < world.size(); ++rank) {
      const auto gpu = atoll::Device::cuda(rank);
      const auto pci = std::string(gpu.pci_address());
      const std::string wanted = "device  " + std::to_string(rank) + " [" +
                                 pci.substr(0, pci.rfind('.')) + "] " + std::string(gpu.name());
      REQUIRE(text.find(wanted) != std::string::npos);
    }
  });
}

TEST_CASE("-x 2: copy engines run all_gather, with -x 1 and without -x they do not") {
  const bool emulated = atoll::Device::cuda().name().find("emulated") != std::string_view::npos;
  run_ranks([&](atoll::World& world) {
    if (world.size() < 2) return;
    for (const auto units :
         {atoll::ComputeUnits::any, atoll::ComputeUnits::few, atoll::ComputeUnits::none}) {
      busbw::Options options = options_of();
      options.compute_units = units;
      busbw::Job job(world, options);
      REQUIRE(!busbw::Sweep(job, options).run(busbw::Collective::all_gather).rows.empty());
      const auto copies = job.communicator->transports().copy_engines;
      // Real GPUs may have no fast link, or the log of NCCL, which tells this, may be redirected.
      if (emulated) REQUIRE(copies == (units == atoll::ComputeUnits::none));
    }
  });
}

TEST_CASE("pairs of GPUs are measured and judged") {
  run_ranks([](atoll::World& world) {
    busbw::Options options = options_of();
    busbw::Job job(world, options);
    if (world.size() < 2) return;
    const busbw::PairReport report = busbw::measure_pairs(job, options);
    REQUIRE(report.is_judged);
    REQUIRE(report.gbyte_s.size() == static_cast<std::size_t>(world.size()));
    REQUIRE(report.gbyte_s[0][1] > 0);
  });
}

TEST_CASE("sizes beyond the GPU memory are refused before anything is allocated") {
  run_ranks([](atoll::World& world) {
    busbw::Options options = options_of();
    options.max_bytes = std::uint64_t{1} << 50;
    busbw::Job job(world, options);
    REQUIRE_THROWS_WITH(busbw::Sweep(job, options),
                        doctest::Contains("exceed a rank's share of its GPU"));
  });
}
