#include "atoll/checkpoint.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "atoll/rank_set.hpp"
#include "checkpoint/content.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/shards.hpp"
#include "checkpoint/together.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "core/terminal_safe.hpp"
#include "fsdp/pass_state.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view weights_alone =
    "to take over the weights alone, use export_weights and import_weights";

// Throws Error(mismatch) that names the first state that only one of checkpoint and engine has.
// Checkpoints of earlier versions of the library have no list of states.
void check_states(const json& index, const json& expected, const fs::path& file) {
  const json none = json::array();
  const json &theirs = index.contains("states") ? index.at("states") : none,
             &ours = expected.at("states");
  const auto check = [&](const json& some, const json& others, std::string_view text) {
    for (const json& state : some) {
      if (std::ranges::find(others, state) != others.end()) continue;
      throw file_error(ErrorCode::mismatch, file, "the state {} {}; {}", state.dump(), text,
                       weights_alone);
    }
  };
  check(theirs, ours, "is in the checkpoint, but Engine::add_state() has not added it");
  check(ours, theirs, "of Engine::add_state() is not in the checkpoint");
  const json no_counts = json::object();
  const auto found = index.find("state_elements");
  const json &stored = found != index.end() && found->is_object() ? *found : no_counts,
             &wanted = expected.at("state_elements");
  for (const json& state : ours) {
    const auto name = state.get<std::string>();
    if (stored.value(name, json()) == wanted.value(name, json())) continue;
    throw file_error(ErrorCode::mismatch, file,
                     "the state {} has another number of elements in the checkpoint than "
                     "Engine::add_state() got; {}",
                     state.dump(), weights_alone);
  }
}

// Throws Error(mismatch) unless checkpoint and engine have the same names and shapes of units and
// parameters. The number of shards, dtypes and frozen parameters may differ.
void check_layout(const json& index, const json& expected, const fs::path& file) {
  const json &theirs = index.at("units"), &ours = expected.at("units");
  const auto compare = [&](const std::string& what, const json& stored, const json& wanted) {
    if (stored == wanted) return;
    throw file_error(ErrorCode::mismatch, file, "{}: {} in the checkpoint, {} in the model", what,
                     stored.dump(), wanted.dump());
  };
  // Compares names before counts, because a name shows which unit is additional or absent.
  for (std::size_t u = 0; u < std::min(ours.size(), theirs.size()); ++u) {
    compare(fmt::format("the name of unit {}", u), theirs[u].at("name"), ours[u].at("name"));
    const auto unit = ours[u].at("name").get<std::string>();
    const json &stored = theirs[u].at("params"), &wanted = ours[u].at("params");
    for (std::size_t p = 0; p < std::min(stored.size(), wanted.size()); ++p) {
      compare(fmt::format("the name of parameter {} of unit {}", p, unit), stored[p].at("name"),
              wanted[p].at("name"));
      compare(fmt::format("the shape of parameter {} of unit {}",
                          wanted[p].at("name").get<std::string>(), unit),
              stored[p].at("shape"), wanted[p].at("shape"));
    }
    compare(fmt::format("the number of parameters of unit {}", unit), stored.size(), wanted.size());
  }
  compare("the number of units", theirs.size(), ours.size());
  if (index.at("optimizer") != expected.at("optimizer"))
    throw file_error(ErrorCode::mismatch, file,
                     "the optimizer: {} in the checkpoint, {} in the job; {}",
                     index.at("optimizer").dump(), expected.at("optimizer").dump(), weights_alone);
  check_states(index, expected, file);
}

// Where a checkpoint stores a parameter.
struct StoredParam {
  std::string unit;
  std::string bucket;
  std::uint64_t offset;
  std::uint64_t elements;  // elements of the whole bucket, including padding
};

// `unit` has been checked by parse_index().
StoredParam stored_param(const json& unit, std::size_t param, std::uint64_t count,
                         std::uint64_t shards, const fs::path& file) {
  const json& entry = unit.at("params").at(param);
  const json& bucket = unit.at("buckets").at(entry.at("bucket").get<std::size_t>());
  StoredParam stored{unit.at("name").get<std::string>(), bucket.at("name").get<std::string>(),
                     entry.at("offset").get<std::uint64_t>(),
                     bucket.at("elements").get<std::uint64_t>()};
  const bool fits = stored.offset <= stored.elements && count <= stored.elements - stored.offset;
  if (!fits || stored.elements % shards != 0) {
    throw bad(file, "the index is wrong: unit {}: bucket {} cannot have {} elements in {} shards",
              stored.unit, stored.bucket, stored.elements, shards);
  }
  return stored;
}

