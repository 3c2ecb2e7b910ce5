// Tests what the verbs backend asks of an adapter: addresses, attributes of queue pairs, memory
// regions and the flags of writes.
#include "unit/plugin/verbs_ranks.hpp"

using namespace verbs_test;
using atoll_test::sdk_error;

namespace {

// Gives a port one address, and attaches it to network number `network`.
void wire(fake_verbs::Device& device, const std::string& address, int network) {
  device.port.gids = {fake_verbs::gid(0, IBV_GID_TYPE_ROCE_V2, ("::ffff:" + address).c_str())};
  device.port.network = network;
}

bool moves(Ranks& ranks) {
  Bytes source(3'000'000, std::byte{3}), target(source.size());
  ranks.at(0).add_memory(source);
  ranks.at(1).add_memory(target);
  ranks.move(0, 1, source, target);
  const bool is_intact = source == target;
  ranks.at(0).remove_memory(source.data());
  ranks.at(1).remove_memory(target.data());
  return is_intact;
}

}  // namespace

TEST_CASE("a port uses RoCE v2 before v1, and an IPv4 address before others") {
  fake_verbs::Fabric fabric;
  auto& device = fabric.add("left");
  const auto used = [](const std::string& settings = "") {
    return open_hcas(parse_settings("devices=left " + settings)).front()->description();
  };
  device.port.gids = {fake_verbs::gid(0, IBV_GID_TYPE_ROCE_V1, "fe80::1"),
                      fake_verbs::gid(1, IBV_GID_TYPE_ROCE_V2, "fe80::1"),
                      fake_verbs::gid(2, IBV_GID_TYPE_ROCE_V1, "::ffff:10.9.9.1"),
                      fake_verbs::gid(3, IBV_GID_TYPE_ROCE_V2, "::ffff:10.9.9.1"),
                      fake_verbs::gid(4, IBV_GID_TYPE_ROCE_V2, "::ffff:10.9.9.2")};
  CHECK(used() == "left port 1, GID 3 (RoCE v2 10.9.9.1/24), MTU 4096");
  CHECK(used("gid=2") == "left port 1, GID 2 (RoCE v1 10.9.9.1/24), MTU 4096");
  device.port.gids.resize(3);
  CHECK(used() == "left port 1, GID 1 (RoCE v2 fe80::1/64), MTU 4096");
  device.port.gids.erase(device.port.gids.begin() + 1);
  CHECK(used() == "left port 1, GID 2 (RoCE v1 10.9.9.1/24), MTU 4096");
  device.port.gids.resize(1);
  CHECK(used() == "left port 1, GID 0 (RoCE v1 fe80::1/64), MTU 4096");
  CHECK(sdk_error([&] { used("gid=3"); }) ==
        "left port 1 has no GID 3; it has GID 0 (`ibv_devinfo -v` lists them)");
  device.port.gids.push_back(fake_verbs::gid(7, IBV_GID_TYPE_ROCE_V2, "fd00::1"));
  CHECK(sdk_error([&] { used("gid=1"); }) ==
        "left port 1 has no GID 1; it has GID 0, 7 (`ibv_devinfo -v` lists them)");
  CHECK(used() == "left port 1, GID 7 (RoCE v2 fd00::1/128), MTU 4096");
  device.port.gids.clear();
  const std::string none =
      "left port 1 has no GID: its network interface may have no address (`ibv_devinfo -v` lists "
      "the GIDs)";
  CHECK(sdk_error([&] { used(); }) == none);
  CHECK(sdk_error([&] { used("gid=0"); }) == none);
  device.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  CHECK(used() == "left port 1, GID 0 (InfiniBand ::/64), MTU 4096");
  device.port.gids = {fake_verbs::gid(0, IBV_GID_TYPE_IB, "fec0::2:0:0:0:9")};
  CHECK(used() == "left port 1, GID 0 (InfiniBand fec0:0:0:2::9/64), MTU 4096");
}

