// Fuzzes the reader of curves in the format of atoll-busbw --save, and turns each accepted curve
// into a tuning file.
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
    // The library reads a tuning file line by line, so the last line must end with a newline.
    if (!points.empty() && busbw::tuning_text(points).back() != '\n') std::abort();
  } catch (const atoll::Error&) {
  }
  return 0;
}
