// Saving of checkpoints, at once or beside training.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "atoll/rank_set.hpp"
#include "checkpoint/content.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/live_save.hpp"
#include "checkpoint/shards.hpp"
#include "checkpoint/together.hpp"
#include "core/errors.hpp"
#include "core/terminal_safe.hpp"
#include "fsdp/gathering.hpp"
#include "fsdp/pass_state.hpp"
#include "fsdp/setup.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using Extra = std::map<std::string, std::string>;

// Throws for text that is not UTF-8, because the index is JSON, which cannot hold it.
void check_extra(std::string_view call, const Extra& extra) {
  constexpr std::string_view remedy = "store other bytes as text, such as base64";
  for (const auto& [key, value] : extra) {
    const std::string shown = json(key).dump(-1, ' ', true, json::error_handler_t::replace);
    const auto bad_key = invalid_utf8(key), bad_value = invalid_utf8(value);
    require(!bad_key, "{}: the key {} of `extra` is not valid UTF-8 at byte {}: {}", call, shown,
            bad_key.value_or(0), remedy);
    require(!bad_value, "{}: extra[{}] is not valid UTF-8 at byte {}: {}", call, shown,
            bad_value.value_or(0), remedy);
  }
}

std::vector<Declaration> declarations_of_save(const fs::path& folder, const Optimizer* optimizer,
                                              const std::map<std::string, std::string>& extra) {
  std::vector<Declaration> all{{"the folder", fmt::format("\"{}\"", folder.string())},
                               {"the optimizer", std::string(kind_of(optimizer))},
                               {"the number of entries of `extra`", std::to_string(extra.size())}};
  json keys = json::array();
  for (const auto& [key, value] : extra) keys.push_back(key);
  all.push_back({"the keys of `extra`", keys.dump(-1, ' ', false, json::error_handler_t::replace)});
  for (const auto& [key, value] : extra)
    all.push_back({fmt::format("extra[\"{}\"]", key), fmt::format("\"{}\"", value)});
  return all;
}

// Returns 128 random bits as text, equal on all ranks.
std::string new_save_id(const RankSet& ranks) {
  std::string id;
  if (ranks.is_first()) {
    std::random_device random;
    for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", random() & 0xffffffffu);
  }
  const auto limit = ranks.world().config().file_timeout;
  return ranks.exchange(ranks.key("beginning a save"), id, limit).front();
}

// The folder and the identity of a save, equal on all ranks except for the number of the shard.
struct Begun {
  fs::path folder;
  ShardIdentity identity;
  std::optional<SaveFolder> saved;  // set only on the engine's lowest rank
};

void begin_save(Begun& begun, std::string_view call, const fs::path& wanted, Engine& engine,
                const Optimizer* optimizer, const Extra& extra) {
  EngineSetup& setup = EngineAccess::setup(engine);
  setup.check_sealed(call);
  agree(setup.ranks, call, [&] {
    begun.folder = without_link(wanted);
    EngineAccess::pass(engine).check_readable(call);
    setup.check_no_live_save(call);
    check_optimizer(call, engine, optimizer);
    check_extra(call, extra);
    return declarations_of_save(begun.folder, optimizer, extra);
  });
  const Scheduler& scheduler = engine.scheduler();
  begun.identity = {new_save_id(setup.ranks),
                    optimizer ? static_cast<std::uint64_t>(optimizer->steps()) : 0,
                    static_cast<std::uint64_t>(scheduler.shard_index()),
                    static_cast<std::uint64_t>(scheduler.shard_count())};
  together(setup.ranks, [&] {
    if (setup.ranks.is_first()) begun.saved.emplace(begun.folder, setup.saved_folder);
  });
}

// Examines the files that all ranks have written, and writes the index.
void complete(const fs::path& partial, const json& content, const ShardIdentity& identity) {
  std::vector<ShardFile> files;
  for (std::uint64_t shard = 0; shard < identity.shards; ++shard)
    files.push_back(examine_shard(partial, {identity.save, identity.step, shard, identity.shards}));
  write_file(partial / "index.json", index_text(content, identity.save, files));
}

}  // namespace

struct PendingSave::Impl {
  explicit Impl(Engine& of) : engine(of), link(EngineAccess::link(of)) {}

