#include "report/tensorboard.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>

#include "fail.hpp"
#include "report/files.hpp"

namespace train::tensorboard {
namespace {

template <class Number>
std::string little_endian(Number number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof number; ++i) {
    bytes += static_cast<char>((number >> (8 * i)) & 0xFF);
  }
  return bytes;
}

// Protobuf's wire types.
enum class Wire {
  varint = 0,
  fixed64 = 1,
  bytes = 2,
  fixed32 = 5
};

std::string varint(std::uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7U) bytes += static_cast<char>((number & 0x7F) | 0x80);
  return bytes + static_cast<char>(number);
}

std::string key(unsigned field, Wire wire) {
  return varint((field << 3U) | static_cast<unsigned>(wire));
}

std::string nested(unsigned field, std::string_view bytes) {
  return key(field, Wire::bytes) + varint(bytes.size()) + std::string(bytes);
}

std::string wall_time_field(double seconds) {
  return key(1, Wire::fixed64) + little_endian(std::bit_cast<std::uint64_t>(seconds));
}

std::string record(const std::string& event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  return length + little_endian(masked_crc32c(length)) + event +
         little_endian(masked_crc32c(event));
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  constexpr std::uint32_t reversed_polynomial = 0x82F63B78;
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? reversed_polynomial : 0);
    }
  }
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) noexcept {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U;
}

std::string version_record(double wall_time) {
  return record(wall_time_field(wall_time) + nested(3, "brain.Event:2"));
}

std::string scalars_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    const auto value = std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value));
    summary += nested(1, nested(1, scalar.tag) + key(2, Wire::fixed32) + little_endian(value));
  }
  return record(wall_time_field(wall_time) + key(2, Wire::varint) +
                varint(static_cast<std::uint64_t>(step)) + nested(5, summary));
}

EventFile::EventFile(const std::filesystem::path& folder, double wall_time) {
  try {
    make_directory(folder);
  } catch (const Error& error) {
    fail(error.code(), "--tensorboard: {}", error.what());
  }
  file_ = folder / fmt::format("events.out.tfevents.{:010.0f}.{}.{}.0", std::floor(wall_time),
                               host_name(), ::getpid());
  out_.open(file_, std::ios::binary | std::ios::trunc);
  out_ << version_record(wall_time) << std::flush;
  if (!out_) {
    fail(ErrorCode::io, "--tensorboard: {}: cannot be written; name a folder that can",
         file_.string());
  }
}

bool EventFile::add(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  out_ << scalars_record(wall_time, step, scalars) << std::flush;
  return static_cast<bool>(out_);
}

}  // namespace train::tensorboard
