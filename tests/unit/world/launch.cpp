// Checks which launcher is found in which environment, and which error messages incomplete
// environments cause.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "atoll/error.hpp"
#include "core/host.hpp"
#include "unit/error_text.hpp"
#include "world/launch.hpp"

namespace {

using atoll_test::error_of;
using atoll_test::has;
using Values = std::map<std::string, std::string>;

atoll::Config with_address() {
  atoll::Config config;
  config.addr = "10.0.0.1:4000";
  config.token = "secret";
  return config;
}

// Returns the launcher that is found as "launcher rank/size address:port token", or the error
// message.
std::string found(const Values& values, const atoll::Config& config = {}) {
  for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  std::string result;
  try {
    const atoll::launch::Job job = atoll::launch::find(config);
    result = job.launcher + " " + std::to_string(job.rank) + "/" + std::to_string(job.size);
    if (job.agreed) {
      result += " " + job.agreed->addresses.front() + ":" + std::to_string(job.agreed->port) + " " +
                job.agreed->token;
    }
  } catch (const atoll::Error& error) {
    result = error.what();
  }
  for (const auto& [name, value] : values) ::unsetenv(name.c_str());
  return result;
}

}  // namespace

TEST_CASE("without any variable the job has one rank") { CHECK(found({}) == "single 0/1"); }

TEST_CASE("explicit") {
  atoll::Config config = with_address();
  config.rank = 1;
  config.size = 2;
  CHECK(found({{"RANK", "5"}, {"WORLD_SIZE", "6"}, {"MASTER_ADDR", "localhost"}}, config) ==
        "explicit 1/2 10.0.0.1:4000 secret");
  config.addr = "[fd00::2]:17";
  CHECK(found({}, config) == "explicit 1/2 fd00::2:17 secret");
  config.token.clear();
  CHECK(has(found({}, config), "also set ATOLL_TOKEN"));
  config.addr.clear();
  CHECK(has(found({}, config), "also set ATOLL_ADDR (host:port of rank 0) and ATOLL_TOKEN"));
  for (const char* bad : {"host", "host:", ":5", "host:65536", "host:5x"}) {
    config = with_address();
    config.rank = 0;
    config.size = 2;
    config.addr = bad;
    CHECK(has(found({}, config), "ATOLL_ADDR=\"" + std::string(bad) + "\": expected host:port"));
  }
  config.size = -1;
  CHECK(found({}, config) == "ATOLL_RANK is set, but ATOLL_SIZE is not: set both");
  config.rank = -1;
  config.size = 2;
  CHECK(found({}, config) == "ATOLL_SIZE is set, but ATOLL_RANK is not: set both");
}

