// A temporary folder with files that is deleted at the end of a test.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "atoll/error.hpp"

namespace train_test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> number{0};
    path_ = std::filesystem::temp_directory_path() /
            ("atoll-train-" + std::to_string(::getpid()) + "-" + std::to_string(number++));
    std::filesystem::create_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    const auto file = path_ / name;
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }

  static std::string read(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::filesystem::path path_;
};

struct Failure {
  bool thrown = false;
  atoll::ErrorCode code{};
  std::string message;

  bool says(std::string_view text) const { return message.find(text) != std::string::npos; }
};

// Runs `body` and captures the Error that it throws. A message of more than one line is marked as
// wrong.
template <typename Body>
Failure failure_of(Body&& body) {
  try {
    body();
  } catch (const atoll::Error& error) {
    Failure failure{true, error.code(), error.what()};
    if (failure.says("\n")) failure.message = "MORE THAN ONE LINE: " + failure.message;
    return failure;
  }
  return {};
}

}  // namespace train_test