  Engine& engine;
  EngineLink link;  // null when the engine has been destroyed
  Begun begun{};
  json content{};                    // content of the index; set only on the lowest rank
  std::shared_ptr<LiveSave> live{};  // set only on ranks that write a file
};

struct PendingSaveAccess {
  using Impl = PendingSave::Impl;
  static PendingSave make(std::unique_ptr<Impl> impl) { return PendingSave(std::move(impl)); }
  static Impl& of(const std::unique_ptr<Impl>& impl) {
    require(impl != nullptr, "this PendingSave is over: finish() was called, or it was moved from");
    return *impl;
  }
};

PendingSave::PendingSave(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PendingSave::PendingSave(PendingSave&&) noexcept = default;
// The destructor of `taken` gives up the save that this object had.
PendingSave& PendingSave::operator=(PendingSave&& other) noexcept {
  PendingSave taken(std::move(other));
  std::swap(impl_, taken.impl_);
  return *this;
}

PendingSave::~PendingSave() {
  if (!impl_ || *impl_->link == nullptr) return;
  impl_->live.reset();
  EngineAccess::setup(impl_->engine).end_saving();
}

bool PendingSave::written() const {
  const auto& live = PendingSaveAccess::of(impl_).live;
  return !live || live->is_over();
}

double PendingSave::stalled_seconds() const {
  const auto& live = PendingSaveAccess::of(impl_).live;
  return live ? live->stalled_seconds() : 0;
}

void PendingSave::finish() {
  PendingSaveAccess::of(impl_);
  const std::unique_ptr<Impl> impl = std::move(impl_);
  require(*impl->link != nullptr,
          "the engine of this PendingSave has been destroyed: call finish() before");
  EngineSetup& setup = EngineAccess::setup(impl->engine);
  try {
    together(setup.ranks, [&] {
      if (impl->live) impl->live->wait();
    });
    together(setup.ranks, [&] {
      if (!impl->begun.saved) return;
      complete(partial_of(impl->begun.folder), impl->content, impl->begun.identity);
      setup.saved_folder = impl->begun.saved->publish();
    });
  } catch (...) {
    setup.end_saving();
    throw;
  }
  setup.end_saving();
}

namespace {

// Begins to write the files of a checkpoint beside what the engine does until finish().
PendingSave begin_writing(std::string_view call, const fs::path& folder, Engine& engine,
                          const Optimizer* optimizer, const Extra& extra,
                          std::uint64_t most_copied_bytes) {
  EngineSetup& setup = EngineAccess::setup(engine);
  auto impl = std::make_unique<PendingSaveAccess::Impl>(engine);
  begin_save(impl->begun, call, folder, engine, optimizer, extra);
  together(setup.ranks, [&] {
    if (impl->begun.saved) impl->content = describe(engine, optimizer, extra);
    if (engine.scheduler().replicate_index() != 0) return;
    Stream stream = engine.device().stream({.name = "save"});
    // Waits until parameters, moments and states have the values to save.
    EngineAccess::gathering(engine).wait_updated(stream);
    EngineAccess::gathering(engine).wait_written(stream);
    impl->live = std::make_shared<LiveSave>(
        partial_of(impl->begun.folder), tensors_of(engine, optimizer), impl->begun.identity,
        engine.device(), std::move(stream),
        LiveSave::Limits{.most_copied = most_copied_bytes,
                         .decides_early = engine.device().kind() != DeviceKind::cpu});
  });
  setup.live_save = impl->live;
  setup.is_saving = true;
  return PendingSaveAccess::make(std::move(impl));
}

}  // namespace

PendingSave save_beside(const fs::path& folder, Engine& engine, const Optimizer& optimizer,
                        const Extra& extra, std::uint64_t most_copied_bytes) {
  return begin_writing("save_beside", folder, engine, &optimizer, extra, most_copied_bytes);
}

void save(const fs::path& folder, Engine& engine, const Optimizer& optimizer, const Extra& extra) {
  begin_writing("save", folder, engine, &optimizer, extra, 0).finish();
}

void save(const fs::path& folder, Engine& engine, const Extra& extra) {
  begin_writing("save", folder, engine, nullptr, extra, 0).finish();
}

}  // namespace atoll_v1::atoll::fsdp
