// Sharded checkpoints, and import and export of whole weights as safetensors. A checkpoint is
// written without gathering, and loads at any world size, mesh and strategy.
//
// All functions are collective over the ranks of the engine, and block. A failure on one rank
// throws the same Error on all of them; a rank that does not make the call is an Error(timeout)
// that names the call. On a mesh with axes that the engine does not use, each coordinate on these
// axes has a separate engine, and each engine must use a separate folder or file, such as
// "out/tensor-" + std::to_string(mesh.axis("tensor").index).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"

namespace atoll_v1::atoll::fsdp {

// Writes a folder that contains `index.json` (units, parameters, shapes, offsets, number of shards,
// settings of the optimizer for each parameter, `extra`) and one safetensors file per shard, such
// as `shard-00000-of-00004.safetensors`. A shard file holds flat tensors for each bucket:
// UNIT/BUCKET/weights, the moments of an Optimizer as UNIT/BUCKET/moment1 and UNIT/BUCKET/moment2
// (f32 or bf16; load() converts), and each state of Engine::add_state() as UNIT/BUCKET/state.NAME,
// or UNIT/whole.PARAM/state.NAME for a state that is not elementwise.
// Each rank of replica 0 writes the file of its shard. Work that writes states may be enqueued on
// the streams that Optimizer::step() and Engine::parameters_changed() get: saves and load() wait
// for it.
//
// The folder appears complete or not at all, also after a power loss: files are written and synced
// to a temporary folder beside it, FOLDER.partial, which the engine's lowest rank renames when all
// files exist. After an error, FOLDER.partial is removed. FOLDER.old holds the old content for a
// moment on file systems that cannot exchange two names. Earlier folders FOLDER.partial and
// FOLDER.old are deleted with everything in them; a symbolic link FOLDER.partial is Error(io). All
// ranks must see the same file system. Error(io) names the file. A rank waits at most
// Config::file_timeout for the files of the others.
//
// If FOLDER is a symbolic link, save() and load() follow it: the folder to which it leads is the
// checkpoint, with the temporary folders beside it, and the link stays.
//
// An existing FOLDER is replaced if it is empty or a checkpoint. For anything else, such as a file
// or a checkpoint with a file that save() has not written, save() throws Error(io) and changes
// nothing. It also throws Error(io) if another engine is saving or has saved to FOLDER and still
// exists. On file systems that cannot lock folders with flock(), such as some NFS, save() cannot
// detect another engine: it logs one warning and saves.
//
// All ranks must pass the same folder and the same `extra`, and `optimizer` must be the Optimizer
// of `engine`: otherwise Error(mismatch) or Error(invalid_argument), before anything is written.
// Keys and values of `extra` must be UTF-8: otherwise Error(invalid_argument).
//
// Every file has the id of the save. Shard files have their step and number, and a digest (XXH3, 64
// bits) for each MiB of each tensor. The index has the digest of each shard's header and of itself.
ATOLL_API void save(const std::filesystem::path& folder, Engine& engine, const Optimizer& optimizer,
                    const std::map<std::string, std::string>& extra = {});
// For callers that write their optimizer themselves. Numbers that it needs besides the states of
// Engine::add_state(), such as a count of steps, belong in `extra`. Error(invalid_argument) if the
// engine has an Optimizer, whose moments would be absent.
ATOLL_API void save(const std::filesystem::path& folder, Engine& engine,
                    const std::map<std::string, std::string>& extra = {});

// A save that a thread performs while training continues. All ranks must call finish(), which ends
// the save, after any number of training steps of their own. Destroying a PendingSave before
// finish() cancels the save: its folder keeps its old content, and FOLDER.partial is removed.
class ATOLL_API PendingSave {
 public:
  PendingSave(PendingSave&&) noexcept;
  PendingSave& operator=(PendingSave&&) noexcept;
  ~PendingSave();

  // Whether this rank has written and synced its file, or failed to. Does not block. Once it is
  // true on all ranks, finish() takes only the time to write the index and to rename the folder.
  bool written() const;
  // Seconds for which steps of this rank have waited for the save so far: until its thread had
  // written a unit or freed room for its copy, and while units were copied. Does not block.
  double stalled_seconds() const;
  // Collective. Blocks until the folder is complete under its name. Throws the error of any rank on
  // all ranks; training can go on, and the folder has its old content. Afterwards every call throws
  // Error(invalid_argument).
  void finish();

