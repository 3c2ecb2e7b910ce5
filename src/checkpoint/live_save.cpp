#include "checkpoint/live_save.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "checkpoint/safetensors.hpp"
#include "core/limits.hpp"
#include "world/process_failure.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// An update waits for the lock while the thread reads a piece from the memory: about 5 ms.
constexpr std::uint64_t piece_bytes = 16 << 20;

std::byte* at(const Buffer& buffer, std::uint64_t offset) {
  return static_cast<std::byte*>(buffer.data()) + offset;
}

}  // namespace

LiveSave::LiveSave(std::filesystem::path folder, std::vector<UnitTensors> tensors,
                   ShardIdentity identity, const Device& device, Stream stream, Limits limits)
    : folder_(std::move(folder)),
      identity_(std::move(identity)),
      stream_(std::move(stream)),
      device_(device),
      limits_(limits) {
  for (UnitTensors& unit : tensors) {
    Part& part = parts_.emplace_back();
    static_cast<UnitTensors&>(part) = std::move(unit);
    for (const auto& [name, view] : part.tensors) part.bytes += view.bytes();
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
  // Waits for enqueued tasks and copies, because they use this object and its memory.
  for (Part& part : parts_) settle(part.ready);
}

LiveSave::Part* LiveSave::find(std::size_t unit) {
  const auto found = std::ranges::find(parts_, unit, &Part::unit);
  return found == parts_.end() ? nullptr : &*found;
}

void LiveSave::before_update(std::size_t unit, Stream& stream) {
  Part* const part = find(unit);
  if (part == nullptr) return;
  if (limits_.decides_early) {
    copy_early(*part, stream);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (over_ || part->state != Part::State::live) return;
  part->ready = stream.enqueue_and_record([this, part] { copy_now(*part); });
}

bool LiveSave::wait_for_room(std::unique_lock<std::mutex>& lock, const Part& part) {
  changed_.wait(lock, [&] {
    return over_ || part.state != Part::State::live || copied_ + part.bytes <= limits_.most_copied;
  });
  return !over_ && part.state == Part::State::live;
}

void LiveSave::copy_now(Part& part) {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  if (wait_for_room(lock, part) && allocate_copy(lock, part)) {
    std::uint64_t offset = 0;
    for (const auto& [name, view] : part.tensors) {
      std::memcpy(at(part.copy, offset), view.data, view.bytes());
      offset += view.bytes();
    }
    part.state = Part::State::copied;
    copied_ += part.bytes;
  }
  stalled_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

bool LiveSave::allocate_copy(std::unique_lock<std::mutex>& lock, Part& part) {
  try {
    part.copy = device_.allocate_staging(part.bytes);
    return true;
  } catch (const Error&) {  // there is no memory for the copy, so the update waits
    changed_.wait(lock, [&] { return over_ || part.state != Part::State::live; });
    return false;
  }
}

void LiveSave::copy_early(Part& part, Stream& stream) {
  std::unique_lock lock(mutex_);
  if (over_ || part.state != Part::State::live) return;
  free_copies();
  Stamp idle;
  if (copied_ + part.bytes > limits_.most_copied) idle = stream.stamp();
  const bool copies = wait_for_room(lock, part);
  if (idle) waits_.push_back({idle, Clock::now().time_since_epoch() / std::chrono::nanoseconds(1)});
  if (!copies || !allocate_copy(lock, part)) return;
  std::uint64_t offset = 0;
  part.copy_begin = stream.stamp();
  for (const auto& [name, view] : part.tensors) {
    stream.copy(at(part.copy, offset), view.data, view.bytes());
    offset += view.bytes();
  }
  part.copy_end = stream.stamp();
  part.ready = stream.record();
  part.state = Part::State::copied;
  copied_ += part.bytes;
}

bool LiveSave::is_over() const {
  const std::lock_guard lock(mutex_);
  return over_;
}

double LiveSave::stalled_seconds() const {
  const std::lock_guard lock(mutex_);
  double all = stalled_s_;
  for (const Part& part : parts_) {
    const auto begin = part.copy_begin.ns(), end = part.copy_end.ns();
    if (begin && end) all += 1e-9 * static_cast<double>(*end - *begin);
  }
  for (const Wait& wait : waits_) {
    const auto idle = wait.idle.ns();
    if (idle && *idle < wait.end_ns) all += 1e-9 * static_cast<double>(wait.end_ns - *idle);
  }
  return all;
}

void LiveSave::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return over_; });
  if (problem_) std::rethrow_exception(problem_);
}

void LiveSave::run() noexcept {
  std::exception_ptr problem;
  try {
    stream_.synchronize();  // waits for the updates before the save
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
  std::uint64_t offset = 0;  // byte offset of the tensor in the copy
  for (const auto& [name, view] : part.tensors) {
    for (std::uint64_t done = 0; done < view.bytes();) {
      const std::uint64_t size = std::min(piece_bytes, view.bytes() - done);
      if (read_live(part, static_cast<const std::byte*>(view.data) + done, size, bytes)) {
        writer.write(bytes);
      } else {
        if (limits_.decides_early) part.ready.synchronize();
        writer.write(std::span(at(part.copy, offset + done), size));
      }
      done += size;
    }
    offset += view.bytes();
  }
}

void LiveSave::read(const std::byte* from, std::vector<std::byte>& bytes) {
  if (device_.kind() == DeviceKind::cpu) {
    std::memcpy(bytes.data(), from, bytes.size());
    return;
  }
  stream_.copy(bytes.data(), from, bytes.size());
  stream_.synchronize();
}

bool LiveSave::read_live(const Part& part, const std::byte* from, std::uint64_t size,
                         std::vector<std::byte>& bytes) {
  bytes.resize(size);
  std::unique_lock lock(mutex_);
  if (stopping_) throw Error(ErrorCode::aborted, "the save was given up");
  if (part.state == Part::State::live) {
    read(from, bytes);
    return true;
  }
  if (!limits_.decides_early) return false;
  // If the update has not begun when the read has ended, the update has not changed what was read.
  lock.unlock();
  if (part.ready.happened()) return false;
  read(from, bytes);
  return !part.ready.happened();
}

void LiveSave::finish_part(Part& part) {
  {
    const std::lock_guard lock(mutex_);
    part.state = Part::State::written;
    free_copies();
  }
  changed_.notify_all();
}

// On a GPU, an enqueued copy of a part runs even if the part was written to the file before. So its
// memory is freed only after the copy.
void LiveSave::free_copies() {
  for (Part& part : parts_) {
    const bool is_made = !limits_.decides_early || part.ready.happened();
    if (part.state != Part::State::written || part.copy.data() == nullptr || !is_made) continue;
    copied_ -= part.bytes;
    part.copy = {};
  }
}

}  // namespace atoll_v1::atoll::fsdp
