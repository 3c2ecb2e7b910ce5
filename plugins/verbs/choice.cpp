#include "verbs/choice.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace atoll_verbs_backend {
namespace {

// The answer of atoll_core::adapters: "DEVICE,DEVICE:PORT" and the reason.
struct Answer {
  std::string list, why;
};

Answer ask(const atoll_core& core, int device) {
  std::string text(4096, '\0');
  std::size_t n = text.size();
  if (core.adapters(core.ctx, device, text.data(), &n) != ATOLL_OK) {
    return {"", "the topology of this host cannot be discovered"};
  }
  text.resize(n);
  const auto newline = text.find('\n');
  if (newline == std::string::npos) return {};
  return {text.substr(0, newline), text.substr(newline + 1)};
}

Answer ask_once(const atoll_core& core, int device) {
  static std::mutex mutex;
  static std::map<int, Answer> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  return found != known.end() ? found->second : known[device] = ask(core, device);
}

}  // namespace

PortChoice choose_ports(const atoll_core& core, std::vector<PortName> wanted,
                        const std::vector<PortName>& active, int device) {
  if (!wanted.empty()) return {std::move(wanted), "ATOLL_RDMA names them"};
  const Answer answer = ask_once(core, device);
  PortChoice choice{{}, answer.why};
  if (!answer.list.empty()) {
    for (auto& port : parse_ports("adapters", answer.list)) {
      const auto is_same = [&](const PortName& one) {
        return one.device == port.device && one.port == port.port;
      };
      if (std::ranges::any_of(active, is_same)) choice.ports.push_back(std::move(port));
    }
  }
  if (choice.ports.empty()) choice = {active, "all active ports; " + answer.why};
  return choice;
}

}  // namespace atoll_verbs_backend
