#include "unit/fake_verbs.hpp"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#undef ibv_query_port
#undef ibv_reg_mr

namespace fake_verbs {
namespace {

Fabric* fabric = nullptr;

struct FakeDevice : ibv_device {
  Device* device = nullptr;
};
struct FakeContext : ibv_context {
  FakeDevice own;
};
struct FakeCq : ibv_cq {
  std::deque<ibv_wc> completions;
  bool is_armed = false;
};
struct FakeSrq : ibv_srq {
  std::size_t posted = 0, size = 0;
};
// A posted write.
struct Posted {
  explicit Posted(const ibv_send_wr& its_request) : request(its_request) {
    request.sg_list = nullptr;
    if (request.num_sge != 1) return;
    piece = its_request.sg_list[0];
    if (!is_inline()) return;
    const auto* const data = reinterpret_cast<const std::byte*>(piece.addr);
    copy.assign(data, data + piece.length);
  }
  bool is_inline() const { return (request.send_flags & IBV_SEND_INLINE) != 0; }
  bool is_reported() const { return (request.send_flags & IBV_SEND_SIGNALED) != 0; }
  const void* source() const {
    return copy.empty() ? reinterpret_cast<const void*>(piece.addr) : copy.data();
  }
  ibv_send_wr request;
  ibv_sge piece{};
  std::vector<std::byte> copy;  // of inline data
};
struct FakeQp : ibv_qp {
  ibv_qp_cap cap{};
  std::uint32_t peer = 0;
  std::deque<std::uint64_t> pending;  // posted writes without a polled completion, by wr_id
  std::deque<Posted> held;            // writes for which the receiver has no receives
};

// A network interface with the IPv4 address of a GID.
struct Interface : ifaddrs {
  Interface() : ifaddrs{} {}
  sockaddr_in address{}, mask{};
};

std::map<std::uint32_t, FakeQp*> pairs;
std::map<std::uint32_t, ibv_mr*> regions;
std::uint32_t last_number = 100;
std::recursive_mutex mutex;  // guards all state of the fake library
using Lock = std::lock_guard<std::recursive_mutex>;

Device& device_of(ibv_context* context) { return *static_cast<FakeContext*>(context)->own.device; }

void signal(int descriptor) {
  const std::uint64_t one = 1;
  if (::write(descriptor, &one, sizeof(one)) < 0) std::abort();
}

void add(ibv_cq* queue, const ibv_wc& completion) {
  auto& cq = *static_cast<FakeCq*>(queue);
  Device& device = device_of(cq.context);
  if (static_cast<int>(cq.completions.size()) >= cq.cqe) {
    device.events.push_back(IBV_EVENT_CQ_ERR);  // the completion is lost
    return;
  }
  cq.completions.push_back(completion);
  device.most_completions =
      std::max(device.most_completions, static_cast<int>(cq.completions.size()));
  if (cq.is_armed && cq.channel != nullptr) signal(cq.channel->fd);
  cq.is_armed = false;
}

void report(FakeQp& pair, const Posted& write, ibv_wc_status status) {
  if (!write.is_reported() && status == IBV_WC_SUCCESS) return;
  ibv_wc completion{};
  completion.wr_id = write.request.wr_id;
  completion.status = status;
  completion.opcode = IBV_WC_RDMA_WRITE;
  completion.vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x77;
  completion.qp_num = pair.qp_num;
  add(pair.send_cq, completion);
  if (status != IBV_WC_SUCCESS) pair.state = IBV_QPS_ERR;
}

bool holds(std::uint32_t key, std::uint64_t address, std::size_t bytes) {
  const auto found = regions.find(key);
  if (found == regions.end()) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(found->second->addr);
  return address >= begin && address + bytes <= begin + found->second->length;
}

ibv_wc_status deliver(FakeQp& from, const Posted& write) {
  if (from.state != IBV_QPS_RTS) return IBV_WC_WR_FLUSH_ERR;
  const auto found = pairs.find(from.peer);
  if (found == pairs.end() || found->second->state < IBV_QPS_RTR) return IBV_WC_RETRY_EXC_ERR;
  FakeQp& to = *found->second;
  if (to.state == IBV_QPS_ERR) return IBV_WC_RETRY_EXC_ERR;
  const auto& rdma = write.request.wr.rdma;
  const std::size_t bytes = write.piece.length;
  if (write.request.num_sge == 1) {
    if (!write.is_inline() && !holds(write.piece.lkey, write.piece.addr, bytes)) {
      return IBV_WC_LOC_PROT_ERR;
    }
    if (!holds(rdma.rkey, rdma.remote_addr, bytes)) return IBV_WC_REM_ACCESS_ERR;
    std::memcpy(reinterpret_cast<void*>(rdma.remote_addr), write.source(), bytes);
    const ibv_mr& region = *regions[rdma.rkey];
    fabric->landed[{region.addr, region.length}] += bytes;
  }
  if (write.request.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) return IBV_WC_SUCCESS;
  auto& receives = static_cast<FakeSrq*>(to.srq)->posted;
  if (receives == 0) return IBV_WC_RNR_RETRY_EXC_ERR;
  --receives;
  ibv_wc completion{};
  completion.status = IBV_WC_SUCCESS;
  completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  completion.imm_data = write.request.imm_data;
  completion.byte_len = static_cast<std::uint32_t>(bytes);
  completion.qp_num = to.qp_num;
  add(to.recv_cq, completion);
  return IBV_WC_SUCCESS;
}

bool must_wait(const FakeQp& from) {
  const auto found = pairs.find(from.peer);
  return found != pairs.end() && device_of(found->second->context).is_busy;
}

// Delivers the writes that had to wait.
void deliver_held() {
  for (auto& [number, pair] : pairs) {
    while (!pair->held.empty() && !must_wait(*pair)) {
      const Posted write = std::move(pair->held.front());
      pair->held.pop_front();
      report(*pair, write, deliver(*pair, write));
    }
  }
}

int post_send(ibv_qp* queue, ibv_send_wr* request, ibv_send_wr** refused) {
  const Lock lock(mutex);
  auto& pair = *static_cast<FakeQp*>(queue);
  Device& device = device_of(pair.context);
  if (pair.pending.size() >= pair.cap.max_send_wr || pair.state < IBV_QPS_RTS) {
    *refused = request;
    return pair.state < IBV_QPS_RTS ? EINVAL : ENOMEM;
  }
  Posted write(*request);
  ++device.writes;
  device.bytes += write.piece.length;
  device.inlined += write.is_inline() ? 1 : 0;
  device.reported += write.is_reported() ? 1 : 0;
  pair.pending.push_back(request->wr_id);
  if (device.is_cut) return 0;
  const auto planned = std::exchange(device.status, IBV_WC_SUCCESS);
  if (planned != IBV_WC_SUCCESS) return report(pair, write, planned), 0;
  if (must_wait(pair) || !pair.held.empty()) return pair.held.push_back(std::move(write)), 0;
  report(pair, write, deliver(pair, write));
  return 0;
}

int post_srq_recv(ibv_srq* queue, ibv_recv_wr* request, ibv_recv_wr** refused) {
  const Lock lock(mutex);
  auto& receives = *static_cast<FakeSrq*>(queue);
  if (receives.posted >= receives.size) return *refused = request, ENOMEM;
  ++receives.posted;
  return 0;
}

int poll_cq(ibv_cq* queue, int most, ibv_wc* completions) {
  const Lock lock(mutex);
  deliver_held();
  auto& cq = *static_cast<FakeCq*>(queue);
  if (device_of(cq.context).poll_result < 0) return device_of(cq.context).poll_result;
  int count = 0;
  for (; count < most && !cq.completions.empty(); ++count) {
    const ibv_wc completion = completions[count] = cq.completions.front();
    cq.completions.pop_front();
    const auto pair = pairs.find(completion.qp_num);
    if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM || pair == pairs.end()) continue;
    auto& pending = pair->second->pending;  // this completion covers all writes before it
    while (!pending.empty() && pending.front() <= completion.wr_id) pending.pop_front();
  }
  return count;
}

int request_notice(ibv_cq* queue, int /*solicited*/) {
  const Lock lock(mutex);
  static_cast<FakeCq*>(queue)->is_armed = true;
  return 0;
}

}  // namespace

