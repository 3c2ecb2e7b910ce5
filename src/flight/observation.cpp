// The fields of a rank's answer to an observer, in this order. Steps, collectives and the clock
// must fit 63 bits.
//   u64 step + 1, u64 bytes, u64 monotonic ns
//   u32 1 if an operation follows, otherwise 0
//   the operation: texts communicator, kind and call; u64 sequence, u64 bytes, u32 state, u64 ns in
//     this state
//   u32 number of communicators
//   each communicator: texts id and name; u64 number of collectives that were called; u64 number
//     of the collective in progress + 1, or 0; u64 ns since the start of that collective
// The format belongs to the protocol of the store (wire_protocol.md).
#include "flight/observation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "core/errors.hpp"
#include "core/terminal_safe.hpp"
#include "flight/explanation.hpp"
#include "store/observer.hpp"
#include "world/launch.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t max_text = 256;

std::string_view cut(const std::string& text) { return std::string_view(text).substr(0, max_text); }

bool is_running(const FlightOperation& operation) {
  return operation.state == FlightState::started;
}

std::int64_t reached_ns(const FlightOperation& operation) {
  if (operation.state == FlightState::enqueued) return operation.enqueued_ns;
  return is_running(operation) ? operation.started_ns : operation.finished_ns;
}

std::uint64_t age(const FlightLog& log, std::int64_t since) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(log.monotonic_ns - since, 0));
}

void pack_operation(store::Packer& packer, const FlightLog& log, const FlightOperation& o) {
  packer.text(cut(log.communicators[o.communicator].name))
      .text(cut(o.kind))
      .text(cut(call_text(o)))
      .wide_number(o.sequence)
      .wide_number(o.bytes)
      .number(static_cast<std::uint32_t>(o.state))
      .wide_number(age(log, reached_ns(o)));
}

void pack_communicator(store::Packer& packer, const FlightLog& log, std::size_t index) {
  const FlightCommunicator& communicator = log.communicators[index];
  const auto running = std::ranges::find_if(log.operations, [&](const FlightOperation& o) {
    return o.communicator == index && o.collective >= 0 && is_running(o);
  });
  const bool runs = running != log.operations.end();
  packer.text(cut(communicator.id))
      .text(cut(communicator.name))
      .wide_number(communicator.collectives_enqueued)
      .wide_number(runs ? static_cast<std::uint64_t>(running->collective) + 1 : 0)
      .wide_number(runs ? age(log, running->started_ns) : 0);
}

std::string text_from(store::Unpacker& in) { return terminal_safe(in.text(max_text)); }

std::int64_t signed_from(store::Unpacker& in, std::uint64_t subtracted) {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  const std::uint64_t number = in.wide_number();
  require(number <= most + subtracted, ErrorCode::bad_data,
          "the answer of a rank to an observer has the number {}, which is too large", number);
  return static_cast<std::int64_t>(number - subtracted);
}

double seconds_from(store::Unpacker& in) { return static_cast<double>(in.wide_number()) * 1e-9; }

ObservedOperation operation_from(store::Unpacker& in) {
  ObservedOperation operation;
  operation.communicator = text_from(in);
  operation.kind = text_from(in);
  operation.text = text_from(in);
  operation.sequence = in.wide_number();
  operation.bytes = in.wide_number();
  const std::uint32_t state = in.number();
  require(state <= static_cast<std::uint32_t>(FlightState::failed), ErrorCode::bad_data,
          "the answer of a rank to an observer has an unknown state {}", state);
  operation.state = static_cast<FlightState>(state);
  operation.seconds = seconds_from(in);
  return operation;
}

// A rank of a communicator, with the communicator as this rank reported it.
struct Member {
  int rank = 0;
  const ObservedCommunicator* communicator = nullptr;
};

bool waits(const ObservedRank& rank) {
  return std::ranges::any_of(rank.communicators,
                             [](const ObservedCommunicator& c) { return c.running >= 0; });
}

// Adds to `late` members that wait in no collective and have not called the newest running one.
void find_late(std::span<const ObservedRank> ranks, const std::vector<Member>& members,
               std::map<int, WaitedFor>& late) {
  std::int64_t collective = -1;
  int waiting = 0;
  double seconds = 0;
  for (const auto& [rank, communicator] : members) {
    collective = std::max(collective, communicator->running);
  }
  if (collective < 0) return;
  for (const auto& [rank, communicator] : members) {
    if (communicator->running != collective) continue;
    ++waiting;
    seconds = std::max(seconds, communicator->seconds);
  }
  for (const auto& [rank, communicator] : members) {
    const bool has_called =
        communicator->collectives_enqueued > static_cast<std::uint64_t>(collective);
    if (has_called || waits(ranks[static_cast<std::size_t>(rank)])) continue;
    WaitedFor& entry = late[rank];
    if (entry.waiting > 0 && entry.seconds >= seconds) continue;
    entry = {rank, waiting, seconds,
             fmt::format("has not called collective {} of communicator {}", collective,
                         communicator->name)};
  }
}

