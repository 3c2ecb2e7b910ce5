#include "atoll/communicator.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "comm/communicator_impl.hpp"
#include "comm/host_services.hpp"
#include "core/assert.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::int32_t memory_of(DeviceKind kind) { return static_cast<std::int32_t>(kind); }

// The group as plugins see it; owns what the C structs point to.
struct GroupDescription {
  std::string id, name;
  std::string token;
  std::vector<atoll_placement> placements;
  std::vector<const atoll_placement*> pointers;
  atoll_group group{};

  GroupDescription(const World& world, const Axis& axis, std::string id_, std::string name_,
                   DeviceKind kind)
      : id(std::move(id_)), name(std::move(name_)), token(world.config().token) {
    for (const int rank : axis.ranks) {
      const Placement& place = world.placements()[static_cast<std::size_t>(rank)];
      placements.push_back(
          {sizeof(atoll_placement), rank, place.host, -1, -1, -1, place.address.c_str()});
    }
    for (const auto& placement : placements) pointers.push_back(&placement);
    group.size = sizeof(atoll_group);
    group.rank = axis.index;
    group.nranks = axis.size();
    group.world_rank = world.rank();
    group.world_size = world.size();
    group.memory = memory_of(kind);
    group.id = id.c_str();
    group.name = name.c_str();
    group.placements = pointers.data();
    group.topology_json = "";
    group.token = token.c_str();
    group.timeout_ns = std::chrono::nanoseconds(world.config().rendezvous_timeout).count();
  }
  GroupDescription(const GroupDescription&) = delete;
  GroupDescription& operator=(const GroupDescription&) = delete;
};

Axis world_axis(World& world) {
  Axis axis{&world, "world", {}, world.rank()};
  for (int rank = 0; rank < world.size(); ++rank) axis.ranks.push_back(rank);
  return axis;
}

// Name -> preference of every backend that works here; the others go to `unusable` with a reason.
std::map<std::string, int> probe_all(World& world, DeviceKind kind,
                                     std::vector<BackendInfo>& found) {
  const atoll_host services = host_services(world);
  const GroupDescription group(world, world_axis(world), "world", "world", kind);
  std::map<std::string, int> usable;
  for (const auto& file : find_plugins(world.config())) {
    BackendInfo info{file.filename().string(), file.string(), {}, 0};
    try {
      const Plugin& plugin = load_plugin(file);
      info.name = plugin.name;
      info.preference = plugin.table.probe(&services, &group.group);
      if (info.preference <= 0) info.unusable = last_error(plugin, nullptr);
      const bool moves =
          plugin.table.capability(ATOLL_ALL_TO_ALL, ATOLL_F32, ATOLL_SUM, memory_of(kind)) != 0;
      if (info.preference > 0 && !moves) info.unusable = "does not take this kind of memory";
    } catch (const Error& error) {
      info.unusable = error.what();
    }
    if (info.unusable.empty()) usable[info.name] = info.preference;
    found.push_back(std::move(info));
  }
  return usable;
}

std::string encode(const std::map<std::string, int>& usable) {
  std::string text;
  for (const auto& [name, preference] : usable) text += fmt::format("{} {}\n", name, preference);
  return text;
}

std::map<std::string, int> decode(std::string_view text) {
  std::map<std::string, int> usable;
  while (!text.empty()) {
    const std::size_t line = std::min(text.find('\n'), text.size());
    const std::size_t space = text.substr(0, line).rfind(' ');
    if (space != std::string_view::npos) {
      usable[std::string(text.substr(0, space))] =
          std::atoi(std::string(text.substr(space + 1, line - space - 1)).c_str());
    }
    text.remove_prefix(std::min(line + 1, text.size()));
  }
  return usable;
}

std::string reasons(const std::vector<BackendInfo>& found) {
  if (found.empty()) return "no backend was found (set ATOLL_PLUGIN_PATH to the folder of them)";
  std::string text;
  for (const auto& info : found) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{}: {}", info.name, info.unusable.empty() ? "usable here" : info.unusable);
  }
  return text;
}

}  // namespace

