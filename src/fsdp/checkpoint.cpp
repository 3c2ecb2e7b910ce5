#include "atoll/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "device/host/kernels.hpp"
#include "fsdp/pass_state.hpp"
#include "fsdp/safetensors.hpp"
#include "fsdp/together.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view format_name = "atoll-checkpoint";
constexpr int format_version = 2;
constexpr std::uintmax_t max_index_bytes = 256 << 20;
constexpr int max_index_depth = 8;
// Maximum number of steps in a checkpoint: a double represents every integer up to 2^53 exactly.
constexpr std::uint64_t max_steps = std::uint64_t{1} << 53;

template <class... Args>
Error bad(const fs::path& file, fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorCode::bad_data,
          file.string() + ": " + fmt::format(text, std::forward<Args>(args)...)};
}

fs::path shard_file(const fs::path& folder, std::uint64_t index, std::uint64_t shards) {
  return folder / fmt::format("shard-{:05}-of-{:05}.safetensors", index, shards);
}

// The flat tensors of one bucket, each with its name in the file, in the order of the file.
struct BucketTensors {
  const Unit* unit;
  std::size_t bucket;
  std::vector<std::pair<std::string, View>> tensors;
};

std::string tensor_name(std::string_view unit, std::string_view bucket, std::string_view what) {
  return fmt::format("{}/{}/{}", unit, bucket, what);
}

std::string state_tensor(std::string_view state) { return fmt::format("state.{}", state); }

// `optimizer` is null if the caller brings its own optimizer.
std::vector<BucketTensors> tensors_of(Engine& engine, const Optimizer* optimizer) {
  std::vector<BucketTensors> all;
  for (const auto& unit : engine.units()) {
    const auto& buckets = state_of(*unit).buckets;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const std::string label = buckets[b].label();
      BucketTensors one{unit.get(), b, {{"weights", buckets[b].master}}};
      const auto [first, second] =
          optimizer ? EngineAccess::moments(*optimizer, *unit, b) : Moments();
      if (first.count) {
        one.tensors.emplace_back("moment1", first);
        one.tensors.emplace_back("moment2", second);
      }
      if (buckets[b].trainable) {
        for (const auto& [state, own] : EngineAccess::setup(engine).states) {
          one.tensors.emplace_back(state_tensor(state), own.parts[state_of(*unit).index][b]);
        }
      }
      for (auto& [name, view] : one.tensors) name = tensor_name(unit->name(), label, name);
      all.push_back(std::move(one));
    }
  }
  return all;
}

void write_shard(const fs::path& file, Engine& engine, const std::vector<BucketTensors>& buckets) {
  std::vector<SafetensorsDeclaration> declared;
  for (const auto& bucket : buckets) {
    for (const auto& [name, view] : bucket.tensors)
      declared.push_back({name, view.dtype, {view.count}});
  }
  SafetensorsWriter writer(file, declared);
  Stream& stream = engine.scheduler().stream(Lane::gather);
  std::vector<std::byte> bytes;
  for (const auto& bucket : buckets) {
    for (const auto& [name, view] : bucket.tensors) {
      bytes.resize(view.bytes());
      stream.copy(bytes.data(), view.data, view.bytes());
      stream.synchronize();
      writer.write(bytes);
    }
  }
  writer.close();
}

// Returns the kind of the optimizer; "own" if the caller brings its own.
std::string_view kind_of(const Optimizer* optimizer) {
  if (!optimizer) return "own";
  return optimizer->options().kind == OptimizerOptions::Kind::adamw ? "adamw" : "sgd";
}

