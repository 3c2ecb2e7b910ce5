// The shard files of a checkpoint. Each file says to which save, step and shard it belongs, and has
// digests of its tensors, block by block. The index has the digest of each file's header. So a
// reader verifies the blocks that it reads, and nothing else: a load that reads 1/n of a checkpoint
// computes digests of 1/n of it, plus at most two blocks for each range that it reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/index.hpp"
#include "checkpoint/safetensors.hpp"

namespace atoll_v1::atoll::fsdp {

struct ShardIdentity {
  std::string save;
  std::uint64_t step = 0;
  std::uint64_t shard = 0, shards = 1;
};

std::filesystem::path shard_path(const std::filesystem::path& folder, std::uint64_t shard,
                                 std::uint64_t shards);

// Returns the metadata of a shard file.
std::map<std::string, std::string> shard_metadata(const ShardIdentity& identity);

// Opens a file that a rank has just written, and returns its entry for the index. Throws Error(io)
// if this rank cannot see the file, Error(mismatch) if it is another shard or of another save.
ShardFile examine_shard(const std::filesystem::path& folder, const ShardIdentity& identity);

// The shard files of a checkpoint, opened when they are needed.
class StoredShards {
 public:
  // `index` must outlive the object.
  StoredShards(std::filesystem::path folder, const CheckpointIndex& index);

  // Fills `values` with the elements of a flat tensor, beginning at element `first`. The tensor has
  // `elements` elements including padding, and is split evenly over the shard files. A tensor of
  // u8 has blocks of 8-bit integers (int8_blocks.hpp). Verifies all digests of these elements.
  // Throws Error(bad_data), which names file, tensor and offset.
  void read(const std::string& tensor, std::uint64_t elements, std::uint64_t first,
            std::span<float> values);
  // Fills `values` with a whole tensor that is in one shard file.
  void read_whole(const std::string& tensor, std::uint64_t shard, std::span<float> values);

 private:
  // A tensor in one file, and which of its blocks are verified.
  struct Tensor {
    const SafetensorsEntry* entry;
    const std::string* digests;  // null in a checkpoint without digests
    std::vector<bool> verified;
  };
  struct Shard {
    SafetensorsFile file;
    std::map<std::string, Tensor, std::less<>> tensors;  // tensors read so far
  };

  Shard& open(std::uint64_t number);
  static Tensor& find(Shard& shard, const std::string& name, std::uint64_t elements);
  static void verify(const Shard& shard, Tensor& tensor, std::uint64_t block);
  // Copies elements from `at` on, as many as one digest covers or `values` has. Returns how many.
  static std::uint64_t read_block(const Shard& shard, Tensor& tensor, std::uint64_t at,
                                  std::span<float> values);
  static void read_int8(const Shard& shard, Tensor& tensor, std::uint64_t first,
                        std::span<float> values);

  std::filesystem::path folder_;
  const CheckpointIndex& index_;
  std::vector<std::optional<Shard>> shards_;
};

}  // namespace atoll_v1::atoll::fsdp
