// The algorithms that were fastest for matrix products, kept in a JSON file between runs.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace train::cuda {

class ProductFile {
 public:
  struct Choice {
    std::array<std::uint64_t, 8> algorithm{};  // cublasLtMatmulAlgo_t, which may be stored as bytes
    double seconds = 0;                        // time of this algorithm
    double first_seconds = 0;                  // time of cuBLASLt's first choice
    friend bool operator==(const Choice&, const Choice&) = default;
  };

  // `machine` names the GPU and the version of cuBLASLt; choices for other machines stay in the
  // file and are not used. An unreadable file logs a warning, and is left alone. With an empty path,
  // choices live in memory.
  ProductFile(std::filesystem::path path, std::string machine);

  // Null if there is none.
  const Choice* find(const std::string& product) const;
  // Also writes the file, and keeps what other processes have added. If two processes write at the
  // same moment, a choice may be lost, and a later run times it again. A failure logs a warning.
  void add(const std::string& product, const Choice& choice);

 private:
  using Choices = std::map<std::string, Choice>;

  std::filesystem::path path_;
  std::string machine_;
  Choices choices_;
  bool has_failed_ = false;
};

}  // namespace train::cuda
