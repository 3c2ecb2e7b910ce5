#include "fsdp/live_save.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.hpp"
#include "core/thread.hpp"
#include "fsdp/safetensors.hpp"
#include "fsdp/setup.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// An update waits for the lock while the thread reads a piece from the memory: about 5 ms.
constexpr std::uint64_t piece_bytes = 16 << 20;

std::byte* at(const Buffer& buffer, std::uint64_t offset) {
  return static_cast<std::byte*>(buffer.data()) + offset;
}

}  // namespace

LiveSave::LiveSave(std::filesystem::path folder, std::vector<BucketTensors> tensors,
                   ShardIdentity identity, const Device& device, Stream stream, Limits limits)
    : folder_(std::move(folder)),
      identity_(std::move(identity)),
      stream_(std::move(stream)),
      device_(device),
      limits_(limits) {
  for (BucketTensors& bucket : tensors) {
    const std::size_t unit = state_of(*bucket.unit).index;
    if (parts_.empty() || parts_.back().unit != unit) parts_.emplace_back().unit = unit;
    for (auto& tensor : bucket.tensors) {
      parts_.back().bytes += tensor.second.bytes();
      parts_.back().tensors.push_back(std::move(tensor));
    }
  }
  thread_ = start_thread([this] { run(); });
}

LiveSave::~LiveSave() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  // Copies that are still being made write to memory that is about to be freed.
  for (Part& part : parts_) {
    if (part.copy.data() != nullptr) settle(part.ready);
  }
}

LiveSave::Part* LiveSave::find(std::size_t unit) {
  const auto found = std::ranges::find(parts_, unit, &Part::unit);
  return found == parts_.end() ? nullptr : &*found;
}

void LiveSave::before_update(std::size_t unit, Stream& stream) {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  make_room_and_copy(lock, unit, stream);
  stalled_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

void LiveSave::make_room_and_copy(std::unique_lock<std::mutex>& lock, std::size_t unit,
                                  Stream& stream) {
  Part* const part = find(unit);
  if (part == nullptr || over_) return;
  changed_.wait(lock, [&] {
    return over_ || part->state != Part::State::live ||
           copied_ + part->bytes <= limits_.most_copied;
  });
  if (over_ || part->state != Part::State::live) return;
  part->copy = device_.allocate_staging(part->bytes);
  std::uint64_t offset = 0;
  part->copy_begin = stream.stamp();
  for (const auto& [name, view] : part->tensors) {
    stream.copy(at(part->copy, offset), view.data, view.bytes());
    offset += view.bytes();
  }
  part->copy_end = stream.stamp();
  part->ready = stream.record();
  part->state = Part::State::copied;
  copied_ += part->bytes;
}

bool LiveSave::is_over() const {
  const std::lock_guard lock(mutex_);
  return over_;
}

double LiveSave::stalled_seconds() const {
  const std::lock_guard lock(mutex_);
  return stalled_s_;
}

void LiveSave::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return over_; });
  if (problem_) std::rethrow_exception(problem_);
}

void LiveSave::run() noexcept {
  std::exception_ptr problem;
  try {
    stream_.synchronize();  // the updates before the save
    write_all();
  } catch (...) {
    problem = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    problem_ = problem;
    over_ = true;
  }
  changed_.notify_all();
}

void LiveSave::write_all() {
  std::vector<SafetensorsDeclaration> declared;
  for (const Part& part : parts_) {
    for (const auto& [name, view] : part.tensors)
      declared.push_back({name, view.dtype, {view.count}});
  }
  SafetensorsWriter writer(shard_path(folder_, identity_.shard, identity_.shards), declared,
                           shard_metadata(identity_), StoredDigests::blocks);
  for (Part& part : parts_) {
    write_part(writer, part);
    finish_part(part);
  }
  writer.close();
}

void LiveSave::write_part(SafetensorsWriter& writer, Part& part) {
  std::vector<std::byte> bytes;
  std::uint64_t offset = 0;  // in the copy
  for (const auto& [name, view] : part.tensors) {
    for (std::uint64_t done = 0; done < view.bytes();) {
      const std::uint64_t size = std::min(piece_bytes, view.bytes() - done);
      if (read_live(part, static_cast<const std::byte*>(view.data) + done, size, bytes)) {
        writer.write(bytes);
      } else {
        part.ready.synchronize();
        writer.write(std::span(at(part.copy, offset + done), size));
      }
      done += size;
    }
    offset += view.bytes();
  }
}

bool LiveSave::read_live(const Part& part, const std::byte* from, std::uint64_t size,
                         std::vector<std::byte>& bytes) {
  bytes.resize(size);
  const std::lock_guard lock(mutex_);
  if (stopping_) throw Error(ErrorCode::aborted, "the save was given up");
  if (part.state != Part::State::live) return false;
  stream_.copy(bytes.data(), from, size);
  stream_.synchronize();
  return true;
}

void LiveSave::finish_part(Part& part) {
  {
    const std::lock_guard lock(mutex_);
    if (part.state == Part::State::live) part.state = Part::State::written;
  }
  if (part.state == Part::State::copied) {
    // An update may have begun the copy after the last piece was read, so it may still be written.
    settle(part.ready);
    const std::lock_guard lock(mutex_);
    copied_ -= part.bytes;
    if (part.copy_begin.ns() && part.copy_end.ns())
      stalled_s_ += 1e-9 * static_cast<double>(*part.copy_end.ns() - *part.copy_begin.ns());
    part.copy = {};
    part.state = Part::State::written;
  }
  changed_.notify_all();
}

}  // namespace atoll_v1::atoll::fsdp
