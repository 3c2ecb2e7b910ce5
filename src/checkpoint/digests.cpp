#include "checkpoint/digests.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <new>
#include <utility>

namespace atoll_v1::atoll::fsdp {

std::uint64_t digest_of(std::span<const std::byte> data) noexcept {
  return XXH3_64bits(data.data(), data.size());
}

std::uint64_t digest_of(std::string_view text) noexcept {
  return digest_of(std::as_bytes(std::span(text)));
}

std::string digest_text(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

BlockDigests::BlockDigests() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

BlockDigests::~BlockDigests() = default;

void BlockDigests::Free::operator()(XXH3_state_s* state) const noexcept { XXH3_freeState(state); }

void BlockDigests::add(std::span<const std::byte> data) {
  while (!data.empty()) {
    const std::size_t n = std::min<std::size_t>(data.size(), digest_block_bytes - in_block_);
    XXH3_64bits_update(state_.get(), data.data(), n);
    in_block_ += n;
    data = data.subspan(n);
    if (in_block_ == digest_block_bytes) finish_block();
  }
}

std::string BlockDigests::take() {
  if (in_block_ > 0) finish_block();
  return std::exchange(text_, {});
}

void BlockDigests::finish_block() {
  text_ += digest_text(XXH3_64bits_digest(state_.get()));
  XXH3_64bits_reset(state_.get());
  in_block_ = 0;
}

}  // namespace atoll_v1::atoll::fsdp
