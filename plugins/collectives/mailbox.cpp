#include "collectives/mailbox.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "collectives/collectives.hpp"
#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

using namespace std::chrono_literals;

constexpr auto longest_rest = 5ms;

bool is_receive(const atoll_operation& operation) { return operation.kind == ATOLL_RECV; }

bool matches(const atoll_operation& receive, int source, std::int32_t tag) {
  return (receive.peer == ATOLL_ANY || receive.peer == source) &&
         (receive.tag == ATOLL_ANY || receive.tag == tag);
}

std::size_t data_bytes(const Signature& signature) {
  return signature.count * dtype_size(signature.dtype);
}

std::string describe(std::int32_t number, const char* any) {
  return number == ATOLL_ANY ? any : std::to_string(number);
}

}  // namespace

Mailbox::Mailbox(Team& team) : team_(team), peers_(static_cast<std::size_t>(team.size())) {}

void Mailbox::perform(std::span<atoll_operation* const> messages) {
  std::vector<Post> posts;
  posts.reserve(messages.size());
  for (const auto* message : messages) {
    posts.push_back({message, make_signature(*message, team_.size(), 0)});
    posts.back().signature.root = message->tag;
  }
  Lock lock(mutex_);
  if (!failure_.empty()) {
    throw Error(ATOLL_ABORTED,
                fmt::format("communicator {} failed before: {}", team_.name, failure_));
  }
  try {
    run(lock, posts);
  } catch (const std::exception&) {
    if (failure_.empty()) {
      atoll_sdk::record_current_exception();
      failure_ = atoll_sdk::last_error();
      // This call and all others throw now, so the operations of their posts become invalid.
      receives_.clear();
      for (Peer& one : peers_) one.sends.clear();
      changed_.notify_all();
      changed_.wait(lock, [this] { return !is_driven_; });
      for (auto* transport : team_.transports) transport->stop();
    }
    throw;
  }
}

void Mailbox::run(Lock& lock, std::span<Post> posts) {
  std::chrono::nanoseconds limit = std::chrono::nanoseconds::max();
  for (Post& one : posts) {
    if (one.operation->timeout_ns > 0)
      limit = std::min(limit, std::chrono::nanoseconds(one.operation->timeout_ns));
    post(one);
  }
  const auto now = Clock::now();
  const auto deadline =
      limit < Clock::time_point::max() - now ? now + limit : Clock::time_point::max();
  if (is_driven_) {
    for (auto* transport : team_.transports) transport->wake();
  }
  while (!std::ranges::all_of(posts, &Post::is_complete)) {
    check(posts, deadline);
    if (is_driven_) {
      changed_.wait_for(lock, longest_rest);
      continue;
    }
    // While it exists, this thread moves the bytes of all calls.
    struct Drives {
      explicit Drives(Mailbox& mailbox) : box(mailbox) { box.is_driven_ = true; }
      Drives(const Drives&) = delete;
      Drives& operator=(const Drives&) = delete;
      ~Drives() {
        box.is_driven_ = false;
        box.changed_.notify_all();
      }
      Mailbox& box;
    } drives(*this);
    if (!progress()) sleep(lock, deadline);
  }
}

void Mailbox::post(Post& one) {
  const atoll_operation& operation = *one.operation;
  if (!is_receive(operation)) {
    if (operation.peer == team_.rank) return deliver_to_self(one);
    peer(operation.peer).sends.push_back(&one);
    return;
  }
  const auto kept = std::ranges::find_if(kept_, [&](const Kept& message) {
    return message.receiver == nullptr &&
           matches(operation, message.source, message.signature.root);
  });
  if (kept == kept_.end()) {
    check_lost(one);
    receives_.push_back(&one);
    return;
  }
  compare(one, kept->source, kept->signature);
  kept->receiver = &one;
  if (!kept->is_whole) return;  // arrived() completes it
  atoll_collectives::copy(destination(operation), kept->data.data(), kept->data.size());
  complete(one, kept->source, kept->signature);
  kept_bytes_ -= kept->data.size();
  kept_.erase(kept);
}

void Mailbox::deliver_to_self(Post& one) {
  const atoll_operation& operation = *one.operation;
  one.is_complete = true;
  if (Post* const receiver = receiver_of(team_.rank, one.signature)) {
    atoll_collectives::copy(destination(*receiver->operation), source(operation), bytes(operation));
    return complete(*receiver, team_.rank, one.signature);
  }
  Kept& message = keep(team_.rank, one.signature, bytes(operation));
  atoll_collectives::copy(message.data.data(), source(operation), bytes(operation));
  message.is_whole = true;
}