TEST_CASE("Open MPI with a configured address, or with one rank, needs no PMIx") {
  const Values one{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  CHECK(found(one) == "openmpi 0/1");
  const Values three{{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}};
  CHECK(found(three, with_address()) == "openmpi 2/3 10.0.0.1:4000 secret");
}

TEST_CASE("PMI comes before Slurm, and bad numbers are named") {
  const Values pmi{{"PMI_FD", "77"},       {"PMI_RANK", "1"},     {"PMI_SIZE", "2"},
                   {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}};
  CHECK(found(pmi, with_address()) == "pmi 1/2 10.0.0.1:4000 secret");
  CHECK(found({{"PMI_FD", "x"}}) == "PMI_FD=\"x\": expected a whole number from 0");
}

TEST_CASE("PMI: a launcher that reads nothing in time is told from one that has gone") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  const std::string much(1 << 16, 'x');
  while (::send(ends[0], much.data(), much.size(), MSG_DONTWAIT) > 0) continue;
  const Values pmi{{"PMI_FD", std::to_string(ends[0])}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  for (const auto& [name, value] : pmi) ::setenv(name.c_str(), value.c_str(), 1);
  const atoll::launch::Job job = atoll::launch::find({});
  for (const auto& [name, value] : pmi) ::unsetenv(name.c_str());
  const auto look_up = [&] {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    return error_of([&] { job.rendezvous->look_up(deadline); });
  };
  CHECK(look_up().starts_with("timeout: "));
  ::close(ends[1]);
  CHECK(look_up().starts_with("input/output error: "));
  ::close(ends[0]);
}

TEST_CASE(
    "torchrun: the store uses the port after MASTER_PORT and needs a token unless it is on "
    "loopback") {
  Values values{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  CHECK(found(values) == "torchrun 1/2 127.0.0.1:29501 ");
  atoll::Config config;
  config.port = 4444;
  config.token = "t";
  CHECK(found(values, config) == "torchrun 1/2 127.0.0.1:4444 t");
  values["MASTER_ADDR"] = "192.0.2.1";
  CHECK(has(found(values), "192.0.2.1 can be reached from other hosts: set ATOLL_TOKEN"));
  values["LOCAL_WORLD_SIZE"] = "2";  // all ranks are on this host
  CHECK(found(values) == "torchrun 1/2 192.0.2.1:29501 ");
  config.port = 0;
  CHECK(found(values, config) == "torchrun 1/2 192.0.2.1:29501 t");
  values.erase("MASTER_PORT");
  CHECK(has(found(values, config), "no port for the store"));
  values["WORLD_SIZE"] = "1";
  CHECK(found(values) == "RANK=1 and WORLD_SIZE=1: expected rank < size");
}

TEST_CASE("Slurm without PMI needs an address, and says how to get PMIx") {
  Values step{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}};
  CHECK(found(step, with_address()) == "slurm 1/4 10.0.0.1:4000 secret");
  CHECK(has(found(step), "a Slurm step without PMI: start it with `srun --mpi=pmix`"));
  step.erase("SLURM_STEP_ID");  // batch scripts run outside of Slurm steps and have no step id
  CHECK(found(step) == "single 0/1");
}

TEST_CASE("an endpoint survives its text form; malformed text is rejected") {
  const atoll::launch::Endpoint endpoint{
      atoll::net::host_id(), {"10.0.0.1", "fd00::2"}, 4000, "ab"};
  const std::string text = atoll::launch::to_text(endpoint);
  CHECK(text.find_first_of(" =\n") == std::string::npos);
  const atoll::launch::Endpoint back = atoll::launch::endpoint_from_text(text);
  CHECK(back.host_id == endpoint.host_id);
  CHECK(back.addresses == endpoint.addresses);
  CHECK(back.port == 4000);
  CHECK(back.token == "ab");
  for (const char* bad : {"", "|||", "h|a|1", "h|a|0|t", "h|a|70000|t", "h||1|t", "h|a|1|t|x"}) {
    CHECK_THROWS_AS(atoll::launch::endpoint_from_text(bad), atoll::Error);
  }
}

TEST_CASE("which texts mean this host to every host") {
  for (const char* text : {"localhost", "localhost.localdomain", "127.0.0.1", "127.0.1.1", "::1"})
    CHECK(atoll::net::names_loopback(text));
  CHECK_FALSE(atoll::net::names_loopback("192.0.2.1"));
  CHECK_FALSE(atoll::net::names_loopback("0.0.0.0"));
}

TEST_CASE("interfaces that cannot be rails: the message names the problem and all interfaces") {
  CHECK(atoll::net::rail_addresses("lo") == std::vector<std::string>{"127.0.0.1"});
  CHECK(atoll::net::rail_addresses("").size() == 1);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"none0", "there is no interface none0"},
      {"lo,none0", "there is no interface none0"},
      {"lo,", "a name is empty"},
      {",lo", "a name is empty"},
      {"lo,lo", "interface lo is listed twice"},
  };
  for (const auto& [value, words] : cases) {
    CHECK(has(error_of([&] { atoll::net::rail_addresses(value); }),
              {"ATOLL_INTERFACE=\"" + value + "\": " + words, " lo"}));
  }
}
