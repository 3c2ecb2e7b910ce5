// The files of --init.
#pragma once

#include <filesystem>
#include <vector>

namespace train {

// Returns the safetensors files that hold the weights at `place`, which is a file or a folder. In a
// folder with model.safetensors.index.json these are the files that the index names; other files do
// not count, even if they are damaged. Without an index it is model.safetensors, or otherwise every
// file whose name ends in .safetensors, sorted by name.
//
// Reads the headers of the files that an index names. Throws Error(io), Error(not_found) for a file
// that is missing, Error(bad_data) for an index that is malformed, and Error(mismatch) for a tensor
// that is in another file than the index says.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& place);

}  // namespace train
