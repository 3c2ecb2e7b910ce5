// Tests of the PCI facts of devices on a captured sysfs tree, and of reading complete and damaged
// configuration spaces.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "facts.hpp"
#include "sources/pci_address.hpp"
#include "sources/pci_config.hpp"
#include "sources/source.hpp"
#include "unit/captured_tree.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

using atoll::get_fact;
using atoll::Topology;
using topology_test::check_facts;
namespace fact = atoll::fact;
namespace sources = atoll::topology_sources;
using machines::CapturedTree;

namespace {

// Reads the PCI settings from a configuration space that claims to have `size` bytes and returns
// only `bytes`.
sources::PciSettings read_pci_settings(std::string_view bytes, std::uintmax_t size) {
  return sources::read_pci_settings(
      [bytes](std::size_t offset, std::span<char> out) {
        const std::string_view part = bytes.substr(std::min(offset, bytes.size()), out.size());
        std::ranges::copy(part, out.begin());
        return part.size();
      },
      size);
}

// A PCI configuration space that a test writes register by register.
class ConfigSpace {
 public:
  explicit ConfigSpace(std::size_t size = 4096) : bytes_(size, '\0') {
    word(0x00, 0x15b3);
    word(0x02, 0x1021);
  }
  ConfigSpace& byte(std::size_t at, unsigned value) {
    if (at < bytes_.size()) bytes_[at] = static_cast<char>(value);
    return *this;
  }
  ConfigSpace& word(std::size_t at, unsigned value) {
    return byte(at, value & 0xffU).byte(at + 1, value >> 8);
  }
  // Adds a power management capability at offset 0x40 and then a PCI Express capability at offset
  // 0x60.
  ConfigSpace& express(unsigned device_control) {
    word(0x06, 0x0010).byte(0x34, 0x40);
    byte(0x40, 0x01).byte(0x41, 0x60);
    return byte(0x60, 0x10).byte(0x61, 0x00).word(0x68, device_control);
  }
  ConfigSpace& extended(std::size_t at, unsigned id, std::size_t next) {
    return word(at, id).word(at + 2, static_cast<unsigned>(next << 4 | 1));
  }
  ConfigSpace& acs(unsigned control) {
    return extended(0x100, 0x0001, 0x200).extended(0x200, 0x000d, 0).word(0x206, control);
  }
  const std::string& text() const { return bytes_; }
  sources::PciSettings settings() const { return read_pci_settings(bytes_, bytes_.size()); }

 private:
  std::string bytes_;
};

Topology with_devices(const std::string& gpu, const std::string& nic) {
  Topology topology;
  machines::add_host(topology, "h", 1);
  topology.gpus[0].busid = gpu;
  topology.gpus[0].numa = -1;
  machines::add_nic(topology, "h", 400);
  topology.nics[0].busid = nic;
  return topology;
}

}  // namespace

TEST_CASE("pci: bus ids") {
  CHECK(sources::normal_busid("0000:1B:00.0") == "00000000:1b:00.0");
  CHECK(sources::normal_busid("00000000:1b:00.7") == "00000000:1b:00.7");
  CHECK(sources::normal_busid("47505500:00:00.0") == "47505500:00:00.0");
  for (const char* text : {"", "1b:00.0", "0000:1b:20.0", "0000:1b:00.8", "0000:1b:00.0 ",
                           "0000:1b:00", "virtio0", "0000:100:00.0", "-000:1b:00.0"}) {
    CAPTURE(text);
    CHECK(sources::normal_busid(text).empty());
  }
  CHECK(sources::pci_folder("/sys", "00000000:1b:00.0") == "/sys/bus/pci/devices/0000:1b:00.0");
  CHECK(sources::pci_folder("/sys", "00010000:01:00.0") == "/sys/bus/pci/devices/10000:01:00.0");
  CHECK(sources::pci_folder("/sys", "../../etc").empty());
}

TEST_CASE("pci: ACS and ATS") {
  for (const unsigned redirects : {0x1dU, 1U << 2, 1U << 3, 1U << 4})
    CHECK(ConfigSpace().acs(redirects).settings().acs_redirects == true);
  // 0x63 sets only control bits of ACS that do not redirect traffic.
  CHECK(ConfigSpace().acs(0x63).settings().acs_redirects == false);
  CHECK(ConfigSpace().acs(0).settings().acs_redirects == false);
  auto ats = [](unsigned control) {
    return ConfigSpace().extended(0x100, 0x000f, 0).word(0x106, control).settings().ats;
  };
  CHECK(ats(0x8000) == true);
  CHECK(ats(0x001f) == false);
}

TEST_CASE("pci: what is cut off is not known") {
  const std::string whole = ConfigSpace().express(2U << 12).acs(0x1d).text();
  // Only the first 256 of 4,096 bytes can be read, so ACS and ATS are unknown.
  auto settings = read_pci_settings(std::string_view(whole).substr(0, 256), 4096);
  CHECK(settings.is_cut);
  CHECK(settings.max_read_request == 512);
  CHECK_FALSE(settings.acs_redirects);
  CHECK_FALSE(settings.ats);
  // Value 7 of the maximum read request is reserved.
  CHECK_FALSE(ConfigSpace().express(7U << 12).settings().max_read_request);
  // The device has only 256 bytes of configuration space, so nothing is cut off.
  settings = read_pci_settings(std::string_view(whole).substr(0, 256), 256);
  CHECK_FALSE(settings.is_cut);
  CHECK(settings.acs_redirects == false);
  CHECK(read_pci_settings("", 0).is_cut);
}

