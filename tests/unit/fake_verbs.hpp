// A libibverbs whose devices exist only in this process. It replaces the functions of the library
// in the program that links fake_verbs.cpp. A write lands in the memory of the other queue pair when
// it is posted, with the checks of an adapter: keys, room in the queues, receives, routes by GID. The
// GIDs are also addresses of network interfaces: getifaddrs() is replaced too. Several threads may
// use the library.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fake_verbs {

struct Port {
  ibv_port_state state = IBV_PORT_ACTIVE;
  std::uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  ibv_mtu mtu = IBV_MTU_4096;
  std::vector<ibv_gid_entry> gids;
  std::vector<std::uint16_t> partitions = {0xFFFF};  // their keys
  int prefix = 24;  // of the IPv4 addresses on the network interface
  int network = 0;  // there is no route to ports of other networks
};

struct Device {
  std::string name;
  Port port;  // number 1
  ibv_device_attr limits{};
  // The fake library sets these, for tests to read.
  std::size_t opened = 0;
  std::size_t writes = 0;  // writes of data and of control messages
  std::uint64_t bytes = 0;
  int most_completions = 0;  // in a completion queue at one time
  int largest_queue = 0;     // size of the largest completion queue
  std::size_t receives = 0;  // size of the largest receive queue
  std::size_t resizes = 0;
  std::size_t inlined = 0,
              reported = 0;             // writes that were inline, or whose completion is reported
  std::size_t registrations = 0;        // registrations that exist now
  std::size_t registered = 0;           // registrations that were ever made
  std::size_t relaxed = 0;              // of these, with relaxed ordering
  ibv_qp_attr to_receive{}, to_send{};  // attributes of the last queue pair that was connected
  std::uint16_t partition = 0;          // index that the last queue pair has
  // Tests set these.
  int poll_result = 0;  // negative: the result of ibv_poll_cq
  bool can_resize = true;
  bool is_cut = false;                    // writes never complete
  std::atomic<bool> is_busy = false;      // has no receives, so writes that arrive must wait
  std::uint32_t most_inline = 1024;       // bytes
  ibv_wc_status status = IBV_WC_SUCCESS;  // of the next write
  std::vector<ibv_event_type> events;     // not read yet
};

// Returns the GID that the text of an IPv6 address names.
ibv_gid_entry gid(std::uint32_t index, std::uint32_t type, const char* address);

// The devices of a test. There is one at a time.
class Fabric {
 public:
  Fabric();
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // Adds a device with one active RoCE port and a GID.
  Device& add(const std::string& name);
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }

  // Bytes written into each range of registered memory.
  std::map<std::pair<const void*, std::size_t>, std::uint64_t> landed;
  std::size_t fork_inits = 0;      // calls of ibv_fork_init
  bool is_fork_init_first = true;  // false if a device was opened before

 private:
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace fake_verbs
