// Tests how the nccl backend captures and parses NCCL's log.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../../plugins/nccl/log.hpp"

using namespace atoll_nccl;

namespace {

const std::string prefix = "node7:4711:4822 [3] NCCL INFO ";

std::string connection(const std::string& way) {
  return prefix + "Channel 02/0 : 3[3] -> 11[3] [send] via " + way + '\n';
}

// Detects changes to the array `environ`, which another thread may be reading.
class Reading {
 public:
  bool is_undisturbed() const { return environ != array_ && entries() == before_; }

 private:
  std::vector<char*> entries() const {
    std::vector<char*> all;
    for (char** entry = array_; *entry != nullptr; ++entry) all.push_back(*entry);
    return all;
  }
  char** array_ = environ;
  std::vector<char*> before_ = entries();
};

}  // namespace

TEST_CASE("the parser finds the networks and whether all connections use GPUDirect RDMA") {
  CHECK(transports_of("") == "");
  CHECK(transports_of(connection("P2P/CUMEM") + connection("SHM/direct/direct")) == "");
  CHECK(transports_of(connection("NET/Socket/0")) == "network=Socket\ngdr=no\n");
  CHECK(transports_of(connection("NET/IB/3/GDRDMA") +
                      connection("NET/IB/4(5)/GDRDMA(PCI)/Shared")) == "network=IB\ngdr=yes\n");
  CHECK(transports_of(connection("NET/IB/3/GDRDMA") + connection("NET/IB/1/Shared")) ==
        "network=IB\ngdr=some\n");
  CHECK(transports_of(connection("NET/IB/3/GDRDMA") + connection("NET/AWS Libfabric/0/GDRDMA")) ==
        "network=AWS Libfabric\nnetwork=IB\ngdr=yes\n");
}

TEST_CASE(
    "the parser understands the NVLS lines of several versions, also without a final newline") {
  CHECK(transports_of(prefix +
                      "NVLS multicast support is available on dev 3 (NVLS_NCHANNELS 16)\n") ==
        "nvls=yes\n");
  CHECK(transports_of(prefix + "NVLS multicast support is not available on dev 3") == "nvls=no\n");
  CHECK(transports_of(prefix + "NVLS multicast support is available on dev 3, transport disabled, "
                               "symmetric multimem enabled\n") == "");
  CHECK(transports_of(connection("NET/IB/3/GDRDMA") + prefix +
                      "NVLS multicast support is available on dev 3, transport enabled, symmetric "
                      "multimem enabled") == "network=IB\ngdr=yes\nnvls=yes\n");
}

TEST_CASE("the log is captured in memory unless the user has set NCCL_DEBUG") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setenv("NCCL_DEBUG", "WARN", 1);
    keep_log(true);
    const bool untouched = std::getenv("NCCL_DEBUG_FILE") == nullptr;
    const bool told =
        transports() == "unknown=NCCL_DEBUG=WARN is set, so NCCL's log is not captured\n";
    ::_exit(untouched && told ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);

  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"}) ::unsetenv(name);
  ::setenv("ATOLL_TEST_ENVIRONMENT", "1", 1);  // the C library then owns the array
  const Reading reading;
  keep_log(true);
  CHECK(reading.is_undisturbed());
  REQUIRE(std::string(std::getenv("NCCL_DEBUG")) == "INFO");
  CHECK(transports() == "");
  std::FILE* const log =
      std::fopen(std::getenv("NCCL_DEBUG_FILE"), "w");  // NCCL opens its log file in the same mode
  REQUIRE(log != nullptr);
  const Reading later;
  release_environment();
  CHECK(later.is_undisturbed());
  CHECK(std::getenv("NCCL_DEBUG_FILE") == nullptr);
  CHECK(std::getenv("NCCL_DEBUG") == nullptr);
  std::fputs(connection("NET/IB/0").c_str(), log);
  std::fflush(log);
  CHECK(transports() == "network=IB\ngdr=no\n");

  // The log shows that copy engines were opened, and note_gather() tells whether for a gather.
  const auto before = log_size();
  CHECK_FALSE(opened_copy_engines(before));
  std::fputs((prefix + "Init COMPLETE\n").c_str(), log);
  std::fflush(log);
  CHECK_FALSE(opened_copy_engines(before));
  std::fputs((prefix + "Init CE, rank 0 baseUCSymReadyPtr 0x7f\n").c_str(), log);
  std::fflush(log);
  CHECK(opened_copy_engines(before));
  CHECK_FALSE(opened_copy_engines(log_size()));
  CHECK(transports() == "network=IB\ngdr=no\n");
  note_gather(false);
  CHECK(transports() == "network=IB\ngdr=no\ncopy_engines=no\n");
  note_gather(true);
  note_gather(false);
  CHECK(transports() == "network=IB\ngdr=no\ncopy_engines=yes\n");

  // After forget_log(), lines and gathers of closed communicators do not describe later ones.
  forget_log();
  CHECK(transports() == "");
  note_gather(false);
  CHECK(transports() == "copy_engines=no\n");
  std::fclose(log);
}
