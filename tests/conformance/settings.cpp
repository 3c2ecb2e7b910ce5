// Checks the settings of a communicator, and abort().
#include <chrono>
#include <functional>
#include <thread>

#include "atoll/error.hpp"
#include "checks.hpp"

namespace conformance {
namespace {

using namespace std::chrono_literals;
using atoll::Communicator;

Communicator open(Rank& self, atoll::CommunicatorOptions options) {
  const auto mesh = atoll::Mesh::make(self.world, {.replicate = 1, .shard = self.size()});
  if (options.parent == nullptr) {
    options.backend = self.backend();
    options.device = self.comm.device();
  }
  return Communicator::open(mesh.axis("shard"), std::move(options));
}

// Returns true if the library builds sums of f32 itself, for which it needs scratch memory.
bool falls_back(const Communicator& comm) {
  return comm.scratch_bytes(Communicator::Sum::all_reduce, 100, DType::f32) > 0;
}

void expect_error(Rank& self, atoll::ErrorCode code, const std::string& text,
                  const std::function<void()>& call) {
  try {
    call();
    self.report.expect(false, "no error, but expected: " + text);
  } catch (const atoll::Error& error) {
    self.report.expect(error.code() == code && error.what() == text,
                       std::string(error.what()) + ", but expected: " + text);
  }
}

// In deterministic mode the library builds the sums if the backend cannot order them.
void check_deterministic(Rank& self) {
  auto ordered = open(self, {.name = "ordered", .deterministic = 1});
  auto part = ordered.split(0);
  auto free = open(self, {.name = "free", .parent = &ordered, .deterministic = 0});
  self.report.expect(falls_back(ordered) == !self.sums_as_host(), "deterministic = 1");
  self.report.expect(falls_back(*part) == !self.sums_as_host(), "a split of deterministic = 1");
  self.report.expect(!falls_back(free), "deterministic = 0");
  for (Communicator* comm : {&ordered, &*part, &free}) {
    Rank member{self.world, *comm, self.stream, self.report};
    reduce(member, DType::f32, ReduceOp::sum, 127);
  }
}

void check_differences(Rank& self) {
  if (self.size() == 1) return;
  const auto other = self.rank() == 1;
  expect_error(self, atoll::ErrorCode::mismatch,
               "opening communicator own: ranks disagree about CommunicatorOptions::timeout: 30000 "
               "ms on rank 0, 31000 ms on rank 1; all ranks must pass the same",
               [&] { open(self, {.name = "own", .timeout = other ? 31s : 30s}); });
  expect_error(
      self, atoll::ErrorCode::mismatch,
      "opening communicator child: ranks disagree about CommunicatorOptions::timeout: not set on "
      "rank 0, 30000 ms on rank 1; all ranks must pass the same",
      [&] {
        atoll::CommunicatorOptions options{.name = "child", .parent = &self.comm};
        if (other) options.timeout = 30s;
        open(self, std::move(options));
      });
}

std::string aborted_text(const Rank& self, std::string_view name, std::string_view reason) {
  return "communicator " + std::string(name) + " was aborted by rank " +
         std::to_string(self.size() - 1) + ": " + std::string(reason);
}

// The last rank aborts a communicator that is idle.
void abort_idle(Rank& self) {
  auto comm = open(self, {.name = "idle"});
  Rank member{self.world, comm, self.stream, self.report};
  reduce(member, DType::f32, ReduceOp::sum, 100);
  self.comm.barrier(self.stream).synchronize();
  if (self.rank() == self.size() - 1) {
    comm.abort("no longer needed");
    comm.abort("only the first reason counts");
  }
  // Ranks that have not noticed the abort do so in allocate(), which starts no MPI operation.
  expect_error(self, atoll::ErrorCode::aborted, aborted_text(self, "idle", "no longer needed"),
               [&] { (void)atoll::allocate(comm.device(), 64, {comm}); });
  expect_error(self, atoll::ErrorCode::aborted, aborted_text(self, "idle", "no longer needed"),
               [&] { comm.barrier(self.stream).synchronize(); });
  expect_error(self, atoll::ErrorCode::aborted, aborted_text(self, "idle", "no longer needed"),
               [&] { (void)comm.split(0); });
}

// The other ranks wait for the last rank in an operation when it aborts the communicator.
void abort_busy(Rank& self) {
  Elements data(DType::f32, 1000);  // outlives the communicator, which waits for the operation
  auto comm = open(self, {.name = "busy"});
  auto stream = comm.device().stream({.name = "busy"});
  const std::string text = aborted_text(self, "busy", "a test");
  expect_error(self, atoll::ErrorCode::aborted, text, [&] {
    if (self.rank() == self.size() - 1) {
      std::this_thread::sleep_for(50ms);  // so that the other ranks usually wait already
      comm.abort("a test");
    }
    comm.all_reduce(data.view(), data.view(), ReduceOp::sum, stream).synchronize();
  });
}

}  // namespace

void check_settings(Rank& self) {
  check_deterministic(self);
  check_differences(self);
}

void check_abort(Rank& self) {
  abort_idle(self);
  // MPI cannot cancel operations, so the process could not end MPI after this check.
  if (self.backend() != "mpi") abort_busy(self);
  self.report.expect(!self.world.failure().has_value(), "abort() failed the World");
  reduce(self, DType::f32, ReduceOp::sum, 100);
}

}  // namespace conformance
