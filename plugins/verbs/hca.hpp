// Hca: a port of an RDMA device (host channel adapter, or RoCE adapter) that this process has
// opened. Communicators of a process share it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "verbs/address.hpp"
#include "verbs/handles.hpp"
#include "verbs/settings.hpp"

namespace atoll_verbs_backend {

constexpr std::uint16_t default_partition = 0xFFFF;
// Bits of a partition key that two ports must share. The highest bit tells whether a port is a full
// member.
constexpr std::uint16_t partition_mask = 0x7FFF;
constexpr std::uint16_t full_member = 0x8000;

class Hca {
 public:
  // Opens the device. Throws Error if there is no such device or if its port is not active.
  Hca(const PortName& name, const Settings& settings);

  ibv_context* context() const noexcept { return context_.get(); }
  ibv_pd* domain() const noexcept { return domain_.get(); }
  int port() const noexcept { return name_.port; }
  int gid_index() const noexcept { return gid_index_; }
  const Address& address() const noexcept { return address_; }
  std::uint16_t lid() const noexcept { return attributes_.lid; }
  // The key of the partition that the port uses, and its index in the table of the port.
  std::uint16_t partition() const noexcept { return partition_; }
  std::uint16_t partition_index() const noexcept { return partition_index_; }
  bool is_ethernet() const noexcept { return attributes_.link_layer == IBV_LINK_LAYER_ETHERNET; }
  ibv_mtu mtu() const noexcept { return mtu_; }
  const ibv_device_attr& limits() const noexcept { return limits_; }
  // Returns "mlx5_0 port 1".
  std::string name() const;
  // Returns "mlx5_0:1", as ATOLL_RDMA names the port.
  std::string port_name() const;
  // Returns a line that describes the port: "mlx5_0 port 1, GID 3 (RoCE v2 10.9.9.1/24), MTU 1024".
  std::string description() const;
  // Returns why the port cannot be used any more, or "". Reads the events of the device. After a
  // fatal event, every call names this event. Several threads may call it at a time.
  std::string failure();

 private:
  void choose_gid(int wanted);
  void choose_partition(std::uint16_t wanted);

  PortName name_;
  Context context_;
  Domain domain_;
  ibv_device_attr limits_{};
  ibv_port_attr attributes_{};
  int gid_index_ = 0;
  Address address_;
  std::uint16_t partition_ = default_partition, partition_index_ = 0;
  ibv_mtu mtu_ = IBV_MTU_1024;
  std::mutex event_mutex_;
  std::string fatal_event_;
};

// Returns the names of all active ports, in the order of their names.
std::vector<PortName> active_ports();

// Opens the ports that settings.devices names, at most most_rails. Processes with equal settings
// share them.
std::vector<std::shared_ptr<Hca>> open_hcas(const Settings& settings);

}  // namespace atoll_verbs_backend
