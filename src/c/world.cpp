// The functions of atoll.h for settings and the World.
#include "atoll/world.hpp"

#include "c/handles.hpp"
#include "core/errors.hpp"

using namespace atoll::c;  // the functions of guard.hpp

namespace atoll_v1::atoll::c {
namespace {

Config config_or_environment(const atoll_config* config) {
  return config != nullptr ? config->config : Config::from_env();
}

World::Broadcast through(atoll_broadcast_fn broadcast, void* context) {
  return [broadcast, context](const std::string& mine) {
    std::string data = mine;
    data.resize(ATOLL_BROADCAST_BYTES);  // the rest is zeros
    const int result = at(broadcast, "broadcast")(context, data.data(), data.size());
    require(result == 0, ErrorCode::io, "the broadcast of the program returned {}", result);
    return std::string(data.c_str());
  };
}

World::Regroup wish_of(const atoll_regroup* given) {
  const atoll_regroup wish = options(given, "wish");
  World::Regroup result;
  result.tag = text_or_empty(wish.tag);
  if (wish.needed != 0) result.needed = wish.needed;
  if (wish.min_ranks != 0) result.min_ranks = wish.min_ranks;
  if (wish.grace_ms != 0) result.grace = std::chrono::milliseconds(wish.grace_ms);
  return result;
}

// Keeps the subscription until the World is closed.
void keep(atoll_world& world, World::Subscription subscription) {
  const std::lock_guard lock(world.mutex);
  world.subscriptions.push_back(std::move(subscription));
}

}  // namespace
}  // namespace atoll_v1::atoll::c

atoll_status atoll_config_open(atoll_config** config) {
  return create(config, "config", [&] { return atoll::Config::from_env(); });
}
atoll_status atoll_config_set(atoll_config* config, const char* name, const char* value) {
  return guard([&] { at(config, "config").config.set(text(name, "name"), text(value, "value")); });
}
void atoll_config_close(atoll_config* config) { release(config); }

atoll_status atoll_world_open(const atoll_config* config, atoll_world** world) {
  return create(world, "world",
                [&] { return atoll::World::from_env(config_or_environment(config)); });
}
atoll_status atoll_world_open_ranks(int32_t rank, int32_t size, atoll_broadcast_fn broadcast,
                                    void* context, const atoll_config* config,
                                    atoll_world** world) {
  return create(world, "world", [&] {
    return atoll::World::from_ranks(rank, size, through(broadcast, context),
                                    config_or_environment(config));
  });
}
atoll_status atoll_world_open_simulated(int32_t rank, int32_t hosts, int32_t ranks_per_host,
                                        const atoll_config* config, atoll_world** world) {
  return create(world, "world", [&] {
    return atoll::World::simulated({.rank = rank, .hosts = hosts, .ranks_per_host = ranks_per_host},
                                   config != nullptr ? config->config : atoll::Config{});
  });
}
void atoll_world_close(atoll_world* world) { release(world); }

atoll_status atoll_world_rank(const atoll_world* world, int32_t* rank) {
  return guard([&] { at(rank, "rank") = at(world, "world").world.rank(); });
}
atoll_status atoll_world_size(const atoll_world* world, int32_t* size) {
  return guard([&] { at(size, "size") = at(world, "world").world.size(); });
}
atoll_status atoll_world_local_rank(const atoll_world* world, int32_t* rank) {
  return guard([&] { at(rank, "rank") = at(world, "world").world.local_rank(); });
}
atoll_status atoll_world_local_size(const atoll_world* world, int32_t* size) {
  return guard([&] { at(size, "size") = at(world, "world").world.local_size(); });
}
atoll_status atoll_world_hosts(const atoll_world* world, int32_t* hosts) {
  return guard(
      [&] { at(hosts, "hosts") = static_cast<int32_t>(at(world, "world").world.hosts().size()); });
}
atoll_status atoll_world_host_of(const atoll_world* world, int32_t rank, int32_t* host) {
  return guard([&] {
    const auto& placements = at(world, "world").world.placements();
    if (rank < 0 || rank >= static_cast<int32_t>(placements.size()))
      throw BadArgument{"rank", "is no rank of the World: " + std::to_string(rank)};
    at(host, "host") = placements[static_cast<std::size_t>(rank)].host;
  });
}

atoll_status atoll_world_put(atoll_world* world, const char* key, const void* value, size_t bytes) {
  return guard([&] {
    if (bytes > 0 && value == nullptr) throw BadArgument{"value"};
    at(world, "world").world.put(text(key, "key"), {static_cast<const char*>(value), bytes});
  });
}
atoll_status atoll_world_get(atoll_world* world, const char* key, int64_t timeout_ms, void* value,
                             size_t* bytes) {
  return guard([&] {
    const std::size_t capacity = at(bytes, "bytes");
    if (capacity > 0 && value == nullptr) throw BadArgument{"value"};
    const std::string found =
        at(world, "world").world.get(text(key, "key"), std::chrono::milliseconds(timeout_ms));
    *bytes = found.size();
    if (found.size() > capacity)
      throw BadArgument{"bytes", "is smaller than the value of " + std::to_string(found.size())};
    std::copy(found.begin(), found.end(), static_cast<char*>(value));
  });
}
atoll_status atoll_world_barrier(atoll_world* world) {
  return guard([&] { at(world, "world").world.barrier(); });
}

void atoll_world_fail(atoll_world* world, const char* reason) {
  if (world != nullptr && reason != nullptr) world->world.fail(reason);
}
atoll_status atoll_world_leave(atoll_world* world) {
  return guard([&] { at(world, "world").world.leave(); });
}
atoll_status atoll_world_regroup(atoll_world* old, const atoll_regroup* wish, atoll_world** world) {
  return create(world, "world",
                [&] { return atoll::World::regroup(at(old, "old").world, wish_of(wish)); });
}
atoll_status atoll_world_enter(const atoll_regroup* wish, const atoll_config* config,
                               atoll_world** world) {
  return create(world, "world",
                [&] { return atoll::World::enter(wish_of(wish), config_or_environment(config)); });
}
atoll_status atoll_world_epoch(const atoll_world* world, int32_t* epoch) {
  return guard([&] { at(epoch, "epoch") = at(world, "world").world.epoch(); });
}
atoll_status atoll_world_check(const atoll_world* world) {
  return guard([&] { at(world, "world").world.check(); });
}
atoll_status atoll_world_departed(const atoll_world* world, int32_t* ranks, size_t* n) {
  return guard([&] {
    const std::size_t capacity = at(n, "n");
    if (capacity > 0 && ranks == nullptr) throw BadArgument{"ranks"};
    const auto departed = at(world, "world").world.departed();
    std::copy_n(departed.begin(), std::min(capacity, departed.size()), ranks);
    *n = departed.size();
  });
}
atoll_status atoll_world_on_failure(atoll_world* world, atoll_done_fn callback, void* context) {
  return guard([&] {
    auto& handle = at(world, "world");
    keep(handle, handle.world.on_failure(outcome(callback, context)));
  });
}
atoll_status atoll_world_on_departure(atoll_world* world, atoll_departure_fn callback,
                                      void* context) {
  return guard([&] {
    auto& handle = at(world, "world");
    at(callback, "callback");
    keep(handle, handle.world.on_departure([callback, context](int rank, const atoll::Error& why) {
      callback(context, rank, static_cast<atoll_status>(why.code()), why.what());
    }));
  });
}
