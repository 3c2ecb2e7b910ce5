// Event files of TensorBoard. Their records are TFRecords: length, masked CRC32C of the length,
// bytes, masked CRC32C of the bytes, little-endian. The bytes are a protobuf message `Event`
// (tensorboard/compat/proto/event.proto) with wall_time = 1, step = 2, file_version = 3 or
// summary = 5, whose values have tag = 1 and simple_value = 2.
//
// They are written by hand: libprotobuf would need copies of three schema files, a generator in the
// build, and a library at run time, for five fields; it has no CRC32C. The test reads the files
// with TensorBoard's reader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace train::tensorboard {

struct Scalar {
  std::string_view tag;  // "train/loss": TensorBoard groups by the part before the slash
  double value = 0;      // stored as f32
};

// CRC32C (Castagnoli) of the bytes, and the form in which TFRecords store it.
std::uint32_t crc32c(std::string_view bytes) noexcept;
std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

// The first record of a file, and the record of one step. `wall_time` is in seconds since 1970.
std::string version_record(double wall_time);
std::string scalars_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

class EventFile {
 public:
  // Creates the folder and a new file in it, whose name TensorBoard recognizes. Throws Error(io)
  // that names --tensorboard and the folder.
  EventFile(const std::filesystem::path& folder, double wall_time);

  // Appends a step and flushes. Returns false once writing has failed.
  bool add(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

  const std::filesystem::path& file() const noexcept { return file_; }

 private:
  std::filesystem::path file_;
  std::ofstream out_;
};

}  // namespace train::tensorboard
