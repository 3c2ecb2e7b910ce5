#include "checkpoint/shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/digests.hpp"
#include "device/cpu/kernels.hpp"
#include "device/int8_blocks.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

namespace fs = std::filesystem;

std::string_view metadata_of(const SafetensorsFile& file, std::string_view key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "unknown" : std::string_view(found->second);
}

void check_identity(const SafetensorsFile& file, const ShardIdentity& identity) {
  const auto wanted = shard_metadata(identity);
  if (metadata_of(file, "save") != identity.save) {
    throw bad(file.path(),
              "belongs to another save (id {}, step {}) than the index (id {}, step {})",
              metadata_of(file, "save"), metadata_of(file, "step"), identity.save, identity.step);
  }
  if (metadata_of(file, "shard") != wanted.at("shard")) {
    throw bad(file.path(), "holds shard {}, but its name is that of shard {}",
              metadata_of(file, "shard"), wanted.at("shard"));
  }
}

}  // namespace

fs::path shard_path(const fs::path& folder, std::uint64_t shard, std::uint64_t shards) {
  return folder / fmt::format("shard-{:05}-of-{:05}.safetensors", shard, shards);
}

std::map<std::string, std::string> shard_metadata(const ShardIdentity& identity) {
  return {{"save", identity.save},
          {"step", std::to_string(identity.step)},
          {"shard", fmt::format("{} of {}", identity.shard, identity.shards)}};
}

ShardFile examine_shard(const fs::path& folder, const ShardIdentity& identity) {
  const fs::path path = shard_path(folder, identity.shard, identity.shards);
  require_io(fs::exists(path), path,
             "another rank has written this file, but it is not visible here: all ranks must see "
             "the same file system");
  const SafetensorsFile file = SafetensorsFile::open(path);
  check_identity(file, identity);
  return {file.bytes().size(), digest_text(digest_of(file.header_bytes()))};
}

StoredShards::StoredShards(fs::path folder, const CheckpointIndex& index)
    : folder_(std::move(folder)), index_(index), shards_(index.shards) {}

StoredShards::Shard& StoredShards::open(std::uint64_t number) {
  std::optional<Shard>& shard = shards_[number];
  if (shard) return *shard;
  SafetensorsFile file = SafetensorsFile::open(shard_path(folder_, number, index_.shards));
  if (index_.has_digests()) {
    check_identity(file, {index_.save, index_.steps, number, index_.shards});
    const ShardFile& saved = index_.files[number];
    if (file.bytes().size() != saved.bytes) {
      throw bad(file.path(), "byte {}: the file has {} bytes, but {} were saved",
                std::min<std::uint64_t>(saved.bytes, file.bytes().size()), file.bytes().size(),
                saved.bytes);
    }
    if (digest_text(digest_of(file.header_bytes())) != saved.header) {
      throw bad(file.path(),
                "byte 0: the header is damaged: its {} bytes do not have the digest in the "
                "index",
                file.header_bytes().size());
    }
  }
  return shard.emplace(Shard{std::move(file), {}});
}

StoredShards::Tensor& StoredShards::find(Shard& shard, const std::string& name,
                                         std::uint64_t elements) {
  const auto known = shard.tensors.find(name);
  if (known != shard.tensors.end()) return known->second;
  const SafetensorsEntry& entry = shard.file.at(name);
  const ConstView& data = entry.data;
  const bool blocks = data.dtype == DType::u8;
  if ((!is_float(data.dtype) && !blocks) ||
      data.count != (blocks ? int8_bytes(elements) : elements)) {
    throw file_error(ErrorCode::mismatch, shard.file.path(),
                     "tensor {} is {} with {} elements, but the index requires {} elements of f32, "
                     "bf16 or f16, or {} of u8",
                     name, atoll::name(data.dtype), data.count, elements, int8_bytes(elements));
  }
  Tensor tensor{&entry, nullptr, {}};
  const auto digests = shard.file.metadata().find(digests_key(name));
  if (shard.file.metadata().contains("save")) {
    if (digests == shard.file.metadata().end() ||
        digests->second.size() != BlockDigests::text_bytes(data.bytes()))
      throw bad(shard.file.path(), "tensor {}: has not one digest for each MiB", name);
    tensor.digests = &digests->second;
    tensor.verified.resize(digests->second.size() / digest_digits);
  }
  return shard.tensors.emplace(name, std::move(tensor)).first->second;
}