void Work::State::fail(const Error& reason) {
  const std::lock_guard lock(mutex);
  if (!error) error = reason;
  failed = true;
}

void Work::State::check() {
  if (!failed) return;
  const std::lock_guard lock(mutex);
  throw *error;
}

void Work::wait(Stream& stream) const {
  if (!state_) return;
  state_->check();
  stream.wait(state_->event, WaitReason::communication);
}

void Work::synchronize() const {
  if (!state_) return;
  try {
    state_->event.synchronize();
  } catch (...) {
    state_->check();  // the operation's own error, if it has one, says more than its stream's
    throw;
  }
  state_->check();
}

bool Work::done() const { return !state_ || state_->event.happened(); }

Work Work::local_copy(ConstView src, View dst, Stream& stream) {
  if (src.data != dst.data) stream.copy(dst.data, src.data, dst.bytes());
  auto state = std::make_shared<State>();
  state->event = stream.record();
  return Work(std::move(state));
}

Communicator::Impl::Impl(const Axis& axis_, CommunicatorOptions options)
    : world(*axis_.world),
      axis(axis_),
      name(options.name.empty() ? axis_.name : options.name),
      wanted_backend(options.backend.empty() ? world.config().backend : options.backend),
      device(std::move(options.device)),
      services(host_services(world)) {}

Communicator::Impl::~Impl() {
  subscription = {};
  if (comm) plugin->table.close(comm);
}

const Plugin& Communicator::Impl::choose_backend(const std::string& id) {
  std::vector<BackendInfo> found;
  const auto mine = probe_all(world, device.kind(), found);
  const auto key = [&](int rank) { return fmt::format("{}/probe/{}", id, rank); };
  auto common = mine;
  if (axis.size() > 1) {
    world.put(key(world.rank()), encode(mine));
    for (const int rank : axis.ranks) {
      if (rank == world.rank()) continue;
      const auto theirs = decode(world.get(key(rank), world.config().rendezvous_timeout));
      for (auto entry = common.begin(); entry != common.end();) {
        const auto other = theirs.find(entry->first);
        if (other == theirs.end()) {
          found.push_back({entry->first, "", fmt::format("not usable on rank {}", rank), 0});
          entry = common.erase(entry);
        } else {
          entry->second = std::min(entry->second, other->second);
          ++entry;
        }
      }
    }
  }
  if (!wanted_backend.empty()) {
    std::erase_if(common, [&](const auto& entry) { return entry.first != wanted_backend; });
  }
  const auto best =
      std::max_element(common.begin(), common.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (best == common.end()) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("rank {}: communicator {}: no common backend{} on {} memory ({})", world.rank(),
                    name, wanted_backend.empty() ? "" : " \"" + wanted_backend + "\"",
                    device.name(), reasons(found)));
  }
  const auto file = std::find_if(found.begin(), found.end(), [&](const BackendInfo& info) {
    return info.name == best->first && !info.file.empty() && info.unusable.empty();
  });
  return load_plugin(file->file);
}

void Communicator::Impl::open_backend() {
  const std::string base =
      fmt::format("comm/{}/{:016x}", name, fnv1a(fmt::format("{}", fmt::join(axis.ranks, ","))));
  const std::string id = fmt::format("{}/{}", base, world.ticket(base));
  plugin = &choose_backend(id);
  const GroupDescription group(world, axis, id, name, device.kind());
  const atoll_status status = plugin->table.open(&services, &group.group, &comm);
  if (status != ATOLL_OK) {
    comm = nullptr;
    const Error error(static_cast<ErrorCode>(status),
                      fmt::format("rank {}: cannot open communicator {} on backend {}: {}",
                                  world.rank(), name, plugin->name, last_error(*plugin, nullptr)));
    world.check();  // when another rank failed first, its reason is the one to report
    world.fail(error.what());
    throw error;
  }
  retain(*plugin);
  world.at_exit([plugin = plugin](bool failed) { release(*plugin, failed); });
  subscription = world.on_failure([this](const Error&) { plugin->table.abort(comm); });
  log::debug("opened communicator {} of {} ranks on backend {}", name, axis.size(), plugin->name);
}