TEST_CASE("pci: lists of capabilities that are circular or lead astray tell nothing") {
  const auto beyond = ConfigSpace().extended(0x100, 1, 0xffc).extended(0xffc, 0x000d, 0);
  const auto circular = ConfigSpace().extended(0x100, 1, 0x200).extended(0x200, 2, 0x100);
  const std::string ones(4096, '\xff');  // the device is gone
  for (const std::string& text :
       {circular.text(), ConfigSpace().extended(0x100, 1, 0x040).text(), beyond.text(), ones})
    CHECK_FALSE(read_pci_settings(text, text.size()).acs_redirects);
  const auto itself =
      ConfigSpace().word(0x06, 0x0010).byte(0x34, 0x40).byte(0x40, 0x01).byte(0x41, 0x40);
  for (const std::string& text :
       {itself.text(), ConfigSpace().express(0).byte(0x34, 0x20).text(), ones})
    CHECK_FALSE(read_pci_settings(text, text.size()).max_read_request);
}

TEST_CASE("sysfs: PCI link, NUMA node, path and bridges") {
  const CapturedTree tree;
  const std::string root = "pci0000:15/0000:15:01.0", port = root + "/0000:16:00.0";
  tree.write(tree.add_pci(root) + "config", ConfigSpace().acs(0).text());
  tree.write(tree.add_pci(port) + "config", ConfigSpace().acs(0x1d).text());
  const std::string gpu = tree.add_pci(port + "/0000:17:00.0");
  tree.write(gpu + "config", ConfigSpace().express(5U << 12 | 1U << 4).text());
  tree.write_lines(
      gpu,
      "current_link_speed 2.5 GT/s PCIe; max_link_speed 32.0 GT/s PCIe; "
      "current_link_width 8; max_link_width 16; numa_node 1; vendor 0x10de; device 0x2330; "
      "class 0x030200");
  const std::string nic = tree.add_pci(root + "/0000:18:00.0");
  tree.write(nic + "config",
             ConfigSpace().express(2U << 12).extended(0x100, 0xf, 0).word(0x106, 0x8000).text());
  tree.write(nic + "aer_dev_correctable",
             "RxErr 1\nBadTLP 2\nBadDLLP 0\nRollover 3\nTimeout 4\nTOTAL_ERR_COR 10\n");
  Topology topology = with_devices("00000000:17:00.0", "00000000:18:00.0");
  sources::sysfs_pci(tree.request(), topology);

  const auto& facts = topology.gpus[0].facts;
  CHECK(topology.gpus[0].pci_path == "pci0000:15/00000000:15:01.0/00000000:16:00.0");
  CHECK(topology.gpus[0].numa == 1);
  check_facts(facts,
              "pci.device 10de:2330; pci.class 0302; pci.gt_s 2.5; pci.gt_s_max 32; pci.width 8; "
              "pci.width_max 16; pci.max_read_request 4096; pci.relaxed_ordering yes; pci.ats no; "
              "pci.acs 00000000:16:00.0");
  CHECK(topology.nics[0].pci_path == "pci0000:15/00000000:15:01.0");
  check_facts(topology.nics[0].facts,
              "pci.acs off; pci.ats yes; pci.max_read_request 512; pci.replays 7");
  CHECK(get_fact(topology.hosts[0].facts, "source.sysfs_pci").empty());
}

TEST_CASE("sysfs: what other sources gave stays, and what sysfs does not know is absent") {
  const CapturedTree tree;
  const std::string gpu = tree.add_pci("pci0000:00/0000:17:00.0");
  tree.write_lines(
      gpu,
      "current_link_speed Unknown; max_link_speed 16.0 GT/s PCIe; current_link_width 0; "
      "max_link_width 63; numa_node 1");
  Topology topology = with_devices("00000000:17:00.0", "");
  topology.gpus[0].numa = 0;
  topology.gpus[0].pci_path = "pci0000:99";
  topology.gpus[0].facts["pci.gt_s_max"] = "32";
  sources::sysfs_pci(tree.request(), topology);
  const auto& facts = topology.gpus[0].facts;
  CHECK(topology.gpus[0].numa == 0);
  CHECK(topology.gpus[0].pci_path == "pci0000:99");
  check_facts(facts, "pci.gt_s_max 32; pci.gt_s; pci.width; pci.width_max");
  // Without a bridge above the device, it is unknown whether ACS redirects traffic.
  CHECK(get_fact(facts, fact::pci_acs).empty());
  CHECK(topology.nics[0].numa == -1);
}

TEST_CASE("sysfs: without root the settings are not known") {
  const CapturedTree tree;
  const std::string root = "pci0000:15/0000:15:01.0";
  tree.write(tree.add_pci(root) + "config", ConfigSpace(64).text());
  tree.write(tree.add_pci(root + "/0000:17:00.0") + "config", ConfigSpace(64).text());
  Topology topology = with_devices("00000000:17:00.0", "");
  sources::sysfs_pci(tree.request(), topology);
  check_facts(topology.gpus[0].facts, "pci.acs; pci.ats");
  CHECK(topology.gpus[0].pci_path == "pci0000:15/00000000:15:01.0");
  CHECK(get_fact(topology.hosts[0].facts, "source.sysfs_pci") ==
        "reading PCIe extended configuration space needs root");

  const CapturedTree empty;
  topology = with_devices("00000000:17:00.0", "");
  sources::sysfs_pci(empty.request(), topology);
  CHECK(get_fact(topology.hosts[0].facts, "source.sysfs_pci") == "no PCI devices under /sys");
}

TEST_CASE("sysfs: a root complex below another device") {
  const CapturedTree tree;
  tree.add_pci("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0");
  tree.add_pci("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0");
  Topology topology = with_devices("", "00010000:01:00.0");
  sources::sysfs_pci(tree.request(), topology);
  CHECK(topology.nics[0].pci_path == "pci10000:00/00010000:00:02.0");
}