Moments moments_of(const Optimizer* optimizer, const Segment& segment) {
  if (!optimizer) return {};
  const UnitState& unit = state_of(*segment.unit);
  const std::size_t b = unit.locations[unit.find(segment.param->name)].bucket;
  const auto [first, second] = EngineAccess::moments(*optimizer, *segment.unit, b);
  if (first.count == 0) return {};
  const auto begin =
      static_cast<std::uint64_t>(segment.values.as<float>() - unit.buckets[b].master.as<float>());
  return {first.part(begin, segment.count), second.part(begin, segment.count)};
}

// Elements that are read at once. Pieces this small stay in the cache between the file and the
// device.
constexpr std::uint64_t most_read = std::uint64_t{1} << 18;

// Copies parts of a checkpoint to the memory of an engine.
class ShardReader {
 public:
  ShardReader(const fs::path& folder, const CheckpointIndex& index, Engine& engine)
      : file_(folder / "index.json"),
        index_(index),
        shards_(folder, index),
        writer_(engine.scheduler().stream(Lane::gather)) {}

  // Fills the parameters, moments and states of a segment.
  void read(const Segment& segment, Engine& engine, const Optimizer* optimizer) {
    const UnitState& unit = state_of(*segment.unit);
    const std::size_t param = unit.find(segment.param->name);
    const StoredParam stored = stored_param(index_.content.at("units").at(unit.index), param,
                                            segment.param->count(), index_.shards, file_);
    const BucketSlot part{stored.offset + segment.first, segment.count};
    // The checkpoint has no moments and states for parameters that were frozen: these begin at 0.
    const bool was_frozen = stored.bucket.starts_with("frozen ");
    const auto clear = [&](const View& into) {
      values_.assign(into.count, 0.0f);
      writer_.write(into, values_);
    };
    const auto fill = [&](std::string_view what, const View& into) {
      if (was_frozen) return clear(into);
      read(tensor_name(stored.unit, stored.bucket, what), stored.elements, part,
           [&](std::uint64_t at) { writer_.write(into.part(at, values_.size()), values_); });
    };
    read(tensor_name(stored.unit, stored.bucket, "weights"), stored.elements, part,
         [&](std::uint64_t at) { writer_.write(segment, at, values_); });
    const auto [first, second] = moments_of(optimizer, segment);
    if (first.count) fill("moment1", first);
    if (second.count) fill("moment2", second);
    if (segment.gradient.count == 0) return;
    for (const auto& [state, own] : EngineAccess::setup(engine).states) {
      const View into = engine.state(segment, state);
      if (own.wholes.empty()) {
        fill(state_tensor(state), into);
      } else if (was_frozen) {
        clear(into);
      } else if (into.count > 0) {
        read_whole(whole_tensor(stored.unit, segment.param->name, state), stored, into);
      }
    }
  }

 private:
  // Reads a part of a flat tensor of `elements` elements in pieces to values_, and calls write(at)
  // for each piece, which begins at element `at` of the part.
  template <class Write>
  void read(const std::string& tensor, std::uint64_t elements, BucketSlot part,
            const Write& write) {
    for (std::uint64_t at = 0; at < part.count; at += most_read) {
      values_.resize(std::min(most_read, part.count - at));
      shards_.read(tensor, elements, part.offset + at, values_);
      write(at);
    }
  }

  // The shard with the first element of the parameter has the whole state.
  void read_whole(const std::string& tensor, const StoredParam& stored, View into) {
    values_.resize(into.count);
    shards_.read_whole(tensor, stored.offset / (stored.elements / index_.shards), values_);
    writer_.write(into, values_);
  }

  fs::path file_;
  const CheckpointIndex& index_;
  StoredShards shards_;
  SegmentWriter writer_;
  std::vector<float> values_;
};

