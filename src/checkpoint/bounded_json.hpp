// Parses untrusted JSON in linear time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace atoll_v1::atoll::fsdp {

struct JsonLimits {
  std::size_t depth = 8;            // maximum nesting of objects and lists
  std::size_t values = 50'000'000;  // maximum number of objects, lists, texts and numbers
  std::uint64_t first_byte = 0;     // byte offset of the text in its file, for errors
};

// Receives one member of the outermost object. The parser does not keep that member.
using JsonMember = std::function<void(const std::string& key, const nlohmann::json& value)>;

// Returns the value, without the members that `member` receives. Throws Error(bad_data), which
// names the file, if the text is not JSON (with the byte), has a key twice in one object, or
// exceeds a limit (with the first byte). A `member` must itself detect keys that occur twice in the
// outermost object.
nlohmann::json parse_bounded_json(std::string_view text, const std::filesystem::path& file,
                                  JsonLimits limits = {}, const JsonMember& member = {});

}  // namespace atoll_v1::atoll::fsdp