store::Observer connect_observer(const std::string& address, const std::string& token,
                                 std::chrono::milliseconds patience) {
  require(!address.empty(), "an observer needs the address of the job (ATOLL_ADDR)");
  require(!token.empty(),
          "an observer needs the token of the job: start the job with ATOLL_ADDR and ATOLL_TOKEN, "
          "and set the same ATOLL_TOKEN here");
  Config config;
  config.addr = address;
  config.token = token;
  const launch::Endpoint endpoint = *launch::configured_endpoint(config);
  return {net::resolve(endpoint.addresses.front(), endpoint.port), token,
          net::Clock::now() + patience};
}

}  // namespace

std::string encode_observation(const FlightLog& log, std::uint64_t bytes) {
  store::Packer packer;
  const FlightOperation* shown = nullptr;
  for (const FlightOperation& operation : log.operations) {
    const bool is_pending = operation.state == FlightState::enqueued || is_running(operation);
    if (is_pending) bytes -= std::min(bytes, operation.bytes);
    if (shown == nullptr || !is_running(*shown)) shown = &operation;
  }
  packer.wide_number(static_cast<std::uint64_t>(log.step) + 1)
      .wide_number(bytes)
      .wide_number(static_cast<std::uint64_t>(log.monotonic_ns))
      .number(shown != nullptr ? 1 : 0);
  if (shown != nullptr) pack_operation(packer, log, *shown);
  std::vector<std::size_t> open;
  for (std::size_t i = log.communicators.size(); i-- > 0;) {
    if (!log.communicators[i].closed && open.size() < max_observed_communicators) open.push_back(i);
  }
  packer.number(static_cast<std::uint32_t>(open.size()));
  for (const std::size_t index : open) pack_communicator(packer, log, index);
  return packer.take();
}

ObservedRank decode_observation(std::string_view text) {
  store::Unpacker in(text);
  ObservedRank rank;
  rank.state = ObservedRank::State::answers;
  rank.step = signed_from(in, 1);
  rank.bytes = in.wide_number();
  rank.monotonic_ns = signed_from(in, 0);
  if (in.number() != 0) rank.operation = operation_from(in);
  const std::uint32_t communicators = in.number();
  require(communicators <= max_observed_communicators, ErrorCode::bad_data,
          "the answer of a rank to an observer has {} communicators", communicators);
  for (std::uint32_t i = 0; i < communicators; ++i) {
    ObservedCommunicator& communicator = rank.communicators.emplace_back();
    communicator.id = text_from(in);
    communicator.name = text_from(in);
    communicator.collectives_enqueued = in.wide_number();
    communicator.running = signed_from(in, 1);
    communicator.seconds = seconds_from(in);
  }
  in.finish();
  return rank;
}

ObservedRank observed_rank(const store::Answered& answer) {
  using How = store::Answered::How;
  ObservedRank rank;
  if (answer.how == How::answered && !answer.text.empty()) {
    try {
      rank = decode_observation(answer.text);
    } catch (const Error&) {  // one malformed answer must not hide the other ranks
      rank.state = ObservedRank::State::unreadable;
    }
  } else if (answer.how == How::departed) {
    rank.state = ObservedRank::State::departed;
  } else if (answer.how == How::answered) {
    rank.state = ObservedRank::State::answers;  // the rank has not opened a communicator yet
  } else {
    rank.state = answer.host.empty() ? ObservedRank::State::absent : ObservedRank::State::silent;
  }
  rank.host = terminal_safe(answer.host);
  rank.pid = answer.pid;
  return rank;
}

std::vector<WaitedFor> waited_for(std::span<const ObservedRank> ranks) {
  std::map<std::string, std::vector<Member>, std::less<>> members;
  std::map<int, WaitedFor> late;
  int waiting = 0;
  double seconds = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (const ObservedCommunicator& communicator : ranks[i].communicators) {
      members[communicator.id].push_back({static_cast<int>(i), &communicator});
      seconds = std::max(seconds, communicator.seconds);
    }
    waiting += waits(ranks[i]) ? 1 : 0;
  }
  for (const auto& [id, list] : members) find_late(ranks, list, late);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].state != ObservedRank::State::silent) continue;
    const int rank = static_cast<int>(i);
    late[rank] = {rank, waiting, seconds,
                  "does not answer: its process is stopped, or its host is unreachable"};
  }
  std::vector<WaitedFor> result;
  for (auto& [rank, entry] : late) result.push_back(std::move(entry));
  std::ranges::stable_sort(result, std::ranges::greater{}, &WaitedFor::seconds);
  return result;
}

struct Observer::Impl {
  store::Observer store;
};

Observer::Observer(const std::string& address, const std::string& token,
                   std::chrono::milliseconds patience)
    : impl_(std::make_unique<Impl>(Impl{connect_observer(address, token, patience)})) {}

Observer::~Observer() = default;
Observer::Observer(Observer&&) noexcept = default;
Observer& Observer::operator=(Observer&&) noexcept = default;

std::optional<std::vector<ObservedRank>> Observer::look(std::chrono::milliseconds patience) {
  const auto answers = impl_->store.look(patience);
  if (!answers) return std::nullopt;
  std::vector<ObservedRank> ranks;
  for (const store::Answered& answer : *answers) ranks.push_back(observed_rank(answer));
  return ranks;
}

}  // namespace atoll_v1::atoll
