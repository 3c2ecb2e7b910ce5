// Fuzzes the reader of safetensors files: parses the header, reads every tensor's data, and looks
// up every name.
#include <cstddef>
#include <cstdlib>
#include <span>

#include "atoll/error.hpp"
#include "checkpoint/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  namespace fsdp = atoll::fsdp;
  try {
    const auto header = fsdp::parse_safetensors(std::as_bytes(std::span(data, size)), "input");
    unsigned sum = 0;
    for (const auto& entry : header.entries) {
      if (header.find(entry.name) != &entry) std::abort();
      const auto* bytes = static_cast<const unsigned char*>(entry.data.data);
      for (std::size_t i = 0; i < entry.data.bytes(); ++i) sum += bytes[i];
    }
    volatile unsigned used = sum;
    static_cast<void>(used);
  } catch (const atoll::Error&) {
    return 0;
  }
  return 0;
}
