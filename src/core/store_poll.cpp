#include "core/store_poll.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "core/store_protocol.hpp"

namespace atoll_v1::atoll::store {

std::string encode(const std::vector<Answered>& answers) {
  Packer packer;
  for (const Answered& answer : answers) {
    packer.number(static_cast<std::uint32_t>(answer.how)).text(answer.text);
  }
  return packer.take();
}

std::vector<Answered> decode_answers(std::string_view body) {
  std::vector<Answered> result;
  Unpacker in(body);
  for (std::size_t left = body.size(); left > 0; left -= result.back().text.size() + 8) {
    const std::uint32_t how = in.number();
    if (how > static_cast<std::uint32_t>(Answered::How::departed)) {
      throw Error(ErrorCode::bad_data, "store message: unknown kind of answer");
    }
    result.push_back({static_cast<Answered::How>(how), std::string(in.text(max_value_bytes))});
  }
  return result;
}

std::uint64_t Polls::open(const Waiter& waiter) {
  const std::uint64_t number = next_number_++;
  Poll& poll = polls_[number];
  poll.waiter = waiter;
  poll.answers.resize(static_cast<std::size_t>(roster_.size()));
  return number;
}

void Polls::answer(std::uint64_t number, int rank, std::string text) {
  const auto found = polls_.find(number);
  if (found == polls_.end()) return;
  found->second.answers[static_cast<std::size_t>(rank)] = std::move(text);
  settle();
}

bool Polls::complete(const Poll& poll) const {
  for (int rank = 0; rank < roster_.size(); ++rank) {
    const bool there = roster_[rank].state == Peer::State::present;
    if (there && !poll.answers[static_cast<std::size_t>(rank)]) return false;
  }
  return true;
}

void Polls::settle() {
  for (auto poll = polls_.begin(); poll != polls_.end();) {
    const bool done = complete(poll->second);
    if (done) finish(poll->second);
    poll = done ? polls_.erase(poll) : std::next(poll);
  }
}

void Polls::finish(const Poll& poll) const {
  std::vector<Answered> answers;
  for (int rank = 0; rank < roster_.size(); ++rank) {
    const auto& answer = poll.answers[static_cast<std::size_t>(rank)];
    if (roster_[rank].state == Peer::State::departed) {
      answers.push_back({Answered::How::departed, {}});
    } else if (answer) {
      answers.push_back({Answered::How::answered, *answer});
    } else {
      answers.push_back({Answered::How::silent, {}});
    }
  }
  reply_(poll.waiter, std::nullopt, std::make_shared<const std::string>(encode(answers)));
}

net::Clock::time_point Polls::next_deadline(net::Clock::time_point latest) const {
  for (const auto& [number, poll] : polls_) latest = std::min(latest, poll.waiter.deadline);
  return latest;
}

void Polls::expire(net::Clock::time_point now) {
  for (auto poll = polls_.begin(); poll != polls_.end();) {
    const bool late = poll->second.waiter.deadline <= now;
    if (late) finish(poll->second);
    poll = late ? polls_.erase(poll) : std::next(poll);
  }
}

void Polls::forget(const Connection& connection) {
  std::erase_if(polls_,
                [&](const auto& item) { return item.second.waiter.connection == &connection; });
}

}  // namespace atoll_v1::atoll::store
