// A fake NVML library for tests. ATOLL_FAKE_NVML selects the machine that the library shows. The
// library is built twice: with FAKE_NVML_OLD, it has only the functions of a driver of 2018.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "sources/nvml_api.hpp"

namespace api = atoll_v1::atoll::nvml_api;
using api::Result;

namespace {

enum class Peers {
  none,      // the GPUs do not support NVLinks
  inactive,  // the NVLinks of all GPUs are down
  network,   // the NVLinks of all GPUs lead to switches
  board,     // the NVLinks of each GPU lead to all other GPUs
  power,     // the NVLinks of each GPU lead to the other GPU and to a processor
  nowhere,   // the NVLinks lead to a bus id that no GPU has
};

struct Machine {
  std::string_view name;
  unsigned gpus = 0;
  const char* model = "";
  unsigned device = 0;
  int major = 0, minor = 0;
  unsigned links = 0;
  Peers peers = Peers::none;
};

constexpr std::array machines{
    Machine{"hgx", 8, "NVIDIA H100 80GB HBM3", 0x2330, 9, 0, 18, Peers::network},
    Machine{"board", 4, "NVIDIA A100-SXM4-40GB", 0x20b0, 8, 0, 12, Peers::board},
    Machine{"two of a board", 2, "NVIDIA A100-SXM4-40GB", 0x20b0, 8, 0, 12, Peers::board},
    Machine{"t4", 4, "Tesla T4", 0x1eb8, 7, 5, 0, Peers::none},
    Machine{"virtual", 2, "NVIDIA A100-SXM4-40GB", 0x20b0, 8, 0, 0, Peers::none},
    Machine{"no bridge", 2, "NVIDIA A100 80GB PCIe", 0x20b5, 8, 0, 12, Peers::inactive},
    Machine{"power", 2, "Tesla V100-SXM2-16GB", 0x1db1, 7, 0, 6, Peers::power},
    Machine{"renumbered", 2, "NVIDIA A100-SXM4-40GB", 0x20b0, 8, 0, 12, Peers::nowhere},
    Machine{"mig", 1, "NVIDIA A100-SXM4-40GB", 0x20b0, 8, 0, 12, Peers::inactive},
    Machine{"lost", 2, "Tesla T4", 0x1eb8, 7, 5, 0, Peers::none},
    Machine{"denied", 2, "Tesla T4", 0x1eb8, 7, 5, 0, Peers::none},
    Machine{"blackwell", 2, "NVIDIA B200", 0x2901, 10, 0, 18, Peers::network},
};

std::string_view played() {
  const char* name = std::getenv("ATOLL_FAKE_NVML");
  return name == nullptr ? "" : name;
}

const Machine* machine() {
  const auto found = std::ranges::find(machines, played(), &Machine::name);
  return found == machines.end() ? nullptr : &*found;
}

bool plays(std::string_view name) { return played() == name; }

}  // namespace

struct api::Device {
  unsigned number = 0;
  int partition = -1;
};

namespace {

std::array<api::Device, 8> devices{{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}};
std::array<api::Device, 2> partitions{{{0, 0}, {0, 1}}};

unsigned bus_of(unsigned number) { return 0x10 + 0x10 * number; }

void fill(api::PciInfo* pci, unsigned domain, unsigned bus, unsigned device) {
  pci->domain = domain;
  pci->bus = bus;
  pci->device = device;
}

// Returns the GPU at the other end of a link, on a board of four GPUs with 12 links each. Links 0-3
// lead to the first other GPU, links 4-7 to the second, and links 8-11 to the third.
unsigned board_peer(unsigned number, unsigned link) {
  const unsigned peer = link / 4;
  return peer < number ? peer : peer + 1;
}

bool is_down(unsigned number, unsigned link) { return plays("hgx") && number == 3 && link == 5; }

void copy(const char* text, char* out, unsigned size) { std::snprintf(out, size, "%s", text); }

}  // namespace

