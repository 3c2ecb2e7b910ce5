#include "plan/input.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

#include "fail.hpp"

namespace plan {

nlohmann::json read_object(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in.good()) train::fail(atoll::ErrorCode::io, "{}: cannot be opened", file.string());
  nlohmann::json content = nlohmann::json::parse(in, nullptr, false);
  if (!content.is_object())
    train::fail(atoll::ErrorCode::bad_data, "{}: not a JSON object", file.string());
  return content;
}

}  // namespace plan
