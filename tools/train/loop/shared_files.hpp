// Two kinds of files of a run: those that only some hosts have, which the ranks share, and data
// that the trainer does not read itself, which atoll-data converts to token files on rank 0.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "atoll/world.hpp"
#include "loop/options.hpp"

namespace train {

// Gives every rank the files that --model, --init, --tokenizer, --data and --eval-data name, if at
// least one rank has them; only rank 0 gets data that are to be converted. The lowest rank that has
// a file or folder sends it to the hosts that lack it. They keep the copy in file_cache(), where
// later runs find it, and the options of their ranks then name it. The checksums of all copies are
// compared. Files that no rank has are left to the code that opens them.
//
// A folder may hold more than the model. Only these files of it are sent: config.json,
// generation_config.json, tokenizer_files(), and, if the run loads weights, weight_files() with
// their index. Collective, and quick if all ranks have all files. Throws Error(io) that names the
// host and the file, and Error(mismatch) if a copy differs.
void share_files(atoll::World& world, RunOptions& options);

// Converts the sources of --data and --eval-data that need it (conversion.cpp), and makes the
// options name the token files. They are on the host of rank 0; share_files() sends them to others.
// They stay in file_cache(), where later runs find them as long as the sources, the tokenizer and
// the flags do not change. Returns whether a source was replaced. Call choose_tokenizer() before.
// Collective, and quick for data that need no conversion. Throws an Error with the last line of
// atoll-data, the same on every rank.
bool convert_data(atoll::World& world, RunOptions& options);

// XDG_CACHE_HOME/atoll/files, or without this variable ~/.cache/atoll/files.
std::filesystem::path file_cache();

// Names a folder of file_cache(): a digest of the text and of the paths, sizes and times of the
// files that exist.
std::string cache_key(std::string text, const std::vector<std::filesystem::path>& files);

}  // namespace train
