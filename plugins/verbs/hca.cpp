#include "verbs/hca.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "verbs/stream.hpp"

namespace atoll_verbs_backend {
namespace {

using atoll_sdk::Error;

constexpr int infiniband_subnet_bits = 64;

using DeviceList = std::unique_ptr<ibv_device*, Destroy<ibv_free_device_list>>;

// Calls visit(device) for each RDMA device of this host.
template <class Visit>
void for_each_device(const Visit& visit) {
  int count = 0;
  const DeviceList list(ibv_get_device_list(&count));
  for (int i = 0; list && i < count; ++i) visit(list.get()[i]);
}

std::string known_devices() {
  std::vector<std::string> names;
  for_each_device([&](ibv_device* device) { names.emplace_back(ibv_get_device_name(device)); });
  return names.empty() ? "this host has none" : fmt::format("{}", fmt::join(names, ", "));
}

// Kernels before 5.12 copy a registered page when the process forks and then writes to it, and the
// adapter would keep using the old page; ibv_fork_init() prevents that. It may be called often. It
// fails if another library has registered memory before, which is ignored for lack of a remedy.
Context opened(ibv_device* device) {
  ibv_fork_init();
  return Context(ibv_open_device(device));
}

void set_nonblocking(int descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

Fabric fabric_of(const ibv_gid_entry& entry, bool is_ethernet) {
  if (!is_ethernet) return Fabric::infiniband;
  return entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? Fabric::roce_v2 : Fabric::roce_v1;
}

// Prefers RoCE v2, which routers forward, to v1, and GIDs with an IPv4 address to link-local ones.
int preference(const ibv_gid_entry& entry) {
  return (entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 2 : 0) + (is_mapped_ipv4(entry.gid) ? 1 : 0);
}

std::vector<ibv_gid_entry> gids_of(ibv_context* context, int port, int count) {
  std::vector<ibv_gid_entry> result;
  for (int i = 0; i < count; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, static_cast<std::uint32_t>(port), static_cast<std::uint32_t>(i),
                         &entry, 0) == 0) {
      result.push_back(entry);
    }
  }
  return result;
}

ibv_mtu mtu_of(int bytes) {
  ibv_mtu mtu = IBV_MTU_256;
  for (int i = IBV_MTU_256; i <= IBV_MTU_4096 && (128 << i) <= bytes; ++i) {
    mtu = static_cast<ibv_mtu>(i);
  }
  return mtu;
}

int bytes_of(ibv_mtu mtu) { return 128 << mtu; }

// Returns the description of an event after which the port cannot be used, or "".
std::string_view fatal_event(ibv_event_type event) {
  if (event == IBV_EVENT_CQ_ERR) return "a completion queue has failed (IBV_EVENT_CQ_ERR)";
  if (event == IBV_EVENT_QP_FATAL) return "a queue pair has failed (IBV_EVENT_QP_FATAL)";
  if (event == IBV_EVENT_SRQ_ERR) return "a receive queue has failed (IBV_EVENT_SRQ_ERR)";
  if (event == IBV_EVENT_DEVICE_FATAL) return "the device has failed (IBV_EVENT_DEVICE_FATAL)";
  return "";
}

Context open_device(const std::string& name) {
  Context context;
  for_each_device([&](ibv_device* device) {
    if (ibv_get_device_name(device) == name) {
      context = opened(device);
      checked(context.get(), fmt::format("cannot open {}", name));
    }
  });
  if (!context) {
    throw Error(ATOLL_INVALID_ARGUMENT, fmt::format("there is no RDMA device {}; the devices are: "
                                                    "{}",
                                                    name, known_devices()));
  }
  return context;
}

}  // namespace