extern "C" {

Result nvmlInit_v2() {
  if (plays("no driver")) return api::driver_not_loaded;
  if (plays("hang")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    // The caller has timed out and may have changed ATOLL_FAKE_NVML, so the machine must not be
    // read.
    return 999;
  }
  return machine() == nullptr ? 999 : api::success;
}

Result nvmlShutdown() { return api::success; }

const char* nvmlErrorString(Result result) {
  if (result == api::driver_not_loaded) return "Driver Not Loaded";
  if (result == api::gpu_is_lost) return "GPU is lost";
  return "Unknown Error";
}

Result nvmlSystemGetDriverVersion(char* text, unsigned size) {
  copy("550.54.15", text, size);
  return api::success;
}

Result nvmlDeviceGetCount_v2(unsigned* count) {
  *count = machine()->gpus;
  return api::success;
}

Result nvmlDeviceGetHandleByIndex_v2(unsigned index, api::Device** device) {
  if (index >= machine()->gpus) return api::invalid_argument;
  if (plays("lost") && index == 1) return api::gpu_is_lost;
  if (plays("denied") && index == 1) return api::no_permission;
  *device = &devices[index];
  return api::success;
}

Result nvmlDeviceGetPciInfo_v3(api::Device* device, api::PciInfo* pci) {
  fill(pci, 0, bus_of(device->number), 0);
  pci->pci_device_id = machine()->device << 16 | 0x10deU;
  return api::success;
}

Result nvmlDeviceGetUUID(api::Device* device, char* text, unsigned size) {
  if (device->partition < 0)
    std::snprintf(text, size, "GPU-%u", device->number);
  else
    std::snprintf(text, size, "MIG-%d", device->partition);
  return api::success;
}

Result nvmlDeviceGetName(api::Device*, char* text, unsigned size) {
  copy(machine()->model, text, size);
  return api::success;
}

Result nvmlDeviceGetMemoryInfo(api::Device*, api::Memory* memory) {
  *memory = {.total = 85'899'345'920, .free = 0, .used = 0};
  return api::success;
}

Result nvmlDeviceGetCudaComputeCapability(api::Device*, int* major, int* minor) {
  *major = machine()->major;
  *minor = machine()->minor;
  return api::success;
}

Result nvmlDeviceGetCurrPcieLinkGeneration(api::Device*, unsigned* value) {
  *value = 1;
  return api::success;
}

Result nvmlDeviceGetMaxPcieLinkGeneration(api::Device*, unsigned* value) {
  *value = 5;
  return api::success;
}

Result nvmlDeviceGetCurrPcieLinkWidth(api::Device* device, unsigned* value) {
  *value = device->number == 7 ? 8 : 16;
  return api::success;
}

Result nvmlDeviceGetMaxPcieLinkWidth(api::Device*, unsigned* value) {
  *value = 16;
  return api::success;
}

Result nvmlDeviceGetPcieReplayCounter(api::Device* device, unsigned* value) {
  *value = device->number == 7 ? 12 : 0;
  return api::success;
}

Result nvmlDeviceGetMigMode(api::Device*, unsigned* current, unsigned* pending) {
  if (plays("t4")) return api::not_supported;
  *current = *pending = plays("mig") ? 1 : 0;
  return api::success;
}

Result nvmlDeviceGetMaxMigDeviceCount(api::Device*, unsigned* count) {
  *count = 7;
  return api::success;
}

Result nvmlDeviceGetMigDeviceHandleByIndex(api::Device*, unsigned index, api::Device** device) {
  if (index != 0 && index != 4) return api::not_found;
  *device = &partitions[index / 4];
  return api::success;
}

Result nvmlDeviceGetPersistenceMode(api::Device* device, unsigned* mode) {
  *mode = device->number == 0 ? 0 : 1;
  return api::success;
}

Result nvmlDeviceGetRemappedRows(api::Device* device, unsigned* correctable,
                                 unsigned* uncorrectable, unsigned* pending, unsigned* failed) {
  *correctable = *uncorrectable = *failed = 0;
  *pending = device->number == 4 ? 1 : 0;
  return plays("mig") ? api::not_supported : api::success;
}

Result nvmlDeviceGetCurrentClocksThrottleReasons(api::Device* device, unsigned long long* reasons) {
  *reasons = device->number == 6
                 ? api::clocks_power_cap | api::clocks_hw_slowdown | api::clocks_hw_thermal
                 : 1;  // 1 means that the clock is low only because the GPU is idle
  return api::success;
}

Result nvmlDeviceGetPowerManagementLimit(api::Device* device, unsigned* milliwatts) {
  *milliwatts = device->number == 1 ? 350'500 : 700'000;
  return api::success;
}

Result nvmlDeviceGetPowerManagementDefaultLimit(api::Device*, unsigned* milliwatts) {
  *milliwatts = 700'000;
  return api::success;
}

Result nvmlDeviceGetNvLinkState(api::Device* device, unsigned link, unsigned* is_active) {
  // For a missing link, drivers return one of two error codes.
  if (machine()->peers == Peers::none) return api::not_supported;
  if (link >= machine()->links) return api::invalid_argument;
  *is_active = machine()->peers != Peers::inactive && !is_down(device->number, link) ? 1 : 0;
  return api::success;
}

Result nvmlDeviceGetNvLinkRemotePciInfo_v2(api::Device* device, unsigned link, api::PciInfo* pci) {
  switch (machine()->peers) {
    case Peers::none:
    case Peers::inactive:
      return api::not_supported;
    case Peers::network:
      fill(pci, 0xfffffff, 0xff, 0xff);
      return api::success;
    case Peers::board:
      fill(pci, 0, bus_of(board_peer(device->number, link)), 0);
      return api::success;
    case Peers::power:
      if (link < 3)
        fill(pci, 0, bus_of(1 - device->number), 0);
      else
        fill(pci, 4, 0, link - 3);
      return api::success;
    case Peers::nowhere:
      fill(pci, 0, 0xe0, 0);
      return api::success;
  }
  return api::not_supported;
}

#ifndef FAKE_NVML_OLD

Result nvmlDeviceGetIndex(api::Device* device, unsigned* index) {
  *index = device->number;
  return api::success;
}

Result nvmlDeviceGetNvLinkRemoteDeviceType(api::Device*, unsigned link, unsigned* type) {
  switch (machine()->peers) {
    case Peers::none:
    case Peers::inactive:
      return api::not_supported;
    case Peers::network:
      *type = api::remote_switch;
      break;
    case Peers::board:
    case Peers::nowhere:
      *type = api::remote_gpu;
      break;
    case Peers::power:
      *type = link < 3 ? api::remote_gpu : api::remote_processor;
      break;
  }
  return api::success;
}

Result nvmlDeviceGetGpuFabricInfoV(api::Device* device, api::FabricInfo* info) {
  if (!plays("hgx") && !plays("blackwell")) return api::not_supported;
  // The driver of machine "hgx" supports only version 2 of FabricInfo.
  if (plays("hgx") && info->version != api::fabric_version_2) return api::version_mismatch;
  const bool is_done = !(plays("hgx") && device->number == 5);
  for (unsigned char i = 0; i < 16; ++i) info->cluster_uuid[i] = plays("hgx") ? 0 : i;
  info->status = api::success;
  info->clique_id = plays("hgx") ? 0 : 32766;
  info->state = is_done ? api::fabric_completed : api::fabric_in_progress;
  // The mask reports that no health problem exists and that the configuration is correct.
  info->health_mask = 0b01'10'10'10'10U;
  if (plays("blackwell")) {
    if (device->number == 1) info->health_mask = 0b0101'10'10'10'01U;
    info->health_summary = device->number == 1 ? api::summary_unhealthy : api::summary_healthy;
  }
  return api::success;
}

Result nvmlDeviceGetFieldValues(api::Device* device, int count, api::FieldValue* values) {
  for (int i = 0; i < count; ++i) {
    api::FieldValue& value = values[i];
    const bool is_total = value.field < 60;
    // NVLink generation 5 has other error counters than older generations.
    value.result = is_total == plays("blackwell") ? api::not_supported : api::success;
    value.type = api::value_long_long;
    value.value.as_long_long = 0;
    if (value.field == api::field_crc_data_total && device->number == 2)
      value.value.as_long_long = 7;
    if (value.field == api::field_recovery_events && value.scope == 17) {
      value.type = api::value_unsigned;
      value.value.as_unsigned = 2;
    }
  }
  return api::success;
}

#else

Result nvmlDeviceGetNvLinkErrorCounter(api::Device*, unsigned, unsigned counter,
                                       unsigned long long* value) {
  *value = counter == api::link_replay ? 1 : 0;
  return api::success;
}

Result nvmlDeviceGetGpuFabricInfo(api::Device*, api::FabricInfo1* info) {
  if (!plays("hgx")) return api::not_supported;
  info->status = api::success;
  info->clique_id = 3;
  info->state = api::fabric_completed;
  std::fill_n(info->cluster_uuid, 16, static_cast<unsigned char>(0xab));
  return api::success;
}

#endif

}  // end of extern "C"
