// A curve that atoll-busbw --save wrote, and the tuning file made of it.
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include "atoll/error.hpp"
#include "tune.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto points = busbw::parse_curve(text, "curve");
    // One word a place: lines are what the library reads.
    if (!points.empty() && busbw::tuning_text(points).back() != '\n') std::abort();
  } catch (const atoll::Error&) {
  }
  return 0;
}
