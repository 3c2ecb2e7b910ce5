// Data that the trainer does not read itself: rank 0 lets atoll-data write token files of them.
#pragma once

#include "atoll/world.hpp"
#include "loop/options.hpp"

namespace train {

// Converts the sources of --data and --eval-data that need it, and makes the options name the token
// files, which are on the host of rank 0: share_files() brings them to the others. They stay in
// file_cache(), where later runs find them as long as the sources, the tokenizer and the flags do
// not change. Returns whether a source was replaced. Call choose_tokenizer() before. Collective, and
// quick for data that need no conversion. Throws an Error with the last line of atoll-data, the same
// on every rank.
bool convert_data(atoll::World& world, RunOptions& options);

}  // namespace train
