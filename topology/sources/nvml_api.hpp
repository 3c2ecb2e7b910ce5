// The part of NVML's C interface that atoll uses, declared here so that the build needs no CUDA
// header. Taken from NVIDIA's NVML API reference (docs.nvidia.com/deploy/nvml-api). The layouts are
// those of the 64-bit Linux ABI, which NVML keeps stable and extends by new symbols.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <initializer_list>

namespace atoll_v1::atoll::nvml_api {

using Result = int;
inline constexpr Result success = 0;
// NVML also returns this code for a link number that the GPU does not have.
inline constexpr Result invalid_argument = 2;
inline constexpr Result not_supported = 3;
inline constexpr Result no_permission = 4;
inline constexpr Result not_found = 6;
inline constexpr Result driver_not_loaded = 9;
inline constexpr Result function_not_found = 13;
inline constexpr Result gpu_is_lost = 15;
inline constexpr Result version_mismatch = 25;

struct Device;  // opaque handle of a GPU

// Older versions of NVML's function fill a shorter structure, which is identical up to
// pci_subsystem_id.
struct PciInfo {
  char legacy_busid[16];
  unsigned domain, bus, device;
  unsigned pci_device_id;  // upper half: device id; lower half: vendor id
  unsigned pci_subsystem_id;
  char busid[32];
};
static_assert(sizeof(PciInfo) == 68 && offsetof(PciInfo, domain) == 16 &&
              offsetof(PciInfo, busid) == 36);

struct Memory {
  unsigned long long total, free, used;
};
static_assert(sizeof(Memory) == 24);

inline constexpr std::size_t uuid_size = 96;
inline constexpr std::size_t name_size = 96;
inline constexpr std::size_t version_size = 80;

enum FabricState : unsigned char {
  fabric_not_supported = 0,
  fabric_not_started = 1,
  fabric_in_progress = 2,
  fabric_completed = 3,
};

struct FabricInfo1 {
  unsigned char cluster_uuid[16];
  Result status;  // result of the fabric setup; valid only if the state is "completed"
  unsigned clique_id;
  unsigned char state;
};
static_assert(sizeof(FabricInfo1) == 28);

// Version 3 of the structure; version 2 ends before health_summary. `version` selects one.
struct FabricInfo {
  unsigned version;
  unsigned char cluster_uuid[16];
  Result status;
  unsigned clique_id;
  unsigned char state;
  unsigned health_mask;
  unsigned char health_summary;
};
static_assert(sizeof(FabricInfo) == 40 && offsetof(FabricInfo, status) == 20 &&
              offsetof(FabricInfo, health_mask) == 32 &&
              offsetof(FabricInfo, health_summary) == 36);
inline constexpr unsigned fabric_version_3 = 40U | (3U << 24);
inline constexpr unsigned fabric_version_2 = 36U | (2U << 24);

// Fields of the health mask with two bits each: 0 not supported, 1 true, 2 false.
inline constexpr unsigned health_degraded_bandwidth_shift = 0;
inline constexpr unsigned health_route_recovery_shift = 2;
inline constexpr unsigned health_route_unhealthy_shift = 4;
inline constexpr unsigned health_access_timeout_recovery_shift = 6;
// Field with four bits: 0 not supported, 1 no fault, otherwise the fault.
inline constexpr unsigned health_incorrect_configuration_shift = 8;

inline constexpr unsigned char summary_healthy = 1;
inline constexpr unsigned char summary_unhealthy = 2;
inline constexpr unsigned char summary_limited_capacity = 3;

inline constexpr unsigned most_links = 36;  // no existing GPU has more NVLinks

enum RemoteType : unsigned {
  remote_gpu = 0,
  remote_processor = 1,  // a processor, only on IBM POWER
  remote_switch = 2,
  remote_unknown = 0xff,
};

enum LinkError : unsigned {
  link_replay = 0,
  link_recovery = 1,
  link_crc_flit = 2,
  link_crc_data = 3,
};

union Value {
  double as_double;
  int as_int;
  unsigned as_unsigned;
  unsigned long as_long;
  unsigned long long as_long_long;
  long long as_signed_long_long;
  unsigned short as_short;
};

enum ValueType : unsigned {
  value_double = 0,
  value_unsigned = 1,
  value_long = 2,
  value_long_long = 3,
  value_signed_long_long = 4,
  value_int = 5,
  value_short = 6,
};

struct FieldValue {
  unsigned field;
  unsigned scope;  // link number, if the field belongs to one link
  long long timestamp, latency;
  unsigned type;  // the ValueType of `value`: which member is valid
  Result result;
  Value value;
};
static_assert(sizeof(FieldValue) == 40 && offsetof(FieldValue, value) == 32);

// Field ids of counters over all links of a GPU.
inline constexpr unsigned field_crc_flit_total = 38;
inline constexpr unsigned field_crc_data_total = 45;
inline constexpr unsigned field_replay_total = 52;
inline constexpr unsigned field_recovery_total = 59;
// Field ids of counters of one link, available from generation 5 on.
inline constexpr unsigned field_receive_errors = 208;
inline constexpr unsigned field_link_integrity_errors = 211;
inline constexpr unsigned field_recovery_events = 215;

// Reasons why clocks are reduced.
inline constexpr unsigned long long clocks_power_cap = 0x4;
inline constexpr unsigned long long clocks_hw_slowdown = 0x8;
inline constexpr unsigned long long clocks_sw_thermal = 0x20;
inline constexpr unsigned long long clocks_hw_thermal = 0x40;
inline constexpr unsigned long long clocks_power_brake = 0x80;

// An entry point of NVML. Calling a function that the library lacks returns function_not_found.
template <class... Parameters>
struct Function {
  using Type = Result (*)(Parameters...);
  Type found = nullptr;

