#include "atoll/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/log.hpp"
#include "fsdp/engine_impl.hpp"
#include "fsdp/safetensors.hpp"
#include "fsdp/safetensors_writer.hpp"
#include "fsdp/together.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view format_name = "atoll-checkpoint";
constexpr int format_version = 1;
constexpr std::uintmax_t max_index_bytes = 256 << 20;
constexpr int max_index_depth = 8;
constexpr std::uint64_t max_steps = std::uint64_t{1} << 53;  // what a double counts exactly

fs::path shard_file(const fs::path& folder, std::uint64_t index, std::uint64_t shards) {
  return folder / fmt::format("shard-{:05}-of-{:05}.safetensors", index, shards);
}

// The flat tensors of one unit, in the order of the file.
struct UnitTensors {
  const Unit* unit;
  std::vector<std::pair<std::string, View>> tensors;
};

std::vector<UnitTensors> tensors_of(Engine& engine, const Optimizer& optimizer) {
  std::vector<UnitTensors> all;
  for (const auto& unit : engine.units()) {
    const auto [first, second] = optimizer.moments(*unit);
    UnitTensors one{unit.get(), {{unit->name() + "/weights", unit->state().master}}};
    if (first.count) {
      one.tensors.emplace_back(unit->name() + "/moment1", first);
      one.tensors.emplace_back(unit->name() + "/moment2", second);
    }
    all.push_back(std::move(one));
  }
  return all;
}

void write_shard(const fs::path& file, Engine& engine, const std::vector<UnitTensors>& units) {
  std::vector<SafetensorsDeclaration> declared;
  for (const auto& unit : units) {
    for (const auto& [name, view] : unit.tensors)
      declared.push_back({name, DType::f32, {view.count}});
  }
  SafetensorsWriter writer(file, declared);
  Stream& stream = engine.scheduler().stream(Lane::gather);
  std::vector<std::byte> bytes;
  for (const auto& unit : units) {
    for (const auto& [name, view] : unit.tensors) {
      bytes.resize(view.bytes());
      stream.copy(bytes.data(), view.data, view.bytes());
      stream.synchronize();
      writer.write(bytes);
    }
  }
  writer.close();
}

json describe(Engine& engine, const Optimizer& optimizer,
              const std::map<std::string, std::string>& extra) {
  json units = json::array();
  for (const auto& unit : engine.units()) {
    json params = json::array();
    for (std::size_t p = 0; p < unit->params().size(); ++p) {
      params.push_back({{"name", unit->params()[p].name},
                        {"shape", unit->params()[p].shape},
                        {"offset", unit->state().layout.slots[p].offset}});
    }
    units.push_back({{"name", unit->name()},
                     {"elements", unit->state().layout.elements},
                     {"params", std::move(params)}});
  }
  const bool adamw = optimizer.options().kind == OptimizerOptions::Kind::adamw;
  return {{"format", format_name},
          {"version", format_version},
          {"shards", engine.scheduler().shard_count()},
          {"optimizer", adamw ? "adamw" : "sgd"},
          {"steps", optimizer.steps()},
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

// Puts `partial` in the place of `folder`; what was there is gone once the new one is complete. On
// file systems that cannot exchange two names in one step, `folder`.old is all there is for a
// moment: there load() finds it.
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

// The folder to read: `folder`, or what an interrupted save has left of it.
fs::path readable(const fs::path& folder) {
  const fs::path old = folder.string() + ".old";
  if (fs::exists(folder) || !fs::exists(old / "index.json")) return folder;
  log::warn("{} is not there: reading {}, which an interrupted save has left", folder.string(),
            old.string());
  return old;
}

json read_index(const fs::path& file) {
  std::error_code missing;
  const std::uintmax_t size = fs::file_size(file, missing);
  if (missing) {
    throw Error(ErrorCode::io, fmt::format("{}: not a checkpoint: {}", file.parent_path().string(),
                                           missing.message()));
  }
  if (size > max_index_bytes) throw Error(ErrorCode::bad_data, file.string() + ": too large");
  std::ifstream in(file, std::ios::binary);
  const auto shallow = [&](int depth, json::parse_event_t, json&) {
    if (depth > max_index_depth) {
      throw Error(ErrorCode::bad_data, file.string() + ": nested too deep for a checkpoint");
    }
    return true;
  };
  try {
    return json::parse(in, shallow);
  } catch (const json::parse_error& error) {
    throw Error(ErrorCode::bad_data,
                fmt::format("{}: byte {}: not JSON", file.string(), error.byte));
  }
}

std::uint64_t number_at(const json& object, const char* key, const fs::path& file) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) {
    throw Error(ErrorCode::bad_data,
                fmt::format("{}: \"{}\" is not a number that is not negative", file.string(), key));
  }
  return found->get<std::uint64_t>();
}

// Compares the layout of a checkpoint with the engine's; the number of shards may differ.
void check_layout(const json& index, const json& expected, const fs::path& file) {
  const auto mismatch = [&](const std::string& what) {
    throw Error(ErrorCode::mismatch, fmt::format("{}: {}", file.string(), what));
  };
  if (index.at("format") != format_name || index.at("version") != format_version) {
    mismatch("not a checkpoint of this version");
  }
  const json &theirs = index.at("units"), &ours = expected.at("units");
  if (theirs.size() != ours.size()) {
    mismatch(fmt::format("{} units, the model has {}", theirs.size(), ours.size()));
  }
  for (std::size_t u = 0; u < ours.size(); ++u) {
    if (theirs[u].at("name") != ours[u].at("name") ||
        theirs[u].at("params") != ours[u].at("params")) {
      mismatch(fmt::format("unit {} differs from the model's {}", theirs[u].at("name").dump(),
                           ours[u].at("name").dump()));
    }
  }
  if (expected.at("optimizer") == "adamw" && index.at("optimizer") != "adamw") {
    mismatch("it has no moments for adamw");
  }
}

