// Tests the gates of a run, its endpoint for Prometheus, and the counters of the machine.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

#include "report/endpoint.hpp"
#include "report/gates.hpp"
#include "report/gpu_use.hpp"
#include "report/progress.hpp"
#include "report/utilization.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using doctest::Approx;
using train_test::failure_of;
using train_test::TemporaryFolder;

// Fetches http://127.0.0.1:PORT/metrics.
std::string fetch(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  REQUIRE(::send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; (n = ::recv(fd, part.data(), part.size(), 0)) > 0;) {
    answer.append(part.data(), static_cast<std::size_t>(n));
  }
  ::close(fd);
  return answer;
}

}  // namespace

TEST_CASE("gates: figure and limit are named, with an exit code each") {
  using train::missed_gates;
  CHECK(missed_gates({}, std::nullopt, 1U << 30U).empty());
  CHECK(missed_gates({.min_mfu = 0.4, .max_memory = 100}, 0.4, 100).empty());
  const auto both = missed_gates({.min_mfu = 0.4, .max_memory = 1U << 20U}, 0.3123, 3U << 20U);
  REQUIRE(both.size() == 2);
  CHECK(both[0].exit_code == 3);
  CHECK(both[0].message.starts_with("--min-mfu: MFU was 31.23 %, below the limit of 40.00 %"));
  CHECK(both[1].exit_code == 4);
  CHECK(
      both[1].message.starts_with("--max-memory: a rank used 3.0 MiB, above the limit of 1.0 MiB"));
  const auto unknown = missed_gates({.min_mfu = 0.4}, std::nullopt, 0);
  REQUIRE(unknown.size() == 1);
  CHECK(unknown[0].exit_code == 3);
  CHECK(unknown[0].message.find("--warmup-steps") != std::string::npos);
}

TEST_CASE("progress: the time left counts what lies between steps") {
  using namespace std::chrono_literals;
  train::ProgressPacer pacer({.surface = train::Surface::log, .total_steps = 100, .every = 1});
  const train::ProgressPacer::Clock::time_point start{};
  const auto line = [&](std::int64_t step, std::chrono::seconds at) {
    return pacer.step({.step = step, .seconds = 1}, {}, start + at).value_or("");
  };
  // A resumed run begins at step 11; each step takes 10 s with its evaluation, not 1 s.
  CHECK(line(11, 0s).starts_with("step 11/100  loss"));
  CHECK(line(12, 10s).starts_with("step 12/100 (14:40 left)  loss"));
  CHECK(line(21, 100s).starts_with("step 21/100 (13:10 left)  loss"));
  CHECK(line(100, 890s).starts_with("step 100/100  loss"));
  train::ProgressPacer slow({.surface = train::Surface::log, .total_steps = 100, .every = 1});
  (void)slow.step({.step = 1}, {}, start);
  CHECK(slow.step({.step = 2}, {}, start + 100s).value_or("").find("(2:43:20 left)") !=
        std::string::npos);
}

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

TEST_CASE("prometheus: the figures of the last step, and a port that is taken") {
  std::unique_ptr<train::Endpoint> endpoint;
  const auto absent = failure_of([&] {
    endpoint = std::make_unique<train::Endpoint>(
        train::EndpointOptions{.run_name = "try \"1\"", .model = "tiny", .total_steps = 10});
  });
  if (absent.thrown) {
    CHECK(absent.code == ErrorCode::unsupported);
    CHECK(absent.says("prometheus-cpp-dev"));
    MESSAGE("built without prometheus-cpp");
    return;
  }
  train::StepRecord step{.step = 7, .seconds = 2, .loss = 1.25, .real = 300, .flops = 3e12};
  step.nonfinite = true;
  endpoint->step(step, {.peak_flops = 4e12, .world_size = 1});
  const auto text = fetch(endpoint->port());
  for (const char* line :
       {"training_mfu{", "} 0.375", "training_loss{", "} 1.25", "training_step{", "} 7",
        "training_tokens_per_second{", "} 150", "training_nonfinite_steps_total{", "model=\"tiny\"",
        "run=\"try \\\"1\\\"\"", "training_last_step_timestamp_seconds{"}) {
    CAPTURE(line);
    CHECK(text.find(line) != std::string::npos);
  }
  // An evaluation that has not been made is absent, so no alert can compare it.
  CHECK(text.find("training_eval_loss") == std::string::npos);
  const int port = endpoint->port();
  const auto taken =
      failure_of([&] { train::Endpoint({.port = port, .run_name = "", .model = ""}); });
  CHECK(taken.code == ErrorCode::io);
  CHECK(taken.says("--metrics-port"));
}