ibv_gid_entry gid(std::uint32_t index, std::uint32_t type, const char* address) {
  ibv_gid_entry entry{};
  entry.gid_index = index;
  entry.port_num = 1;
  entry.gid_type = type;
  if (::inet_pton(AF_INET6, address, entry.gid.raw) != 1) std::abort();
  return entry;
}

Fabric::Fabric() { fabric = this; }
Fabric::~Fabric() { fabric = nullptr; }

Device& Fabric::add(const std::string& name) {
  auto& device = *devices_.emplace_back(std::make_unique<Device>());
  device.name = name;
  const auto address = "::ffff:10.0.0." + std::to_string(devices_.size());
  device.port.gids = {gid(0, IBV_GID_TYPE_ROCE_V2, address.c_str())};
  device.limits.phys_port_cnt = 1;
  device.limits.max_cqe = 4'000'000;
  device.limits.max_srq = 100;
  device.limits.max_srq_wr = 32767;
  device.limits.max_qp = 100'000;
  device.limits.max_qp_wr = 32768;
  return device;
}

}  // namespace fake_verbs

using namespace fake_verbs;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  *count = static_cast<int>(fabric->devices().size());
  auto** const list = new ibv_device* [fabric->devices().size() + 1] {};
  for (std::size_t i = 0; i < fabric->devices().size(); ++i) {
    auto* const one = new FakeDevice;
    one->device = fabric->devices()[i].get();
    list[i] = one;
  }
  return list;
}
void ibv_free_device_list(ibv_device** list) {
  for (auto** one = list; *one != nullptr; ++one) delete static_cast<FakeDevice*>(*one);
  delete[] list;
}
const char* ibv_get_device_name(ibv_device* device) {
  return static_cast<FakeDevice*>(device)->device->name.c_str();
}

