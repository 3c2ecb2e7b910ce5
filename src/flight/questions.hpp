// The questions that this rank answers, by name. Ranks ask them with Store::ask() and are answered
// even while they compute or hang; store/wire_protocol.md has the messages.
//
// name                 | asked by              | details                      | answer
// observe              | the store             | none                         | observation.cpp
// inquiry              | inquire()             | the operation that failed    | inquiry.cpp
// ID/end               | a communicator        | why communicator ID ends     | none
// key of an engine     | the engine            | the asker's count of batches | the rank's own
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Any thread may call any function.
class Questions {
 public:
  // Returns the answer of this rank. It must not block or call the store.
  using Handler = std::function<std::string(std::string_view detail)>;

  // Answers questions of this name with `handler`. Calls it at once for questions that arrived
  // before: a rank may ask about a communicator that another rank has not opened yet.
  void add(const std::string& name, Handler handler);
  // Removes the handler of `name`. Waits for a call in progress.
  void remove(const std::string& name);
  // Returns the answer to a question; "" if the name has no handler. Keeps such a question for
  // add(), but only the last most_early of them, because the handler may have been removed, or only
  // other ranks may add one.
  std::string answer(std::string_view name, std::string_view detail);

  static constexpr std::size_t most_early = 256;

 private:
  // Guards the members below, and is held during a call of a handler. It is recursive, because a
  // handler may release the last reference to an object whose destructor calls remove().
  std::recursive_mutex mutex_;
  std::map<std::string, Handler, std::less<>> handlers_;
  // Names and details of questions for which no handler has been added yet.
  std::deque<std::pair<std::string, std::string>> early_;
};

}  // namespace atoll_v1::atoll
