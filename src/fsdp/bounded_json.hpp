// Parses untrusted JSON in linear time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace atoll_v1::atoll::fsdp {

struct JsonLimits {
  std::size_t depth = 8;            // nesting of objects and lists
  std::size_t values = 50'000'000;  // objects, lists, texts, numbers
};

// Throws Error(bad_data), which names the file, if the text is not JSON (with the byte), has a key
// twice in one object, or exceeds a limit.
nlohmann::json parse_bounded_json(std::string_view text, const std::filesystem::path& file,
                                  JsonLimits limits = {});

}  // namespace atoll_v1::atoll::fsdp
