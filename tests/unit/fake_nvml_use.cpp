// An NVML with one busy GPU at 0000:0f:00.0, whose counters rise with each reading.
#include <cstring>

namespace {
int readings = 0;
}

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  *device = &readings;
  return std::strcmp(address, "0000:0f:00.0") == 0 ? 0 : 6;  // not found
}

int nvmlDeviceGetUtilizationRates(void*, unsigned* percent) {
  percent[0] = 87;
  percent[1] = 40;
  return 0;
}

struct Field {
  unsigned field, scope;
  long long timestamp, latency;
  unsigned type;
  int result;
  unsigned long long value;
};

int nvmlDeviceGetFieldValues(void*, int count, Field* fields) {
  ++readings;
  for (int i = 0; i < count; ++i) {
    const bool nvlink = fields[i].field == 138 || fields[i].field == 139;
    fields[i].type = 3;                                           // unsigned long long
    fields[i].result = nvlink && fields[i].scope == ~0U ? 0 : 3;  // PCIe counters: not supported
    fields[i].value = static_cast<unsigned long long>(readings) * fields[i].field;
  }
  return 0;
}
}
