// Functions with which a rank answers questions of other ranks about a subject, such as "what is
// the number of micro batches in your step?". Questions travel through the store and are answered
// even while a rank computes or hangs.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/world.hpp"
#include "core/store.hpp"

namespace atoll_v1::atoll {

// Any thread may call any function.
class Responders {
 public:
  // Returns the answer to a question with this detail. It must not block or call the store.
  using Respond = std::function<std::string(std::string_view detail)>;

  // Answers questions about `subject` with `respond`. A subject has one function and no line
  // breaks.
  void add(const std::string& subject, Respond respond);
  // Removes the function of `subject`. Waits for a call in progress.
  void remove(const std::string& subject);
  // Returns true if the question of the store is for a responder, and sets `answer`. The answer is
  // empty if this rank has no function for the subject.
  bool respond(std::string_view question, std::string& answer);

 private:
  std::mutex mutex_;  // guards responders_, and is held while a function runs
  std::map<std::string, Respond, std::less<>> responders_;
};

// Asks the responders of all ranks of the job, this one included, and returns their answers by rank
// after at most `patience`. Throws the errors of the store.
std::vector<store::Answered> ask_responders(World& world, std::string_view subject,
                                            std::string_view detail,
                                            std::chrono::milliseconds patience);

}  // namespace atoll_v1::atoll