atoll_sdk::Error verbs_error(std::string_view what, int error) {
  auto text = atoll_sdk::system_error(what, error);
  if (error == EAGAIN) {
    return {ATOLL_OUT_OF_MEMORY,
            fmt::format("{}: the control group has no more RDMA objects (rdma.max)", text.what())};
  }
  if (error != ENOMEM && error != EPERM) return text;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) {
    return {ATOLL_OUT_OF_MEMORY,
            fmt::format("{}: the adapter has no more room for such objects, or the host no memory",
                        text.what())};
  }
  return {ATOLL_OUT_OF_MEMORY,
          fmt::format("{}: the process may lock {} KiB of memory; raise `ulimit -l`, or memlock in "
                      "/etc/security/limits.conf",
                      text.what(), limit.rlim_cur / 1024)};
}

Hca::Hca(const PortName& name, const Settings& settings)
    : name_(name), context_(open_device(name.device)) {
  if (ibv_query_device(context_.get(), &limits_) != 0 ||
      ibv_query_port(context_.get(), static_cast<std::uint8_t>(name.port), &attributes_) != 0) {
    throw Error(ATOLL_INVALID_ARGUMENT, fmt::format("{} has no port {}", name.device, name.port));
  }
  if (attributes_.state != IBV_PORT_ACTIVE) {
    throw Error(ATOLL_UNSUPPORTED, fmt::format("{} is not active but {}", this->name(),
                                               ibv_port_state_str(attributes_.state)));
  }
  choose_gid(settings.gid);
  choose_partition(settings.partition);
  mtu_ = settings.mtu > 0 ? std::min(attributes_.active_mtu, mtu_of(settings.mtu))
                          : attributes_.active_mtu;
  domain_.reset(checked(ibv_alloc_pd(context_.get()),
                        fmt::format("{}: cannot allocate a protection domain", this->name())));
  set_nonblocking(context_->async_fd);
}

// Chooses the GID with the index `wanted`, or the preferred one if it is negative. An InfiniBand
// port may have no GID, because ports of one subnet need none.
void Hca::choose_gid(int wanted) {
  const auto gids = gids_of(context_.get(), name_.port, attributes_.gid_tbl_len);
  const auto is_wanted = [&](const ibv_gid_entry& entry) {
    return static_cast<int>(entry.gid_index) == wanted;
  };
  const auto chosen = wanted >= 0 ? std::ranges::find_if(gids, is_wanted)
                                  : std::ranges::max_element(gids, {}, preference);
  if (chosen != gids.end()) {
    gid_index_ = static_cast<int>(chosen->gid_index);
    address_ = {fabric_of(*chosen, is_ethernet()), chosen->gid,
                is_ethernet() ? prefix_bits(chosen->gid) : infiniband_subnet_bits};
    return;
  }
  address_.fabric = Fabric::infiniband;
  if (wanted < 0 && !is_ethernet()) return;
  if (gids.empty()) {
    throw Error(
        ATOLL_INVALID_ARGUMENT,
        fmt::format("{} has no GID: its network interface may have no address (`ibv_devinfo "
                    "-v` lists the GIDs)",
                    name()));
  }
  std::vector<std::uint32_t> known;
  for (const auto& entry : gids) known.push_back(entry.gid_index);
  throw Error(ATOLL_INVALID_ARGUMENT,
              fmt::format("{} has no GID {}; it has GID {} (`ibv_devinfo -v` lists them)", name(),
                          wanted, fmt::join(known, ", ")));
}

