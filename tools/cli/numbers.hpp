// Numbers as people write them.
#pragma once

#include <functional>
#include <string>

namespace cli {

// A transform() of CLI11: turns "16G", "1.5 GiB" or "4096" into a number of bytes. The units b, k,
// m, g and t, in any case and also as "kb" or "KiB", are powers of 1024. A fraction of a byte is
// cut off. Throws CLI::ValidationError for other texts.
std::string as_bytes(const std::string& text);

// A check() of CLI11 for finite numbers, since CLI::Range takes NaN and has six decimals. `must`
// completes the error "5 must be ...".
using Check = std::function<std::string(const std::string&)>;
Check number(std::function<bool(double)> fits, std::string must);
Check at_least(double least);

}  // namespace cli
