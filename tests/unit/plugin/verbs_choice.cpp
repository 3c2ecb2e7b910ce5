// Tests which ports the verbs backend chooses for a rank. The backend asks the core once for each
// device and keeps the answer, so each case uses another device.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "sdk/backend.hpp"
#include "verbs/choice.hpp"

using namespace atoll_verbs_backend;

namespace {

// A core that answers every question about adapters with the same text.
struct Core {
  explicit Core(std::string its_answer, atoll_status its_status = ATOLL_OK)
      : answer(std::move(its_answer)), status(its_status) {
    services.size = sizeof(services);
    services.ctx = this;
    services.adapters = [](void* ctx, std::int32_t asked, char* value, std::size_t* n) {
      Core& core = *static_cast<Core*>(ctx);
      ++core.calls;
      core.device = asked;
      const bool fits = core.answer.size() <= *n;
      *n = core.answer.size();
      if (!fits) return static_cast<atoll_status>(ATOLL_INVALID_ARGUMENT);
      std::memcpy(value, core.answer.data(), core.answer.size());
      return core.status;
    };
  }
  std::string answer;
  atoll_status status;
  int calls = 0;
  int device = -100;
  atoll_core services{};
};

const std::vector<PortName> active{{"mlx5_0", 1}, {"mlx5_0", 2}, {"mlx5_1", 1}};

// The chosen ports and the reason as one text.
std::string choice_of(const atoll_core& core, int device, std::vector<PortName> wanted = {}) {
  const auto choice = choose_ports(core, std::move(wanted), active, device);
  std::string text;
  for (const auto& port : choice.ports) text += port.device + ":" + std::to_string(port.port) + " ";
  return text + "(" + choice.why + ")";
}

const std::string all = "mlx5_0:1 mlx5_0:2 mlx5_1:1 ";

}  // namespace

TEST_CASE("the topology chooses the ports, and the core is asked once per device") {
  Core core("mlx5_1,mlx5_0:2\nnearest to the GPU\nwith 400 Gb/s");
  CHECK(choice_of(core.services, 0) == "mlx5_1:1 mlx5_0:2 (nearest to the GPU\nwith 400 Gb/s)");
  CHECK(core.device == 0);
  CHECK(choice_of(core.services, 0) == "mlx5_1:1 mlx5_0:2 (nearest to the GPU\nwith 400 Gb/s)");
  CHECK(core.calls == 1);
  core.answer = "mlx5_0\nCPU memory";
  CHECK(choice_of(core.services, -1) == "mlx5_0:1 (CPU memory)");
  CHECK(core.device == -1);
  CHECK(core.calls == 2);
}

TEST_CASE("ATOLL_RDMA has precedence, and the core is not asked") {
  Core core("mlx5_1\nthe topology");
  CHECK(choice_of(core.services, 1, {{"other", 3}}) == "other:3 (ATOLL_RDMA names them)");
  CHECK(core.calls == 0);
}

TEST_CASE("ports that are not active do not count") {
  Core core("mlx5_1:2,mlx5_9,mlx5_0:2\nbecause");
  CHECK(choice_of(core.services, 2) == "mlx5_0:2 (because)");
  Core none("mlx5_9\nnearest");
  CHECK(choice_of(none.services, 3) == all + "(all active ports; nearest)");
}

TEST_CASE("without an answer of the core, all active ports are used") {
  Core failing("mlx5_1\nwrong", ATOLL_INTERNAL);
  CHECK(choice_of(failing.services, 12) ==
        all + "(all active ports; the topology of this host cannot be discovered)");
  Core endless(std::string(5000, 'a'));
  CHECK(choice_of(endless.services, 13) ==
        all + "(all active ports; the topology of this host cannot be discovered)");
  Core empty("\nno adapter is active");
  CHECK(choice_of(empty.services, 14) == all + "(all active ports; no adapter is active)");
}