bool Mailbox::progress() {
  bool moved = false;
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (rank == team_.rank) continue;
    moved |= send_to(rank);
    moved |= receive_from(rank);
  }
  return moved;
}

bool Mailbox::send_to(int rank) {
  bool moved = false;
  auto& sends = peer(rank).sends;
  while (!sends.empty()) {
    Post& one = *sends.front();
    const auto head = std::as_bytes(std::span(&one.signature, 1));
    const std::span data(atoll_collectives::source(*one.operation), bytes(*one.operation));
    std::size_t n = 0;
    if (one.done >= head.size()) {
      n = route(rank).send(rank, data.subspan(one.done - head.size()));
    } else if (data.empty()) {
      n = route(rank).send(rank, head.subspan(one.done));
    } else {
      n = route(rank).send_both(rank, head.subspan(one.done), data);
    }
    one.done += n;
    moved |= n > 0;
    if (one.done < head.size() + data.size()) return moved;
    one.is_complete = true;
    sends.pop_front();
  }
  return moved;
}

// Reads until the transport has no more bytes, or until a message has no place.
bool Mailbox::receive_from(int rank) {
  Arriving& message = peer(rank).arriving;
  bool moved = false;
  while (true) {
    const bool begins = message.signature_done < sizeof(Signature);
    if (begins && !read(rank, std::as_writable_bytes(std::span(&message.signature, 1)),
                        message.signature_done)) {
      return moved;
    }
    moved = true;
    if (message.receiver == nullptr && message.kept == nullptr && !place(rank)) return begins;
    if (message.data_done < message.data.size() && !read(rank, message.data, message.data_done)) {
      return moved;
    }
    arrived(rank);
  }
}

// Returns true if all bytes of `to` have arrived.
bool Mailbox::read(int rank, std::span<std::byte> to, std::size_t& done) {
  Peer& from = peer(rank);
  if (from.lost) return false;
  try {
    done += route(rank).recv(rank, to.subspan(done));
    return done == to.size();
  } catch (const Error& error) {
    if (error.status() != ATOLL_PEER_LOST || from.arriving.signature_done > 0) throw;
    from.lost = error.what();
  }
  for (const Post* receiver : receives_) check_lost(*receiver);
  return false;
}

// Chooses where the data of a message from `rank` goes. Returns false if there is no room for it.
bool Mailbox::place(int rank) {
  Arriving& message = peer(rank).arriving;
  if (message.signature.magic != signature_magic) {
    throw Error(ATOLL_INTERNAL, fmt::format("communicator {}: the messages from {} are out of sync",
                                            team_.name, team_.describe(rank)));
  }
  const std::size_t size = data_bytes(message.signature);
  message.receiver = receiver_of(rank, message.signature);
  if (message.receiver != nullptr) {
    message.data = {destination(*message.receiver->operation), size};
    return true;
  }
  if (kept_bytes_ > 0 && kept_bytes_ + size > most_kept) return false;
  message.kept = &keep(rank, message.signature, size);
  message.data = message.kept->data;
  return true;
}

void Mailbox::arrived(int rank) {
  const Arriving message = std::exchange(peer(rank).arriving, {});
  if (message.receiver != nullptr) return complete(*message.receiver, rank, message.signature);
  Kept& kept = *message.kept;
  kept.is_whole = true;
  if (kept.receiver == nullptr) return;
  atoll_collectives::copy(destination(*kept.receiver->operation), kept.data.data(),
                          kept.data.size());
  complete(*kept.receiver, rank, message.signature);
  kept_bytes_ -= kept.data.size();
  kept_.remove_if([&](const Kept& one) { return &one == &kept; });
}

// Removes and returns the first receive that matches a message; null if there is none.
Mailbox::Post* Mailbox::receiver_of(int source, const Signature& signature) {
  const auto found = std::ranges::find_if(
      receives_, [&](const Post* one) { return matches(*one->operation, source, signature.root); });
  if (found == receives_.end()) return nullptr;
  Post* const receiver = *found;
  compare(*receiver, source, signature);
  receives_.erase(found);
  return receiver;
}

Mailbox::Kept& Mailbox::keep(int source, const Signature& signature, std::size_t size) {
  kept_bytes_ += size;
  return kept_.emplace_back(Kept{source, signature, std::vector<std::byte>(size)});
}

void Mailbox::complete(Post& receiver, int source, const Signature& signature) {
  receiver.is_complete = true;
  if (receiver.operation->arrived == nullptr) return;
  *receiver.operation->arrived = {source, signature.root};
}