ibv_context* ibv_open_device(ibv_device* device) {
  const Lock lock(mutex);
  auto* const context = new FakeContext;
  static_cast<ibv_context&>(*context) = {};
  context->own = *static_cast<FakeDevice*>(device);
  context->device = &context->own;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = request_notice;
  context->ops.post_srq_recv = post_srq_recv;
  context->ops.post_send = post_send;
  context->async_fd = ::eventfd(0, EFD_CLOEXEC);
  ++context->own.device->opened;
  if (fabric->fork_inits == 0) fabric->is_fork_init_first = false;
  return context;
}
int ibv_close_device(ibv_context* context) {
  ::close(context->async_fd);
  delete static_cast<FakeContext*>(context);
  return 0;
}
int ibv_fork_init() {
  const Lock lock(mutex);
  return ++fabric->fork_inits, 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  *attributes = device_of(context).limits;
  return 0;
}
int ibv_query_port(ibv_context* context, std::uint8_t number, _compat_ibv_port_attr* result) {
  if (number != 1) return EINVAL;
  const Port& port = device_of(context).port;
  auto& attributes = *reinterpret_cast<ibv_port_attr*>(result);
  attributes.state = port.state;
  attributes.link_layer = port.link_layer;
  attributes.active_mtu = port.mtu;
  attributes.gid_tbl_len = 16;
  attributes.pkey_tbl_len = static_cast<std::uint16_t>(port.partitions.size());
  return 0;
}
int ibv_query_pkey(ibv_context* context, std::uint8_t, int index, __be16* key) {
  *key = htobe16(device_of(context).port.partitions.at(static_cast<std::size_t>(index)));
  return 0;
}
int _ibv_query_gid_ex(ibv_context* context, std::uint32_t, std::uint32_t index,
                      ibv_gid_entry* entry, std::uint32_t, std::size_t) {
  const auto& gids = device_of(context).port.gids;
  const auto found = std::ranges::find(gids, index, &ibv_gid_entry::gid_index);
  if (found == gids.end()) return ENODATA;
  *entry = *found;
  return 0;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  const Lock lock(mutex);
  auto& events = device_of(context).events;
  if (events.empty()) return errno = EAGAIN, -1;
  event->event_type = events.front();
  events.erase(events.begin());
  return 0;
}
void ibv_ack_async_event(ibv_async_event*) {}
const char* ibv_wc_status_str(ibv_wc_status status) {
  return status == IBV_WC_WR_FLUSH_ERR    ? "Work Request Flushed Error"
         : status == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded"
                                          : "another error";
}
const char* ibv_port_state_str(ibv_port_state state) {
  return state == IBV_PORT_ACTIVE ? "PORT_ACTIVE" : "PORT_DOWN";
}

ibv_pd* ibv_alloc_pd(ibv_context* context) { return new ibv_pd{context, 0}; }
int ibv_dealloc_pd(ibv_pd* domain) { return delete domain, 0; }
ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* memory, std::size_t bytes, std::uint64_t,
                         unsigned access) {
  const Lock lock(mutex);
  Device& device = device_of(domain->context);
  const auto key = ++last_number;
  ++device.registrations;
  ++device.registered;
  device.relaxed += (access & IBV_ACCESS_RELAXED_ORDERING) != 0 ? 1 : 0;
  return regions[key] = new ibv_mr{domain->context, domain, memory, bytes, 0, key, key};
}
ibv_mr* ibv_reg_mr(ibv_pd* domain, void* memory, std::size_t bytes, int access) {
  return ibv_reg_mr_iova2(domain, memory, bytes, 0, static_cast<unsigned>(access));
}
int ibv_dereg_mr(ibv_mr* region) {
  const Lock lock(mutex);
  --device_of(region->context).registrations;
  regions.erase(region->lkey);
  return delete region, 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  return new ibv_comp_channel{context, ::eventfd(0, EFD_CLOEXEC), 0};
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  ::close(channel->fd);
  return delete channel, 0;
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq**, void**) {
  std::uint64_t count = 0;
  return ::read(channel->fd, &count, sizeof(count)) < 0 ? -1 : 0;
}
void ibv_ack_cq_events(ibv_cq*, unsigned) {}

