// Fuzzes the text with which a rank tells another its RDMA address.
#include <cstddef>
#include <cstdlib>
#include <string>

#include "sdk/backend.hpp"
#include "verbs/contact.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* input, std::size_t size) {
  if (size > 10'000) return 0;
  const std::string text(reinterpret_cast<const char*>(input), size);
  try {
    const auto contact = atoll_verbs_backend::decode(text);
    const auto target = contact.target();
    if (target.ring_bytes == 0 || atoll_verbs_backend::encode(contact) != text) std::abort();
  } catch (const atoll_sdk::Error& error) {
    if (error.status() != ATOLL_BAD_DATA) std::abort();
  }
  return 0;
}