// One flat tensor of one unit: the part [begin, begin + values.size()) of what all shards hold,
// `elements` in all.
void read_range(const std::vector<SafetensorsFile>& shards, const std::string& name,
                std::uint64_t elements, std::uint64_t begin, std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0f);  // what lies beyond is padding
  std::uint64_t shard_begin = 0;
  for (const SafetensorsFile& shard : shards) {
    const ConstView data = shard.at(name).data;
    if (data.dtype != DType::f32 || data.count != elements / shards.size()) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("{}: tensor {} is {} with {} elements, the index says {} of f32",
                              shard.path().string(), name, atoll::name(data.dtype), data.count,
                              elements / shards.size()));
    }
    const std::uint64_t first = std::max(begin, shard_begin);
    const std::uint64_t last = std::min(begin + values.size(), shard_begin + data.count);
    if (first < last) {
      std::memcpy(values.data() + (first - begin), data.part(first - shard_begin, 0).data,
                  (last - first) * sizeof(float));
    }
    shard_begin += data.count;
  }
}

void read_shards(const fs::path& folder, const json& index, Engine& engine,
                 const Optimizer& optimizer) {
  const fs::path file = folder / "index.json";
  const std::uint64_t count = number_at(index, "shards", file);
  if (count == 0 || count > 1'000'000) {
    throw Error(ErrorCode::bad_data, fmt::format("{}: {} shards", file.string(), count));
  }
  std::vector<SafetensorsFile> shards;
  for (std::uint64_t s = 0; s < count; ++s) {
    shards.push_back(SafetensorsFile::open(shard_file(folder, s, count)));
  }
  Stream& stream = engine.scheduler().stream(Lane::gather);
  engine.impl().wait_idle_parameters(stream);
  std::vector<float> values;
  for (const auto& unit : tensors_of(engine, optimizer)) {
    const std::uint64_t n = unit.unit->state().layout.shard_elements();
    const std::uint64_t begin = n * static_cast<std::uint64_t>(engine.scheduler().shard_index());
    const std::uint64_t elements =
        number_at(index.at("units").at(unit.unit->state().index), "elements", file);
    const auto& slots = unit.unit->state().layout.slots;
    const bool short_of = !slots.empty() && elements < slots.back().offset + slots.back().count;
    if (short_of || elements % count != 0) {
      throw Error(ErrorCode::bad_data,
                  fmt::format("{}: unit {} with {} elements in {} shards", file.string(),
                              unit.unit->name(), elements, count));
    }
    values.resize(n);
    for (const auto& [name, view] : unit.tensors) {
      read_range(shards, name, elements, begin, values);
      stream.copy(view.data, values.data(), view.bytes());
      stream.synchronize();
    }
  }
}

}  // namespace

void save(const fs::path& wanted, Engine& engine, const Optimizer& optimizer,
          const std::map<std::string, std::string>& extra) {
  World& world = engine.impl().world;
  const fs::path folder = wanted.has_filename() ? wanted : wanted.parent_path();  // "out/" is "out"
  const fs::path partial = folder.string() + ".partial";
  together(world, [&] {
    if (world.rank() != 0) return;
    fs::remove_all(partial);
    fs::create_directories(partial);
  });
  together(world, [&] {
    engine.scheduler().stream(Lane::gather).wait(engine.impl().parameters_ready);
    const Scheduler& scheduler = engine.scheduler();
    if (scheduler.replicate_index() != 0) return;
    write_shard(shard_file(partial, static_cast<std::uint64_t>(scheduler.shard_index()),
                           static_cast<std::uint64_t>(scheduler.shard_count())),
                engine, tensors_of(engine, optimizer));
  });
  together(world, [&] {
    if (world.rank() != 0) return;
    write_text(partial / "index.json", describe(engine, optimizer, extra).dump(1));
    publish(partial, folder);
  });
}

std::map<std::string, std::string> load(const fs::path& wanted, Engine& engine,
                                        Optimizer& optimizer) {
  std::map<std::string, std::string> extra;
  together(engine.impl().world, [&] {
    const fs::path folder = readable(wanted.has_filename() ? wanted : wanted.parent_path());
    const fs::path file = folder / "index.json";
    const json index = read_index(file);
    try {
      check_layout(index, describe(engine, optimizer, {}), file);
      read_shards(folder, index, engine, optimizer);
      const std::uint64_t steps = number_at(index, "steps", file);
      if (steps > max_steps) {
        throw Error(ErrorCode::bad_data, fmt::format("{}: {} steps", file.string(), steps));
      }
      optimizer.set_steps(static_cast<std::int64_t>(steps));
      extra = index.at("extra").get<std::map<std::string, std::string>>();
    } catch (const json::exception& error) {
      throw Error(ErrorCode::bad_data, fmt::format("{}: {}", file.string(), error.what()));
    }
  });
  engine.refresh();
  return extra;
}

}  // namespace atoll_v1::atoll::fsdp