bool Communicator::Impl::reduces(std::int32_t kind, DType dtype, ReduceOp op) const {
  return plugin->table.capability(kind, static_cast<std::int32_t>(dtype),
                                  static_cast<std::int32_t>(op), memory_of(device.kind())) != 0;
}

std::shared_ptr<Work::State> Communicator::Impl::begin(Stream& stream) {
  world.check();
  if (last_stream && last_stream != &stream.backend()) stream.wait(last_event);
  return std::make_shared<Work::State>();
}

Work Communicator::Impl::finish(std::shared_ptr<Work::State> state, Stream& stream) {
  state->event = stream.record();
  last_event = state->event;
  last_stream = &stream.backend();
  return Work(std::move(state));
}

void Communicator::Impl::submit(std::vector<Request> requests,
                                const std::shared_ptr<Work::State>& state, Stream& stream) {
  const std::uint64_t first = sequence;
  sequence += requests.size();
  auto task = [self = shared_from_this(), requests = std::move(requests), first, state,
               native = stream.backend().native()] { self->run(requests, first, native, *state); };
  // A host backend runs when the stream arrives; a CUDA backend launches now.
  if (device.kind() == DeviceKind::host) {
    stream.enqueue(std::move(task));
  } else {
    task();
  }
}

void Communicator::Impl::run(std::span<const Request> requests, std::uint64_t first_sequence,
                             void* stream, Work::State& state) {
  std::vector<atoll_operation> operations;
  operations.reserve(requests.size());
  for (const Request& request : requests) {
    operations.push_back(
        {sizeof(atoll_operation), request.kind, static_cast<std::int32_t>(request.dtype),
         static_cast<std::int32_t>(request.op), request.peer, memory_of(device.kind()),
         request.src.data, request.dst.data, request.count, first_sequence++, stream,
         std::chrono::nanoseconds(world.config().timeout).count(), 0, 0});
  }
  std::vector<atoll_operation*> pointers;
  pointers.reserve(operations.size());
  for (auto& operation : operations) pointers.push_back(&operation);
  const atoll_status status =
      plugin->table.submit(comm, pointers.data(), static_cast<std::int32_t>(pointers.size()));
  if (status != ATOLL_OK) report(status, state);
}

void Communicator::Impl::report(atoll_status status, Work::State& state) {
  const Error own(
      static_cast<ErrorCode>(status),
      fmt::format("rank {}: communicator {}: {}", world.rank(), name, last_error(*plugin, comm)));
  // An abort is the echo of a failure that the World knows already; say that one.
  if (status != ATOLL_ABORTED) world.fail(own.what());
  const auto first = world.failure();
  const Error error = status == ATOLL_ABORTED && first ? *first : own;
  state.fail(error);
  throw error;
}

Communicator::Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

Communicator::~Communicator() {
  if (!impl_) return;
  try {
    impl_->last_event.synchronize();
  } catch (const std::exception&) {
    // Whoever waited for the operation has been told.
  }
}

Communicator Communicator::open(const Axis& axis, CommunicatorOptions options) {
  if (!axis.world || axis.ranks.empty()) {
    throw Error(ErrorCode::invalid_argument, "Communicator::open: the axis is empty");
  }
  axis.world->check();
  auto impl = std::make_shared<Impl>(axis, std::move(options));
  impl->open_backend();
  return Communicator(std::move(impl));
}

std::vector<BackendInfo> available_backends(World& world) {
  std::vector<BackendInfo> found;
  probe_all(world, DeviceKind::host, found);
  return found;
}

}  // namespace atoll_v1::atoll