ibv_cq* ibv_create_cq(ibv_context* context, int size, void*, ibv_comp_channel* channel, int) {
  Device& device = device_of(context);
  if (size > device.limits.max_cqe) return errno = EINVAL, nullptr;
  auto* const queue = new FakeCq;
  queue->context = context;
  queue->channel = channel;
  queue->cqe = size;
  device.largest_queue = std::max(device.largest_queue, size);
  return queue;
}
int ibv_resize_cq(ibv_cq* queue, int size) {
  Device& device = device_of(queue->context);
  if (!device.can_resize) return EOPNOTSUPP;
  if (size > device.limits.max_cqe) return EINVAL;
  queue->cqe = size;
  device.largest_queue = std::max(device.largest_queue, size);
  ++device.resizes;
  return 0;
}
int ibv_destroy_cq(ibv_cq* queue) { return delete static_cast<FakeCq*>(queue), 0; }

ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr* wanted) {
  Device& device = device_of(domain->context);
  if (wanted->attr.max_wr > static_cast<std::uint32_t>(device.limits.max_srq_wr)) {
    return errno = EINVAL, nullptr;
  }
  auto* const queue = new FakeSrq;
  queue->context = domain->context;
  queue->pd = domain;
  queue->size = wanted->attr.max_wr;
  device.receives = std::max(device.receives, queue->size);
  return queue;
}
int ibv_destroy_srq(ibv_srq* queue) { return delete static_cast<FakeSrq*>(queue), 0; }

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* wanted) {
  if (wanted->cap.max_inline_data > device_of(domain->context).most_inline) {
    return errno = EINVAL, nullptr;
  }
  auto* const pair = new FakeQp;
  pair->context = domain->context;
  pair->pd = domain;
  pair->send_cq = wanted->send_cq;
  pair->recv_cq = wanted->recv_cq;
  pair->srq = wanted->srq;
  pair->state = IBV_QPS_RESET;
  pair->cap = wanted->cap;
  const Lock lock(mutex);
  pair->qp_num = ++last_number;
  pairs[pair->qp_num] = pair;
  return pair;
}
int ibv_query_qp(ibv_qp* pair, ibv_qp_attr*, int, ibv_qp_init_attr* initial) {
  initial->cap = static_cast<FakeQp*>(pair)->cap;
  return 0;
}
int ibv_modify_qp(ibv_qp* queue, ibv_qp_attr* to, int mask) {
  const Lock lock(mutex);
  auto& pair = *static_cast<FakeQp*>(queue);
  Device& device = device_of(pair.context);
  if ((mask & IBV_QP_DEST_QPN) != 0) {  // the port with this GID must own the queue pair
    const auto found = pairs.find(to->dest_qp_num);
    if (found == pairs.end()) return ENETUNREACH;
    const Port& port = device_of(found->second->context).port;
    const auto is_same = [&](const ibv_gid_entry& entry) {
      return std::equal(entry.gid.raw, entry.gid.raw + 16, to->ah_attr.grh.dgid.raw);
    };
    if (to->ah_attr.is_global != 0 && std::ranges::none_of(port.gids, is_same)) return ENETUNREACH;
    if (port.network != device.port.network) return ENETUNREACH;
    pair.peer = to->dest_qp_num;
    device.to_receive = *to;
  }
  if (to->qp_state == IBV_QPS_INIT) device.partition = to->pkey_index;
  if (to->qp_state == IBV_QPS_RTS) device.to_send = *to;
  pair.state = to->qp_state;
  return 0;
}
int ibv_destroy_qp(ibv_qp* pair) {
  const Lock lock(mutex);
  pairs.erase(pair->qp_num);
  return delete static_cast<FakeQp*>(pair), 0;
}

int getifaddrs(ifaddrs** result) {
  *result = nullptr;
  for (const auto& device : fabric->devices()) {
    for (const auto& entry : device->port.gids) {
      auto* const interface = new Interface;
      interface->address.sin_family = interface->mask.sin_family = AF_INET;
      std::memcpy(&interface->address.sin_addr, entry.gid.raw + 12, 4);
      interface->mask.sin_addr.s_addr = htobe32(~0U << (32 - device->port.prefix));
      interface->ifa_addr = reinterpret_cast<sockaddr*>(&interface->address);
      interface->ifa_netmask = reinterpret_cast<sockaddr*>(&interface->mask);
      interface->ifa_next = *result;
      *result = interface;
    }
  }
  return 0;
}
void freeifaddrs(ifaddrs* list) {
  while (list != nullptr) delete static_cast<Interface*>(std::exchange(list, list->ifa_next));
}

}  // extern "C"
