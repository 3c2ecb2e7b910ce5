#include "comm/explain.hpp"

#include <fmt/format.h>

#include "core/errors.hpp"
#include "device/task.hpp"
#include "flight/inquiry.hpp"

namespace atoll_v1::atoll {
namespace {

// Returns true when the error does not identify the rank that caused it. A mismatch with the text
// "A called X where B called Y" comes from a backend that has already compared the calls of the
// ranks.
bool wants_inquiry(const Error& error) {
  if (error.code() == ErrorCode::mismatch) {
    return std::string_view(error.what()).find(" called ") == std::string_view::npos;
  }
  return error.code() == ErrorCode::timeout || error.code() == ErrorCode::backend;
}

InquirySubject subject_of(const FailedOperations& failed) {
  const auto& operations = failed.operations;
  InquirySubject subject;
  subject.communicator = failed.track.description.id;
  // If the user called send or recv, only the peers are asked what they were doing. A message that
  // is part of a collective concerns all ranks of the communicator.
  const bool messages = !operations.empty() && operations.front().is_message();
  if (messages && operations.front().part_of < 0) {
    for (const Operation& operation : operations) {
      if (operation.peer == ATOLL_ANY) {
        subject.ranks = failed.axis.ranks;
        return subject;
      }
      subject.ranks.push_back(failed.axis.ranks[static_cast<std::size_t>(operation.peer)]);
    }
    return subject;
  }
  subject.ranks = failed.axis.ranks;
  if (messages) return subject;
  // The number of completed collectives is the index of the failed one, because the operations of a
  // communicator run in order.
  subject.collective = static_cast<std::int64_t>(failed.track.collectives_completed);
  return subject;
}

}  // namespace

std::string reason_of_drop() {
  const std::exception_ptr error = DroppedTask::error();
  if (!error) return "its stream could not take it";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& problem) {
    return fmt::format("its stream had already failed: {}", text_of(problem));
  } catch (...) {
    return fmt::format("its stream had already failed: {}", foreign_exception);
  }
}

std::string_view without_name(std::string_view text, std::string_view name) {
  const std::string prefix = fmt::format("communicator {}: ", name);
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  return text;
}

ExplainedError explain(const FailedOperations& failed, const Error& own) {
  if (!wants_inquiry(own) || failed.axis.size() == 1) return {own};
  if (failed.world.failure()) return {.error = own, .overtaken = true};
  const auto result = inquire(failed.world, subject_of(failed));
  if (!result) return {.error = own, .overtaken = true};
  if (result->text.empty()) return {own};
  return {Error(result->disagreed ? ErrorCode::mismatch : own.code(),
                fmt::format("{}; {}", own.what(), result->text)),
          result->text};
}

Error ExplainedError::to_report(const std::optional<Error>& first, Cause cause) const {
  if (!first) return error;
  if (cause == Cause::elsewhere || overtaken) return *first;
  if (finding.empty()) return error;
  const bool same = std::string_view(first->what()).find(finding) != std::string_view::npos;
  return same ? Error(error.code(), first->what()) : *first;
}

}  // namespace atoll_v1::atoll
