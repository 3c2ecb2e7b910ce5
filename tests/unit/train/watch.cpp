// Tests the counters of the machine and of its GPUs.
#include <doctest/doctest.h>

#include <array>
#include <filesystem>

#include "report/gpu_use.hpp"
#include "report/utilization.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using doctest::Approx;
using train_test::TemporaryFolder;

}  // namespace

TEST_CASE("machine: counters of Linux, and the use between two samples") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "proc" / "net");
  const auto counters = folder.path() / "sys/class/infiniband/mlx5_0/ports/1/counters";
  std::filesystem::create_directories(counters);
  folder.write("proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1\n");
  folder.write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    250 kB\n");
  folder.write("proc/net/dev",
               "Inter-|   Receive\n face |bytes\n    lo: 9 9 9 9 9 9 9 9 9 9\n"
               "  eth0: 1000 1 0 0 0 0 0 0 500 1 0\n");
  folder.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "10\n");
  folder.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "20\n");
  const auto read = train::read_machine_counters(folder.path());
  CHECK(read.machine_busy_s == Approx(0.2 * read.machine_total_s));
  CHECK(read.memory_total == 1'024'000);
  CHECK(read.memory_available == 256'000);
  CHECK(read.sent == 540);
  CHECK(read.received == 1080);
  auto before = read, after = read;
  after.machine_total_s += 4;
  after.machine_busy_s += 3;
  after.process_cpu_s += 1;
  after.sent += 600;
  const auto use = train::use_between(before, after, 2, 2);
  CHECK(use.cpu_machine == Approx(0.75));
  CHECK(use.cpu_ranks == Approx(0.5));
  after.process_cpu_s += 3;  // limited to the busy time of the machine
  CHECK(train::use_between(before, after, 2, 2).cpu_ranks == Approx(0.75));
  CHECK(use.memory_used_fraction == Approx(0.75));
  CHECK(use.network_sent_per_s == Approx(300));
  CHECK(use.network_received_per_s == 0);
  const auto nothing = train::read_machine_counters(folder.path() / "none");
  CHECK(nothing.machine_total_s == 0);
  CHECK(train::use_between(nothing, nothing, 0, 1).cpu_machine == 0);
  const std::array<train::Utilization, 2> ranks{{{.cpu_machine = 0.2, .network_sent_per_s = 1},
                                                 {.cpu_machine = 0.4, .network_sent_per_s = 3}}};
  CHECK(train::combined(ranks).cpu_machine == Approx(0.3));
  CHECK(train::combined(ranks).network_sent_per_s == 3);
}

TEST_CASE("gpu: busy share and links from NVML, and machines without it") {
  const train::GpuProbe probe("0000:0f:00.0", ATOLL_FAKE_NVML_USE);
  const auto first = probe.read(), second = probe.read();
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->busy == Approx(0.87));
  CHECK(second->nvlink_sent - first->nvlink_sent == 138 * 1024);
  CHECK(second->pcie_sent == 0);  // an error of one field leaves the others
  train::Utilization use;
  train::add_gpu(use, first, *second, 2);
  CHECK(use.gpus == 1);
  CHECK(use.nvlink_received_per_s == Approx(139 * 512));
  train::add_gpu(use, second, *first, 2);  // counters that wrapped around
  CHECK(use.nvlink_received_per_s == 0);
  const std::array<train::Utilization, 2> ranks{{{.gpus = 1, .gpu_busy = 0.8}, {}}};
  CHECK(train::combined(ranks).gpu_busy == Approx(0.8));
  CHECK_FALSE(train::GpuProbe("0000:10:00.0", ATOLL_FAKE_NVML_USE).read());
  CHECK_FALSE(train::GpuProbe("0000:0f:00.0", "/none.so").read());
  CHECK_FALSE(train::GpuProbe("", ATOLL_FAKE_NVML_USE).read());
}