void Mailbox::compare(const Post& receiver, int source, const Signature& signature) const {
  const Signature& expected = receiver.signature;
  if (expected.count == signature.count && expected.dtype == signature.dtype) return;
  throw_mismatch(team_.name, team_.describe(team_.rank), expected, team_.describe(source),
                 signature);
}

// Throws if every rank that could send this message is lost.
void Mailbox::check_lost(const Post& receiver) const {
  const int source = receiver.operation->peer;
  std::string why;
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (source != ATOLL_ANY && source != rank) continue;
    const auto& lost = peers_[static_cast<std::size_t>(rank)].lost;
    if (!lost) {
      if (rank == team_.rank && source == ATOLL_ANY) continue;
      return;
    }
    why = fmt::format("lost {}: {}", team_.describe(rank), *lost);
  }
  if (why.empty()) return;
  throw Error(ATOLL_PEER_LOST,
              fmt::format("recv {} of communicator {} on {}: {}", receiver.operation->sequence,
                          team_.name, team_.describe(team_.rank), why));
}

void Mailbox::sleep(Lock& lock, Clock::time_point deadline) {
  std::vector<std::uint32_t> tickets;
  for (const auto* transport : team_.transports) tickets.push_back(transport->ticket());
  if (progress()) return;  // moves what came before the tickets were taken
  std::vector<std::vector<Need>> needs(team_.transports.size());
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (rank == team_.rank) continue;
    const auto at = std::ranges::find(team_.transports, &route(rank)) - team_.transports.begin();
    auto& of_route = needs[static_cast<std::size_t>(at)];
    if (!peer(rank).lost) of_route.push_back({rank, Direction::recv});
    if (!peer(rank).sends.empty()) of_route.push_back({rank, Direction::send});
  }
  std::chrono::nanoseconds limit = longest_rest;
  if (deadline != Clock::time_point::max()) {
    limit = std::clamp<std::chrono::nanoseconds>(deadline - Clock::now(), 0ns, limit);
  }
  lock.unlock();
  if (team_.transports.size() == 1) {
    team_.transports[0]->wait(tickets[0], needs[0], limit);
  } else {
    std::vector<pollfd> descriptors;
    auto armed = Transport::Armed::sleep;
    std::size_t count = 0;
    for (; count < needs.size() && armed == Transport::Armed::sleep; ++count) {
      armed = team_.transports[count]->arm(tickets[count], needs[count], descriptors);
    }
    if (armed == Transport::Armed::sleep) poll_for(descriptors, limit);
    for (std::size_t i = 0; i < count; ++i) team_.transports[i]->disarm();
  }
  lock.lock();
}

void Mailbox::check(std::span<const Post> posts, Clock::time_point deadline) const {
  const auto fail = [&](atoll_status status, const std::string& what) {
    const atoll_operation& first = *posts.front().operation;
    throw Error(status, fmt::format("{} {} of communicator {} on {}: {}; {}", kind_name(first.kind),
                                    first.sequence, team_.name, team_.describe(team_.rank), what,
                                    pending_text(posts)));
  };
  if (!failure_.empty()) fail(ATOLL_ABORTED, fmt::format("failed before: {}", failure_));
  if (team_.aborted.load(std::memory_order_acquire)) fail(ATOLL_ABORTED, "aborted");
  if (Clock::now() < deadline) return;
  const auto limit = static_cast<double>(posts.front().operation->timeout_ns) * 1e-9;
  fail(ATOLL_TIMEOUT, fmt::format("timed out after {:.3f} s", limit));
}

// Names what the call waits for, and the messages that wait for a receive.
std::string Mailbox::pending_text(std::span<const Post> posts) const {
  std::vector<std::string> pending;
  for (const Post& one : posts) {
    if (one.is_complete) continue;
    const atoll_operation& operation = *one.operation;
    pending.push_back(
        fmt::format("{} {} with tag {}", is_receive(operation) ? "a message from" : "the send to",
                    operation.peer == ATOLL_ANY ? "any rank" : team_.describe(operation.peer),
                    describe(operation.tag, "any")));
  }
  std::string text = waiting_text(pending, "no message is pending");
  for (const Kept& message : kept_) {
    text += fmt::format("; not received: {} x {} with tag {} from {}", message.signature.count,
                        dtype_name(message.signature.dtype), message.signature.root,
                        team_.describe(message.source));
    if (text.size() > 1000) return text + "; and more";
  }
  return text;
}

}  // namespace atoll_collectives