json describe(Engine& engine, const Optimizer* optimizer,
              const std::map<std::string, std::string>& extra) {
  json states = json::array();
  for (const auto& [state, own] : EngineAccess::setup(engine).states) states.push_back(state);
  json units = json::array();
  for (const auto& unit : engine.units()) {
    const UnitState& state = state_of(*unit);
    json params = json::array(), buckets = json::array();
    for (std::size_t p = 0; p < state.params.size(); ++p) {
      params.push_back({{"name", state.params[p].name},
                        {"shape", state.params[p].shape},
                        {"bucket", state.locations[p].bucket},
                        {"offset", state.locations[p].slot.offset}});
    }
    for (const UnitBucket& bucket : state.buckets) {
      buckets.push_back({{"name", bucket.label()}, {"elements", bucket.layout.elements}});
    }
    units.push_back(
        {{"name", state.name}, {"buckets", std::move(buckets)}, {"params", std::move(params)}});
  }
  return {{"format", format_name},
          {"version", format_version},
          {"shards", engine.scheduler().shard_count()},
          {"optimizer", kind_of(optimizer)},
          {"states", std::move(states)},
          {"steps", optimizer ? optimizer->steps() : 0},
          {"units", std::move(units)},
          {"extra", extra}};
}

void write_text(const fs::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw Error(ErrorCode::io, file.string() + ": cannot write");
  sync_to_disk(file);
}

// Renames `partial` to `folder` and deletes the old content of `folder`. On file systems that
// cannot exchange two names atomically, only `folder`.old exists for a moment; readable() finds it.
void publish(const fs::path& partial, const fs::path& folder) {
  sync_to_disk(partial);
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  const fs::path old = folder.string() + ".old";
  const bool exchanged =
      ::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0;
  if (!exchanged) {
    if (fs::exists(folder)) {
      fs::remove_all(old);
      fs::rename(folder, old);
    }
    fs::rename(partial, folder);
  }
  sync_to_disk(parent);
  fs::remove_all(partial);
  fs::remove_all(old);
}

// Returns `folder`. If an interrupted save has left only `folder`.old, returns that path.
fs::path readable(const fs::path& folder) {
  const fs::path old = folder.string() + ".old";
  if (fs::exists(folder) || !fs::exists(old / "index.json")) return folder;
  log::warn("{} does not exist: reading {}, which an interrupted save has left", folder.string(),
            old.string());
  return old;
}

json read_index(const fs::path& file) {
  std::error_code missing;
  const std::uintmax_t size = fs::file_size(file, missing);
  require(!missing, ErrorCode::io, "{}: not a checkpoint: {}", file.parent_path().string(),
          missing.message());
  if (size > max_index_bytes)
    throw bad(file, "the file is too large for the index of a checkpoint");
  std::ifstream in(file, std::ios::binary);
  const auto shallow = [&](int depth, json::parse_event_t, json&) {
    if (depth > max_index_depth)
      throw bad(file, "the JSON is nested too deeply for the index of a checkpoint");
    return true;
  };
  try {
    return json::parse(in, shallow);
  } catch (const json::parse_error& error) {
    throw bad(file, "byte {}: the text is not JSON", error.byte);
  }
}

std::uint64_t number_at(const json& object, const char* key, const fs::path& file) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) {
    throw bad(file, "\"{}\" is not a non-negative number", key);
  }
  return found->get<std::uint64_t>();
}

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
      throw make_error(ErrorCode::mismatch, "{}: the state {} {}; {}", file.string(), state.dump(),
                       text, weights_alone);
    }
  };
  check(theirs, ours, "is in the checkpoint, but Engine::add_state() has not added it");
  check(ours, theirs, "of Engine::add_state() is not in the checkpoint");
}