// Chooses the partition with the key `wanted`, or the first of the port's table if it is 0.
void Hca::choose_partition(std::uint16_t wanted) {
  std::vector<std::uint16_t> keys;
  const int count = std::min<int>(attributes_.pkey_tbl_len, wanted == 0 ? 1 : INT16_MAX);
  for (int i = 0; i < count; ++i) {
    __be16 key = 0;
    const auto port = static_cast<std::uint8_t>(name_.port);
    keys.push_back(ibv_query_pkey(context_.get(), port, i, &key) == 0 ? be16toh(key) : 0);
  }
  const auto is_wanted = [&](std::uint16_t key) {
    return (key & partition_mask) == (wanted & partition_mask);
  };
  auto chosen = wanted == 0 ? keys.begin() : std::ranges::find(keys, wanted);
  // A port may be a full and a limited member of one partition: prefers exactly the wanted key.
  if (chosen == keys.end()) chosen = std::ranges::find_if(keys, is_wanted);
  if (chosen != keys.end()) {
    if (*chosen != 0) partition_ = *chosen;  // 0 means that the kernel hides the key
    partition_index_ = static_cast<std::uint16_t>(chosen - keys.begin());
  } else if (wanted != 0) {
    std::erase(keys, 0);
    throw Error(ATOLL_INVALID_ARGUMENT,
                fmt::format("{} has no partition key {:#06x}; it has {:#06x} "
                            "(/sys/class/infiniband/{}/ports/{}/pkeys)",
                            name(), wanted, fmt::join(keys, ", "), name_.device, name_.port));
  }
}

std::string Hca::name() const { return fmt::format("{} port {}", name_.device, name_.port); }

std::string Hca::port_name() const { return fmt::format("{}:{}", name_.device, name_.port); }

std::string Hca::description() const {
  return fmt::format("{}, GID {} ({}), MTU {}", name(), gid_index_, text_of(address_),
                     bytes_of(mtu_));
}

std::string Hca::failure() {
  const std::lock_guard lock(event_mutex_);
  ibv_async_event event{};
  while (ibv_get_async_event(context_.get(), &event) == 0) {
    const auto what = fatal_event(event.event_type);
    if (!what.empty() && fatal_event_.empty()) fatal_event_ = fmt::format("{}: {}", name(), what);
    ibv_ack_async_event(&event);
  }
  if (!fatal_event_.empty()) return fatal_event_;
  ibv_port_attr now{};
  if (ibv_query_port(context_.get(), static_cast<std::uint8_t>(name_.port), &now) == 0 &&
      now.state != IBV_PORT_ACTIVE) {
    return fmt::format("{} is down ({})", name(), ibv_port_state_str(now.state));
  }
  return "";
}

std::vector<PortName> active_ports() {
  std::vector<PortName> result;
  for_each_device([&](ibv_device* device) {
    const Context context = opened(device);
    ibv_device_attr limits{};
    if (!context || ibv_query_device(context.get(), &limits) != 0) return;
    for (int port = 1; port <= limits.phys_port_cnt; ++port) {
      ibv_port_attr attributes{};
      if (ibv_query_port(context.get(), static_cast<std::uint8_t>(port), &attributes) == 0 &&
          attributes.state == IBV_PORT_ACTIVE) {
        result.push_back({ibv_get_device_name(device), port});
      }
    }
  });
  std::ranges::sort(result, {}, [](const PortName& one) { return std::tie(one.device, one.port); });
  return result;
}

std::vector<std::shared_ptr<Hca>> open_hcas(const Settings& settings) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int, int, int, int>, std::weak_ptr<Hca>> opened;
  const std::lock_guard lock(mutex);
  auto names = settings.devices;
  if (names.empty()) {
    throw Error(ATOLL_UNSUPPORTED,
                fmt::format("no RDMA device has an active port (devices: {})", known_devices()));
  }
  if (names.size() > most_rails) names.resize(most_rails);
  std::vector<std::shared_ptr<Hca>> result;
  for (const auto& name : names) {
    auto& known = opened[{name.device, name.port, settings.gid, settings.mtu, settings.partition}];
    auto hca = known.lock();
    if (!hca) {
      hca = std::make_shared<Hca>(name, settings);
      known = hca;
    } else if (const auto why = hca->failure(); !why.empty()) {
      throw Error(ATOLL_BACKEND, why);
    }
    result.push_back(std::move(hca));
  }
  return result;
}

}  // namespace atoll_verbs_backend