void StoredShards::verify(const Shard& shard, Tensor& tensor, std::uint64_t block) {
  if (!tensor.digests || tensor.verified[block]) return;
  const std::span data(static_cast<const std::byte*>(tensor.entry->data.data),
                       tensor.entry->data.bytes());
  const std::uint64_t begin = block * digest_block_bytes;
  const auto bytes = data.subspan(begin, std::min(digest_block_bytes, data.size() - begin));
  if (digest_text(digest_of(bytes)) !=
      std::string_view(*tensor.digests).substr(block * digest_digits, digest_digits)) {
    throw bad(shard.file.path(),
              "byte {}: tensor {} is damaged: the {} bytes from here do not have the digest "
              "that was saved with them",
              bytes.data() - shard.file.bytes().data(), tensor.entry->name, bytes.size());
  }
  tensor.verified[block] = true;
}

void StoredShards::read_int8(const Shard& shard, Tensor& tensor, std::uint64_t first,
                             std::span<float> values) {
  const ConstView& data = tensor.entry->data;
  const std::uint64_t begin = int8_bytes(first / int8_block * int8_block),
                      end = int8_bytes(first + values.size());
  for (std::uint64_t block = begin / digest_block_bytes; block * digest_block_bytes < end; ++block)
    verify(shard, tensor, block);
  // Copied because the file format does not guarantee alignment.
  std::vector<Int8Block> aligned((end - begin) / sizeof(Int8Block));
  std::memcpy(aligned.data(), data.part(begin, end - begin).data, end - begin);
  const std::uint64_t before = first % int8_block;  // number of values before `first` in its block
  std::vector<float> all(before + values.size());
  cpu::dequantize(all, aligned.data());
  std::ranges::copy(std::span(all).subspan(before), values.begin());
}

// Handles one digest block at a time, so that the cast finds in the cache what the digest has read.
// A block holds whole elements, because sizes of elements are powers of two.
std::uint64_t StoredShards::read_block(const Shard& shard, Tensor& tensor, std::uint64_t at,
                                       std::span<float> values) {
  const ConstView& data = tensor.entry->data;
  const std::uint64_t in_block = digest_block_bytes / size_of(data.dtype);
  const std::uint64_t n = std::min<std::uint64_t>(values.size(), in_block - at % in_block);
  verify(shard, tensor, at / in_block);
  ConstView part = data.part(at, n);
  // Copy of the data for tensors whose place in the file is not aligned to their elements.
  std::vector<std::byte> aligned;
  if (reinterpret_cast<std::uintptr_t>(part.data) % size_of(part.dtype) != 0) {
    aligned.resize(part.bytes());
    std::memcpy(aligned.data(), part.data, part.bytes());
    part.data = aligned.data();
  }
  cpu::cast(values.first(n), part);
  return n;
}

void StoredShards::read(const std::string& name, std::uint64_t elements, std::uint64_t first,
                        std::span<float> values) {
  const std::uint64_t each = elements / shards_.size();
  while (!values.empty()) {
    Shard& shard = open(first / each);
    Tensor& tensor = find(shard, name, each);
    const std::uint64_t at = first % each;
    auto n = std::min<std::uint64_t>(values.size(), each - at);
    if (tensor.entry->data.dtype == DType::u8) {
      read_int8(shard, tensor, at, values.first(n));
    } else {
      n = read_block(shard, tensor, at, values.first(n));
    }
    first += n;
    values = values.subspan(n);
  }
}

void StoredShards::read_whole(const std::string& name, std::uint64_t number,
                              std::span<float> values) {
  Shard& shard = open(number);
  Tensor& tensor = find(shard, name, values.size());
  if (!is_float(tensor.entry->data.dtype)) {
    throw file_error(ErrorCode::mismatch, shard.file.path(),
                     "tensor {} is {}, not f32, bf16 or f16", name,
                     atoll::name(tensor.entry->data.dtype));
  }
  for (std::uint64_t at = 0; at < values.size();) {
    at += read_block(shard, tensor, at, values.subspan(at));
  }
}

}  // namespace atoll_v1::atoll::fsdp
