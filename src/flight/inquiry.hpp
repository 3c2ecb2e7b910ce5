// What the ranks of a communicator did, asked at the moment when one of them gives up waiting.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/world.hpp"
#include "flight/recorder.hpp"

namespace atoll_v1::atoll {

// The operation that a rank gave up: a collective, or messages with these peers.
struct Subject {
  std::string communicator;  // id
  std::vector<int> ranks;    // ranks of the World to ask
  std::int64_t collective = -1;
};

struct Verdict {
  bool disagreed = false;
  std::string text;
};

// Asks the ranks through the World's store and waits for those that do not answer for 2 s. Nothing
// when the job has failed meanwhile. Ranks that ask about the same find the same.
std::optional<Verdict> inquire(World& world, const Subject& subject);

// The error of an operation, with what the other ranks say where the backend cannot know it: at a
// timeout, and at a failure or a disagreement that names nobody's call.
struct Explained {
  Error error;
  std::string finding{};   // part of the error; "" if there is none
  bool overtaken = false;  // the job failed before this rank could ask

  // What the operation throws, once the World knows the first failure of the job. The same text on
  // every rank that found the same. `echo`: the backend only heard of a failure elsewhere.
  Error among(const std::optional<Error>& first, bool echo) const;
};
Explained explain(Communicator::Impl& impl, const Error& own, std::span<const Request> requests);

// What a rank says: the part of its log that the question is about.
std::string answer_inquiry(const FlightLog& log, std::string_view question);

}  // namespace atoll_v1::atoll