 private:
  struct ATOLL_LOCAL Impl;
  ATOLL_LOCAL explicit PendingSave(std::unique_ptr<Impl> impl);
  friend struct PendingSaveAccess;  // this class is defined in src/checkpoint/save.cpp
  std::unique_ptr<Impl> impl_;
};

// Begins the same save as save() and returns while a thread writes the files: the checkpoint has
// the values at the time of the call, whatever training does meanwhile. Parameters and moments are
// read from the memory that steps of `optimizer` update; before a step updates a unit that is not
// yet written, the unit is copied to CPU memory. If the copies of a rank would exceed
// `most_copied_bytes`, the step waits for the thread, as it does for every unit if 0 is passed.
// Functions other than a step that change parameters, such as assign() or load(), wait for the
// thread; writing Segment::values meanwhile damages the save. Another save throws
// Error(invalid_argument) until the PendingSave has finished or is destroyed. Engine and optimizer
// must outlive it.
ATOLL_API PendingSave save_beside(const std::filesystem::path& folder, Engine& engine,
                                  const Optimizer& optimizer,
                                  const std::map<std::string, std::string>& extra = {},
                                  std::uint64_t most_copied_bytes = std::uint64_t{1} << 30);

// Reads a checkpoint. Each rank reads only the parts that its own shards need, and verifies the
// digests of the blocks that contain them; damage, and files of another save, are Error(bad_data)
// with file, byte and tensor. Checkpoints of versions of the library that wrote no digests load
// with a warning. After an error, parameters have unspecified values.
//
// All ranks must load the same save: otherwise Error(mismatch) names two ranks and their folders,
// and the parameters do not change. Folders may have different names, such as copies on the disk of
// each host. The Optimizer of the engine must be passed if there is one, as with save().
//
// Units, shapes, the kind of optimizer and the names of states must be those of the engine:
// otherwise Error(mismatch) names the first difference. Call Engine::add_state() before load(). The
// number of shards, strategy, dtypes and frozen parameters may differ from those at the time of
// saving. So may the settings of the optimizer for each parameter (ParamSettings), which change
// with parameter groups and the decay rule: the engine's lowest rank then logs a warning that names
// the first difference. Returns the `extra` that was passed to save().
ATOLL_API std::map<std::string, std::string> load(const std::filesystem::path& folder,
                                                  Engine& engine, Optimizer& optimizer);
ATOLL_API std::map<std::string, std::string> load(const std::filesystem::path& folder,
                                                  Engine& engine);

// Returns the name of a parameter in a weights file, such as "model.layers.0.mlp.up_proj.weight",
// or "" to leave the parameter out: export_weights() does not write it, and import_weights() does
// not change it.
using ParamName = std::function<std::string(const Unit&, const ParamSpec&)>;

// Writes one safetensors file with all parameters unsharded, as `dtype` (f32, bf16 or f16). The
// engine's lowest rank writes unit by unit, so that no rank holds more than one whole unit; the
// other ranks wait at most Config::file_timeout for its disk. The file appears complete or not at
// all, and replaces a regular file or a symbolic link of that name. Error(io) names the file. If
// two engines or jobs write the same file, it is the whole file of one of them. A job that is
// killed leaves its temporary file, FILE.DIGITS.partial.
//
// All ranks must pass the same file and dtype, and `name` must return the same names on all ranks:
// otherwise Error(mismatch). Error(invalid_argument) if `name` is empty or throws, if two
// parameters get the same name, if every parameter is left out, and for the name "__metadata__" or
// one that is not UTF-8.
ATOLL_API void export_weights(const std::filesystem::path& file, Engine& engine, DType dtype,
                              const ParamName& name);

// Fills the shards of every rank from safetensors files (f32, bf16 or f16) that together contain
// every parameter with its name and shape. Each rank reads only its own parts. Several parameters
// may have the same name, and are filled from one tensor. Throws Error(not_found) or
// Error(mismatch), which name file and tensor. All ranks must get the same names: otherwise
// Error(mismatch). Error(invalid_argument) if `name` is empty or throws, and if it leaves
// parameters out before the engine has values, for example from Engine::initialize().
ATOLL_API void import_weights(const std::vector<std::filesystem::path>& files, Engine& engine,
                              const ParamName& name);

}  // namespace atoll_v1::atoll::fsdp