// Throws Error(mismatch) unless checkpoint and engine have the same names and shapes of units and
// parameters. The number of shards, dtypes and frozen parameters may differ.
void check_layout(const json& index, const json& expected, const fs::path& file) {
  const auto mismatch = [&](const std::string& what) {
    throw make_error(ErrorCode::mismatch, "{}: {}", file.string(), what);
  };
  if (index.at("format") != format_name || index.at("version") != format_version) {
    mismatch(fmt::format("not a checkpoint of version {}", format_version));
  }
  const json &theirs = index.at("units"), &ours = expected.at("units");
  const auto compare = [&](const std::string& what, const json& stored, const json& wanted) {
    if (stored == wanted) return;
    mismatch(fmt::format("{}: {} in the checkpoint, {} in the model", what, stored.dump(),
                         wanted.dump()));
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
    mismatch(fmt::format("the optimizer: {} in the checkpoint, {} in the job; {}",
                         index.at("optimizer").dump(), expected.at("optimizer").dump(),
                         weights_alone));
  check_states(index, expected, file);
}

// Where a checkpoint stores a parameter.
struct StoredParam {
  std::string unit;
  std::string bucket;
  std::uint64_t offset;
  std::uint64_t elements;  // elements of the whole bucket, including padding
};

StoredParam stored_param(const json& unit, std::size_t param, std::uint64_t count,
                         std::uint64_t shards, const fs::path& file) {
  const json& entry = unit.at("params").at(param);
  const json& bucket = unit.at("buckets").at(number_at(entry, "bucket", file));
  const StoredParam stored{unit.at("name").get<std::string>(), bucket.at("name").get<std::string>(),
                           number_at(entry, "offset", file), number_at(bucket, "elements", file)};
  const bool fits = stored.offset <= stored.elements && count <= stored.elements - stored.offset;
  if (!fits || stored.elements % shards != 0) {
    throw bad(file, "unit {}: bucket {} cannot have {} elements in {} shards", stored.unit,
              stored.bucket, stored.elements, shards);
  }
  return stored;
}

// Fills `values` with the elements of a flat tensor, beginning at element `first`. The tensor has
// `elements` elements including padding, and is split evenly over the shard files.
void read_tensor(const std::vector<SafetensorsFile>& shards, const std::string& name,
                 std::uint64_t elements, std::uint64_t first, std::span<float> values) {
  const std::uint64_t each = elements / shards.size();
  // Aligned copy of the data: the file format does not guarantee alignment.
  std::vector<std::byte> aligned;
  while (!values.empty()) {
    const SafetensorsFile& file = shards[first / each];
    const ConstView data = file.at(name).data;
    require(
        computes_in(data.dtype) && data.count == each, ErrorCode::mismatch,
        "{}: tensor {} is {} with {} elements, but the index requires {} elements of f32, bf16 or "
        "f16",
        file.path().string(), name, atoll::name(data.dtype), data.count, each);
    const std::uint64_t n = std::min<std::uint64_t>(values.size(), each - first % each);
    const ConstView part = data.part(first % each, n);
    aligned.resize(part.bytes());
    std::memcpy(aligned.data(), part.data, part.bytes());
    host::cast(values.first(n), ConstView(aligned.data(), n, part.dtype));
    first += n;
    values = values.subspan(n);
  }
}

std::vector<SafetensorsFile> open_shards(const fs::path& folder, const json& index) {
  const fs::path file = folder / "index.json";
  const std::uint64_t count = number_at(index, "shards", file);
  if (count == 0 || count > 1'000'000) throw bad(file, "a checkpoint cannot have {} shards", count);
  std::vector<SafetensorsFile> shards;
  for (std::uint64_t s = 0; s < count; ++s) {
    shards.push_back(SafetensorsFile::open(shard_file(folder, s, count)));
  }
  return shards;
}

Moments moments_of(const Optimizer* optimizer, const Segment& segment) {
  if (!optimizer) return {};
  const UnitState& unit = state_of(*segment.unit);
  const std::size_t b = unit.locations[unit.find(segment.param->name)].bucket;
  const auto [first, second] = EngineAccess::moments(*optimizer, *segment.unit, b);
  if (first.count == 0) return {};
  const auto begin =
      static_cast<std::uint64_t>(segment.values.as<float>() - unit.buckets[b].master.as<float>());
  return {first.part(begin, segment.values.count), second.part(begin, segment.values.count)};
}

void read_shards(const fs::path& folder, const json& index, Engine& engine,
                 const Optimizer* optimizer) {
  const fs::path file = folder / "index.json";
  const auto shards = open_shards(folder, index);
  Stream& stream = engine.scheduler().stream(Lane::gather);
  EngineAccess::pass(engine).wait_idle(stream);
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (const Segment& segment : engine.segments()) {
    const UnitState& unit = state_of(*segment.unit);
    const std::size_t param = unit.find(segment.param->name);
    const StoredParam stored = stored_param(index.at("units").at(unit.index), param,
                                            segment.param->count(), shards.size(), file);
    const auto read = [&](std::string_view what, const View& into) {
      values.assign(into.count, 0.0f);
      // The checkpoint has no moments and states for parameters that were frozen: these begin at 0.
      if (what == "weights" || !stored.bucket.starts_with("frozen ")) {
        read_tensor(shards, tensor_name(stored.unit, stored.bucket, what), stored.elements,
                    stored.offset + segment.first, values);
      }
      bytes.resize(into.bytes());
      host::cast({bytes.data(), into.count, into.dtype}, values);
      stream.copy(into.data, bytes.data(), bytes.size());
      stream.synchronize();
    };
    read("weights", segment.values);
    const auto [first, second] = moments_of(optimizer, segment);
    if (first.count) read("moment1", first);
    if (second.count) read("moment2", second);
    if (segment.gradient.count == 0) continue;
    for (const auto& [state, own] : EngineAccess::setup(engine).states) {
      read(state_tensor(state), engine.state(segment, state));
    }
  }
}

void save_all(const fs::path& wanted, Engine& engine, const Optimizer* optimizer,
              const std::map<std::string, std::string>& extra) {
  EngineAccess::setup(engine).check_frozen("save");
  const RankSet& ranks = EngineAccess::setup(engine).ranks;
  const fs::path folder =
      wanted.has_filename() ? wanted : wanted.parent_path();  // the path "out/" means "out"
  const fs::path partial = folder.string() + ".partial";
  together(ranks, [&] {
    if (!ranks.is_first()) return;
    fs::remove_all(partial);
    fs::create_directories(partial);
  });
  together(ranks, [&] {
    EngineAccess::gathering(engine).wait_updated(engine.scheduler().stream(Lane::gather));
    const Scheduler& scheduler = engine.scheduler();
    if (scheduler.replicate_index() != 0) return;
    write_shard(shard_file(partial, static_cast<std::uint64_t>(scheduler.shard_index()),
                           static_cast<std::uint64_t>(scheduler.shard_count())),
                engine, tensors_of(engine, optimizer));
  });
  together(ranks, [&] {
    if (!ranks.is_first()) return;
    write_text(partial / "index.json", describe(engine, optimizer, extra).dump(1));
    publish(partial, folder);
  });
}

std::map<std::string, std::string> load_all(const fs::path& wanted, Engine& engine,
                                            Optimizer* optimizer) {
  EngineAccess::setup(engine).check_frozen("load");
  std::map<std::string, std::string> extra;
  const auto read = [&] {
    const fs::path folder = readable(wanted.has_filename() ? wanted : wanted.parent_path());
    const fs::path file = folder / "index.json";
    const json index = read_index(file);
    try {
      check_layout(index, describe(engine, optimizer, {}), file);
      read_shards(folder, index, engine, optimizer);
      const std::uint64_t steps = number_at(index, "steps", file);
      if (steps > max_steps) throw bad(file, "a checkpoint cannot have {} steps", steps);
      if (optimizer) optimizer->set_steps(static_cast<std::int64_t>(steps));
      extra = index.at("extra").get<std::map<std::string, std::string>>();
    } catch (const json::exception& error) {
      throw bad(file, "{}", error.what());
    }
  };
  EngineAccess::pass(engine).check_idle();
  try {
    together(EngineAccess::setup(engine).ranks, read);
  } catch (...) {
    engine.refresh();  // some master parameters may be newer than the copies that compute reads
    throw;
  }
  engine.refresh();
  return extra;
}

}  // namespace

void save(const fs::path& folder, Engine& engine, const Optimizer& optimizer,
          const std::map<std::string, std::string>& extra) {
  save_all(folder, engine, &optimizer, extra);
}

void save(const fs::path& folder, Engine& engine, const std::map<std::string, std::string>& extra) {
  save_all(folder, engine, nullptr, extra);
}

std::map<std::string, std::string> load(const fs::path& folder, Engine& engine,
                                        Optimizer& optimizer) {
  return load_all(folder, engine, &optimizer);
}

std::map<std::string, std::string> load(const fs::path& folder, Engine& engine) {
  return load_all(folder, engine, nullptr);
}

}  // namespace atoll_v1::atoll::fsdp