  // `names` are the symbols of the function's versions, newest first; takes the first that exists.
  Function(void* library, std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (found == nullptr) found = reinterpret_cast<Type>(dlsym(library, name));
  }
  Result operator()(Parameters... arguments) const {
    return found == nullptr ? function_not_found : found(arguments...);
  }
};

using Number = Function<Device*, unsigned*>;
using Text = Function<Device*, char*, unsigned>;  // these functions write a text into a buffer

// The functions of a library that dlopen() has loaded.
struct Functions {
  void* library;
  Function<> init{library, {"nvmlInit_v2", "nvmlInit"}};
  Function<> shutdown{library, {"nvmlShutdown"}};
  const char* (*error_string)(Result) =
      reinterpret_cast<const char* (*)(Result)>(dlsym(library, "nvmlErrorString"));
  Function<char*, unsigned> driver_version{library, {"nvmlSystemGetDriverVersion"}};
  Function<unsigned*> count{library, {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}};
  Function<unsigned, Device**> by_index{
      library, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"}};
  Number index{library, {"nvmlDeviceGetIndex"}};
  Function<Device*, PciInfo*> pci_info{
      library, {"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"}};
  Text uuid{library, {"nvmlDeviceGetUUID"}};
  Text name{library, {"nvmlDeviceGetName"}};
  Function<Device*, Memory*> memory{library, {"nvmlDeviceGetMemoryInfo"}};
  Function<Device*, int*, int*> compute_capability{library, {"nvmlDeviceGetCudaComputeCapability"}};
  Number pcie_generation{library, {"nvmlDeviceGetCurrPcieLinkGeneration"}};
  Number pcie_generation_max{library, {"nvmlDeviceGetMaxPcieLinkGeneration"}};
  Number pcie_width{library, {"nvmlDeviceGetCurrPcieLinkWidth"}};
  Number pcie_width_max{library, {"nvmlDeviceGetMaxPcieLinkWidth"}};
  Number pcie_replays{library, {"nvmlDeviceGetPcieReplayCounter"}};
  Function<Device*, unsigned*, unsigned*> mig_mode{library, {"nvmlDeviceGetMigMode"}};
  Number mig_most{library, {"nvmlDeviceGetMaxMigDeviceCount"}};
  Function<Device*, unsigned, Device**> mig_by_index{library,
                                                     {"nvmlDeviceGetMigDeviceHandleByIndex"}};
  Number persistence{library, {"nvmlDeviceGetPersistenceMode"}};
  Function<Device*, unsigned*, unsigned*, unsigned*, unsigned*> remapped_rows{
      library, {"nvmlDeviceGetRemappedRows"}};
  Function<Device*, unsigned long long*> clocks_reasons{
      library,
      {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"}};
  Number power_limit{library, {"nvmlDeviceGetPowerManagementLimit"}};
  Number power_default{library, {"nvmlDeviceGetPowerManagementDefaultLimit"}};
  Function<Device*, FabricInfo*> fabric{library, {"nvmlDeviceGetGpuFabricInfoV"}};
  Function<Device*, FabricInfo1*> fabric_1{library, {"nvmlDeviceGetGpuFabricInfo"}};
  Function<Device*, unsigned, unsigned*> link_state{library, {"nvmlDeviceGetNvLinkState"}};
  Function<Device*, unsigned, PciInfo*> link_remote_pci{
      library, {"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"}};
  Function<Device*, unsigned, unsigned*> link_remote_type{library,
                                                          {"nvmlDeviceGetNvLinkRemoteDeviceType"}};
  Function<Device*, unsigned, unsigned, unsigned long long*> link_errors{
      library, {"nvmlDeviceGetNvLinkErrorCounter"}};
  Function<Device*, int, FieldValue*> field_values{library, {"nvmlDeviceGetFieldValues"}};
};

}  // namespace atoll_v1::atoll::nvml_api
