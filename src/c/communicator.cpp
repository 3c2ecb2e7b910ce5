// The functions of atoll.h for communicators and for the Work of an operation.
#include "atoll/communicator.hpp"

#include "c/handles.hpp"

using namespace atoll::c;

namespace atoll_v1::atoll::c {
namespace {

CommunicatorOptions communicator_options(const atoll_communicator_options* given) {
  const atoll_communicator_options wanted = options(given, "options");
  CommunicatorOptions result{.name = text_or_empty(wanted.name),
                             .backend = text_or_empty(wanted.backend)};
  if (wanted.device != nullptr) result.device = wanted.device->device;
  if (wanted.parent != nullptr) result.parent = &wanted.parent->communicator;
  result.levels = wanted.one_level == 0;
  if (wanted.timeout_ms != 0) result.timeout = std::chrono::milliseconds(wanted.timeout_ms);
  if (wanted.deterministic != 0) result.deterministic = wanted.deterministic > 0 ? 1 : 0;
  if (wanted.algorithm != nullptr) result.algorithm = wanted.algorithm;
  if (wanted.compute_units < ATOLL_COMPUTE_UNITS_ANY ||
      wanted.compute_units > ATOLL_COMPUTE_UNITS_NONE)
    throw BadArgument{"options", "has an unknown value of compute_units"};
  result.tags = wanted.tags != 0;
  if (wanted.stop != nullptr) result.stop = wanted.stop->source.get_token();
  if (wanted.compute_units != ATOLL_COMPUTE_UNITS_ANY)
    result.compute_units = static_cast<ComputeUnits>(wanted.compute_units);
  return result;
}

Communicator& of(atoll_communicator* comm) { return at(comm, "comm").communicator; }
const Communicator& of(const atoll_communicator* comm) { return at(comm, "comm").communicator; }

}  // namespace
}  // namespace atoll_v1::atoll::c

atoll_status atoll_stop_open(atoll_stop** stop) {
  return create(stop, "stop", [] { return std::stop_source(); });
}
atoll_status atoll_stop_request(atoll_stop* stop) {
  return guard([&] { at(stop, "stop").source.request_stop(); });
}
void atoll_stop_close(atoll_stop* stop) { release(stop); }

atoll_status atoll_communicator_open(const atoll_mesh* mesh, const char* axis,
                                     const atoll_communicator_options* options,
                                     atoll_communicator** comm) {
  return create(comm, "comm", [&] {
    return atoll::Communicator::open(at(mesh, "mesh").mesh.axis(text(axis, "axis")),
                                     communicator_options(options));
  });
}
atoll_status atoll_communicator_open_ranks(atoll_world* world, const int32_t* ranks, size_t n,
                                           const atoll_communicator_options* options,
                                           atoll_communicator** comm) {
  return create(comm, "comm", [&] {
    const int32_t* const first = &at(ranks, "ranks");
    auto wanted = communicator_options(options);
    std::string name = wanted.name;
    return atoll::Communicator::open(at(world, "world").world, {first, first + n}, std::move(name),
                                     std::move(wanted));
  });
}
atoll_status atoll_communicator_split(const atoll_communicator* comm, int32_t color, int32_t key,
                                      const char* name, atoll_communicator** part) {
  return guard([&] {
    auto& result = at(part, "part");
    const auto own = color < 0 ? std::nullopt : std::optional<int>(color);
    auto opened = of(comm).split(own, key, text_or_empty(name));
    result = opened ? std::make_unique<atoll_communicator>(std::move(*opened)).release() : nullptr;
  });
}
atoll_status atoll_communicator_with_timeout(const atoll_communicator* comm, int64_t timeout_ms,
                                             atoll_communicator** result) {
  return create(result, "result",
                [&] { return of(comm).with_timeout(std::chrono::milliseconds(timeout_ms)); });
}
void atoll_communicator_close(atoll_communicator* comm) { release(comm); }
atoll_status atoll_communicator_rank(const atoll_communicator* comm, int32_t* rank) {
  return guard([&] { at(rank, "rank") = of(comm).rank(); });
}
atoll_status atoll_communicator_size(const atoll_communicator* comm, int32_t* size) {
  return guard([&] { at(size, "size") = of(comm).size(); });
}
atoll_status atoll_communicator_name(const atoll_communicator* comm, const char** name) {
  return guard([&] { at(name, "name") = at(comm, "comm").name.c_str(); });
}
atoll_status atoll_communicator_backend(const atoll_communicator* comm, const char** name) {
  return guard([&] { at(name, "name") = at(comm, "comm").backend.c_str(); });
}
atoll_status atoll_communicator_transports(const atoll_communicator* comm, char** text) {
  return guard([&] { at(text, "text") = copy_of(of(comm).transports().to_string()); });
}
atoll_status atoll_communicator_check(const atoll_communicator* comm) {
  return guard([&] { of(comm).check(); });
}
atoll_status atoll_communicator_abort(atoll_communicator* comm, const char* reason) {
  return guard([&] { of(comm).abort(text(reason, "reason")); });
}

atoll_status atoll_work_wait(const atoll_work* work, atoll_stream* stream) {
  return guard([&] { at(work, "work").work.wait(at(stream, "stream").stream); });
}
atoll_status atoll_work_synchronize(const atoll_work* work) {
  return guard([&] { at(work, "work").work.synchronize(); });
}
atoll_status atoll_work_synchronize_for(const atoll_work* work, int64_t timeout_ms, int32_t* done) {
  return guard([&] {
    auto& result = at(done, "done");
    const bool complete =
        at(work, "work").work.synchronize_for(std::chrono::milliseconds(timeout_ms));
    result = complete ? 1 : 0;
  });
}
atoll_status atoll_work_done(const atoll_work* work, int32_t* done) {
  return guard([&] { at(done, "done") = at(work, "work").work.done() ? 1 : 0; });
}
atoll_status atoll_work_error(const atoll_work* work) {
  return guard([&] {
    if (const auto error = at(work, "work").work.error()) throw atoll::Error(*error);
  });
}
atoll_status atoll_work_source(const atoll_work* work, int32_t* source, int32_t* tag) {
  return guard([&] {
    at(source, "source") = at(work, "work").work.source();
    at(tag, "tag") = work->work.tag();
  });
}
atoll_status atoll_work_then(const atoll_work* work, atoll_done_fn callback, void* context) {
  return guard([&] { at(work, "work").work.then(outcome(callback, context)); });
}
void atoll_work_close(atoll_work* work) { release(work); }