TEST_CASE("queue pairs have the attributes that ATOLL_RDMA names") {
  Adapters adapters;
  adapters.left.port.gids.push_back(fake_verbs::gid(5, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.200"));
  adapters.right.port.mtu = IBV_MTU_1024;
  Ranks ranks(2);
  ranks.open(0, parse_settings("devices=left sl=3 tc=106 gid=5"));
  ranks.open(1, parse_settings("devices=right sl=4 mtu=512"));
  ranks.connect(0, 1);
  const auto &left = adapters.left.to_receive, &right = adapters.right.to_receive;
  CHECK(left.path_mtu == IBV_MTU_512);  // the smaller one
  CHECK(right.path_mtu == IBV_MTU_512);
  CHECK(left.ah_attr.sl == 3);
  CHECK(right.ah_attr.sl == 4);
  CHECK(left.ah_attr.grh.traffic_class == 106);
  CHECK(right.ah_attr.grh.traffic_class == 0);
  CHECK(left.ah_attr.is_global == 1);
  CHECK(left.ah_attr.grh.sgid_index == 5);
  CHECK(right.ah_attr.grh.sgid_index == 0);
  CHECK(std::equal(right.ah_attr.grh.dgid.raw, right.ah_attr.grh.dgid.raw + 16,
                   adapters.left.port.gids[1].gid.raw));
  CHECK(left.rq_psn == adapters.right.to_send.sq_psn);
  CHECK(adapters.left.to_send.timeout == 14);
  CHECK(adapters.left.to_send.retry_cnt == 6);
  CHECK(adapters.left.to_send.rnr_retry == 7);  // 7 means forever
}

TEST_CASE("InfiniBand ports connect by their LIDs, with the smaller MTU, and without inline data") {
  Adapters adapters;
  for (auto* const device : {&adapters.left, &adapters.right}) {
    device->port.link_layer = IBV_LINK_LAYER_INFINIBAND;
    device->port.gids = {fake_verbs::gid(0, IBV_GID_TYPE_IB, "fe80::9")};
  }
  adapters.right.port.mtu = IBV_MTU_2048;
  adapters.left.most_inline = 0;
  TwoRanks ranks;
  ranks.connect(0, 1);
  for (const auto* const device : {&adapters.left, &adapters.right}) {
    CHECK(device->to_receive.ah_attr.is_global == 0);
    CHECK(device->to_receive.path_mtu == IBV_MTU_2048);
    CHECK((device->inlined > 0) == (device == &adapters.right));
  }
}

TEST_CASE("ranks without a common port connect ports that reach each other") {
  fake_verbs::Fabric fabric;
  wire(fabric.add("left0"), "10.1.0.1", 1);
  wire(fabric.add("left1"), "10.2.0.1", 2);
  wire(fabric.add("right0"), "10.2.0.2", 2);
  wire(fabric.add("right1"), "10.1.0.2", 1);
  wire(fabric.add("right2"), "10.3.0.2", 3);
  Ranks ranks(2);
  ranks.open(0, "left0,left1");
  ranks.open(1, "right0,right1,right2");
  CHECK(moves(ranks));
  for (const std::size_t i : {0UL, 1UL}) CHECK(fabric.devices()[i]->bytes > 1'000'000);
  CHECK(fabric.devices()[4]->writes == 0);
}

TEST_CASE("an adapter that knows no route is an error that names it") {
  fake_verbs::Fabric fabric;
  wire(fabric.add("left"), "10.1.0.1", 1);
  wire(fabric.add("right"), "10.2.0.1", 2);  // a router might forward
  TwoRanks ranks;
  Bytes memory(1);
  ranks.at(1).recv(0, memory);
  CHECK(
      sdk_error([&] { ranks.at(0).recv(1, memory); })
          .starts_with("left port 1, GID 0 (RoCE v2 10.1.0.1/24), MTU 4096: no route to the other "
                       "rank: Network is unreachable"));
}

TEST_CASE("communicators share a registration, which ends when the last one drops it") {
  Adapters adapters;
  TwoRanks one, other;
  const auto& left = adapters.left;
  const auto before = left.registrations;
  Bytes memory(100'000);
  one.at(0).add_memory(memory);
  CHECK(left.registrations == before + 1);
  other.at(0).add_memory(memory);
  one.at(0).add_memory(memory);
  CHECK(left.registrations == before + 1);
  one.at(0).remove_memory(memory.data());
  CHECK(left.registrations == before + 1);
  other.at(0).remove_memory(memory.data());
  CHECK(left.registrations == before);
  // Memory with this address may be other memory now, so it is registered anew.
  const auto made = left.registered;
  one.at(0).add_memory(memory);
  CHECK(left.registered == made + 1);
  CHECK(left.registrations == before + 1);
  one.close(0);
  CHECK(left.registrations == before);
  CHECK(adapters.right.registrations == 0);
}

TEST_CASE("the caller's memory may be written in relaxed order, mailboxes may not") {
  Adapters adapters;
  TwoRanks ranks;
  ranks.connect(0, 1);
  CHECK(adapters.left.registered == 2);
  CHECK(adapters.left.relaxed == 0);
  Bytes memory(100'000);
  ranks.at(0).add_memory(memory);
  CHECK(adapters.left.relaxed == 1);
  const auto hcas = open_hcas(parse_settings("devices=left"));
  const Registered pages(hcas, memory, Ordering::strict);
  CHECK(adapters.left.relaxed == 1);
}

TEST_CASE("queue pairs use the partition that ATOLL_RDMA names") {
  Adapters adapters;
  adapters.left.port.partitions = {0xFFFF, 0, 0x0006, 0x0005, 0x8005};
  adapters.right.port.partitions = {0xFFFF, 0x0005};  // a limited member of the same partition
  {
    TwoRanks ranks("pkey=0x8005");
    ranks.connect(0, 1);
    CHECK(adapters.left.partition == 4);
    CHECK(adapters.right.partition == 1);
  }
  {
    TwoRanks ranks;
    ranks.connect(0, 1);
    CHECK(adapters.left.partition == 0);
  }
  CHECK(sdk_error([] { open_hcas(parse_settings("devices=left pkey=0x8007")); }) ==
        "left port 1 has no partition key 0x8007; it has 0xffff, 0x0006, 0x0005, 0x8005 "
        "(/sys/class/infiniband/left/ports/1/pkeys)");
  Bytes memory(1);
  {
    Ranks ranks(2);
    ranks.open(0, parse_settings("devices=left pkey=0x8005"));
    ranks.open(1, "right");
    ranks.at(1).recv(0, memory);  // publishes its address
    CHECK(sdk_error([&] { ranks.at(0).recv(1, memory); }) ==
          "left port 1 uses the partition key 0x8005, but its port right:1 0xffff: use the same "
          "pkey= in ATOLL_RDMA on all ranks");
  }
  adapters.right.port.partitions = {0x0006};
  Ranks limited(2);
  limited.open(0, parse_settings("devices=left pkey=0x8006"));
  limited.open(1, "right");
  limited.at(1).recv(0, memory);
  CHECK(sdk_error([&] {
          limited.at(0).recv(1, memory);
        }).ends_with("two limited members cannot talk; one of them needs the key with 0x8000"));
}
