// The checkpoints in the results folder of a run: checkpoints/step-00000100 and so on. The link
// `checkpoint` leads to the checkpoint that was saved last. In earlier versions it was a folder,
// the only checkpoint. With --keep-best, the link `best` leads to the checkpoint of the best
// evaluation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace train {

std::filesystem::path checkpoints_folder(const std::filesystem::path& out);
std::filesystem::path checkpoint_folder(const std::filesystem::path& out, std::int64_t step);

// Returns the whole checkpoints of a run: that to which the link leads and those of earlier steps,
// latest first, then those of later steps, which the run has repeated since; without a link, by
// step. A checkpoint whose save or removal was cut off has no index, and is left out. Throws
// Error(io).
std::vector<std::filesystem::path> find_checkpoints(const std::filesystem::path& out);

// The config.toml of the run that saved a checkpoint; empty if there is none.
std::filesystem::path config_of_checkpoint(const std::filesystem::path& checkpoint);

// Lets the link `checkpoint` or `best` lead to the checkpoint of `step`. Leaves a folder of that
// name alone. Throws Error(io).
void link_checkpoint(const std::filesystem::path& out, const std::string& link, std::int64_t step);
// Whether the link `best` leads to a checkpoint. Removes it if it leads to a step after `done`,
// which the run repeats.
bool keeps_best(const std::filesystem::path& out, std::int64_t done);

// Deletes checkpoints except the first `keep_last` of find_checkpoints(), the one that the link
// `best` leads to, and those of every `keep_every`-th step (0: none), and what saves that were cut
// off have left. A `keep_last` of 0 keeps all checkpoints. Call it after a save, while no rank
// saves. Throws Error(io).
void delete_old_checkpoints(const std::filesystem::path& out, std::int64_t keep_last,
                            std::int64_t keep_every);

// Deletes what runs that were killed have left: unfinished checkpoints STEP.partial in
// `checkpoints`, and beside each of `files` its unfinished exports FILE.DIGITS.partial and drafts
// FILE.TAG.tmp (process_tag()). Keeps unfinished checkpoints for one minute after their last
// change, and files for one hour, because another run may be writing them. Returns the paths that
// it deleted. A path that cannot be read or deleted stays, without an error.
std::vector<std::filesystem::path> remove_left_overs(
    const std::filesystem::path& checkpoints, const std::vector<std::filesystem::path>& files);

}  // namespace train