// Throws Error(mismatch) if ranks read different checkpoints. Folders may have different names, as
// with copies on the disk of each host.
void compare_checkpoints(const RankSet& ranks, const fs::path& folder,
                         const CheckpointIndex& index) {
  // A checkpoint of version 2 has no id of the save.
  const std::string id =
      index.has_digests() ? index.save : fmt::format("{:016x}", fnv1a(index.content.dump()));
  const auto texts =
      ranks.exchange(ranks.key("comparing the loaded checkpoints"), id + " " + folder.string(),
                     ranks.world().config().file_timeout);
  const auto split = [](const std::string& text) {
    const std::size_t space = text.find(' ');
    return std::pair(text.substr(0, space), terminal_safe(text.substr(space + 1)));
  };
  const auto [first_id, first_folder] = split(texts.front());
  for (std::size_t i = 1; i < texts.size(); ++i) {
    const auto [other_id, other_folder] = split(texts[i]);
    if (other_id == first_id) continue;
    throw make_error(
        ErrorCode::mismatch,
        "load: ranks read different checkpoints: {} (save {}) on rank {}, {} (save {}) "
        "on rank {}; all ranks must load the same save",
        first_folder, first_id, ranks.ranks().front(), other_folder, other_id, ranks.ranks()[i]);
  }
}

CheckpointIndex open_index(const fs::path& file, const RankSet& ranks) {
  CheckpointIndex index = read_index(file);
  if (!index.has_digests() && ranks.is_first()) {
    log::warn(
        "{}: an earlier version of atoll has saved this checkpoint without digests, so "
        "damage is not noticed; the next save adds them",
        terminal_safe(file.parent_path().string()));
  }
  return index;
}

// Opens the index on all ranks. Returns its folder, too.
std::pair<fs::path, CheckpointIndex> open_together(const fs::path& wanted, const RankSet& ranks) {
  std::pair<fs::path, CheckpointIndex> opened;
  together(ranks, [&] {
    opened.first = readable(without_link(wanted));
    opened.second = open_index(opened.first / "index.json", ranks);
  });
  compare_checkpoints(ranks, opened.first, opened.second);
  return opened;
}

std::map<std::string, std::string> load_all(const fs::path& wanted, Engine& engine,
                                            Optimizer* optimizer) {
  EngineAccess::setup(engine).check_sealed("load");
  const RankSet& ranks = EngineAccess::setup(engine).ranks;
  agree(ranks, "load", [&] {
    EngineAccess::pass(engine).check_idle();
    EngineAccess::setup(engine).end_live_save();
    check_optimizer("load", engine, optimizer);
    return std::vector<Declaration>{{"the optimizer", std::string(kind_of(optimizer))}};
  });
  const auto [folder, index] = open_together(wanted, ranks);
  const fs::path file = folder / "index.json";
  std::map<std::string, std::string> extra;
  const auto read = [&, &folder = folder, &index = index] {
    try {
      check_layout(index.content, describe(engine, optimizer, {}), file);
      const std::string warning = other_settings(index.content, named_settings(engine), file);
      if (!warning.empty() && ranks.is_first()) log::warn("{}", warning);
      ShardReader reader(folder, index, engine);
      EngineAccess::pass(engine).wait_idle(engine.scheduler().stream(Lane::gather));
      for (const Segment& segment : engine.segments()) {
        EngineAccess::setup(engine).begin_fill(segment);
        reader.read(segment, engine, optimizer);
      }
      EngineAccess::setup(engine).unfilled.clear();
      if (optimizer) EngineAccess::set_steps(*optimizer, static_cast<std::int64_t>(index.steps));
      extra = index.content.at("extra").get<std::map<std::string, std::string>>();
    } catch (const json::exception&) {
      throw bad(file, "a value is missing or has another type than save() writes");
    }
  };
  try {
    together(ranks, read);
  } catch (...) {
    EngineAccess::refresh(
        engine);  // some master parameters may be newer than the copies that compute reads
    throw;
  }
  engine.refresh();
  return extra;
}

}  // namespace

std::map<std::string, std::string> load(const fs::path& folder, Engine& engine,
                                        Optimizer& optimizer) {
  return load_all(folder, engine, &optimizer);
}

std::map<std::string, std::string> load(const fs::path& folder, Engine& engine) {
  return load_all(folder, engine, nullptr);
}

}  // namespace atoll_v1::atoll::fsdp
