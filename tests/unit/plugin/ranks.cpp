#include "unit/plugin/ranks.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

namespace plugin_ranks {
namespace {

// A 16-bit floating point format: the number of mantissa bits and the bias of the exponent.
struct Narrow {
  int mantissa;
  int bias;
};
constexpr Narrow bf16{7, 127};
constexpr Narrow f16{10, 15};

float widen(std::uint16_t bits, Narrow format) {
  const int exponent_bits = 15 - format.mantissa;
  const int exponent = (bits >> format.mantissa) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa) - 1);
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  const int hidden = exponent == 0 ? 0 : 1 << format.mantissa;
  const int power = std::max(exponent, 1) - format.bias - format.mantissa;
  return sign * std::ldexp(static_cast<float>(mantissa + hidden), power);
}

// Converts a value to a 16-bit format and rounds to nearest even. Supports finite normal values
// only.
std::uint16_t narrow(float value, Narrow format) {
  if (value == 0.0F) return std::signbit(value) ? 0x8000 : 0;
  const int exponent = std::ilogb(value);
  const float scaled = std::ldexp(std::fabs(value), format.mantissa - exponent);
  auto mantissa = static_cast<int>(std::nearbyint(scaled));
  // 1 if rounding carried into the next power of two, else 0.
  const int shift = mantissa >> (format.mantissa + 1);
  mantissa >>= shift;
  const int biased = exponent + shift + format.bias;
  const int bits = (std::signbit(value) ? 0x8000 : 0) | (biased << format.mantissa) |
                   (mantissa & ((1 << format.mantissa) - 1));
  return static_cast<std::uint16_t>(bits);
}

template <typename T>
T load_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
T combine(T a, T b, std::int32_t op) {
  if (op == ATOLL_MIN) return std::min(a, b);
  if (op == ATOLL_MAX) return std::max(a, b);
  return static_cast<T>(a + b);
}

// Reduces the values in place in an adjacent-pair tree and returns the result. An odd last value
// moves up a level unchanged.
template <typename T>
T tree(std::vector<T>& values, std::int32_t op) {
  const auto ranks = static_cast<T>(values.size());
  for (std::size_t left = values.size(); left > 1; left = (left + 1) / 2) {
    for (std::size_t i = 0; 2 * i < left; ++i) {
      const bool pair = 2 * i + 1 < left;
      values[i] = pair ? combine(values[2 * i], values[2 * i + 1], op) : values[2 * i];
    }
  }
  return op == ATOLL_AVG ? static_cast<T>(values[0] / ranks) : values[0];
}

// Returns a function that loads an element and a function that stores one. The store function
// returns the size of an element, and stores nothing if the address is null.
template <typename T>
auto plain() {
  return std::pair([](const std::byte* at) { return load_as<T>(at); },
                   [](std::byte* at, T value) {
                     if (at != nullptr) std::memcpy(at, &value, sizeof(T));
                     return sizeof(T);
                   });
}

auto half(Narrow format) {
  return std::pair(
      [format](const std::byte* at) { return widen(load_as<std::uint16_t>(at), format); },
      [format](std::byte* at, float value) {
        const auto bits = narrow(value, format);
        if (at != nullptr) std::memcpy(at, &bits, sizeof(bits));
        return sizeof(bits);
      });
}

// Calls `use` with a value of the type in which the dtype is computed, and with the load and store
// functions of the dtype.
template <typename Use>
void with_dtype(std::int32_t dtype, Use use) {
  switch (dtype) {
    case ATOLL_F32:
      return use(float{}, plain<float>());
    case ATOLL_BF16:
      return use(float{}, half(bf16));
    case ATOLL_F16:
      return use(float{}, half(f16));
    case ATOLL_F64:
      return use(double{}, plain<double>());
    case ATOLL_I32:
      return use(std::int32_t{}, plain<std::int32_t>());
    case ATOLL_I64:
      return use(std::int64_t{}, plain<std::int64_t>());
    case ATOLL_U8:
    case ATOLL_F8E4M3:  // operations only move the 8-bit floating-point types
    case ATOLL_F8E5M2:
    case ATOLL_BOOL:
      return use(std::uint8_t{}, plain<std::uint8_t>());
    case ATOLL_I8:
      return use(std::int8_t{}, plain<std::int8_t>());
    case ATOLL_U16:
      return use(std::uint16_t{}, plain<std::uint16_t>());
    case ATOLL_U32:
      return use(std::uint32_t{}, plain<std::uint32_t>());
    case ATOLL_U64:
      return use(std::uint64_t{}, plain<std::uint64_t>());
    case ATOLL_I16:
      return use(std::int16_t{}, plain<std::int16_t>());
    default:
      throw std::logic_error("unknown dtype");
  }
}

}  // namespace

const atoll_backend& load(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  auto entry = reinterpret_cast<atoll_backend_entry_fn>(::dlsym(library, "atoll_backend_entry_v1"));
  if (entry == nullptr) throw std::runtime_error(path + " has no entry");
  return *entry();
}

FakeCore::FakeCore() : core_{} {
  core_.size = sizeof(core_);
  core_.ctx = this;
  core_.log = [](void*, std::int32_t, const char*) {};
  core_.put = &FakeCore::put;
  core_.get = &FakeCore::get;
  core_.get_all = &FakeCore::get_all;
}

std::string FakeCore::get(const std::string& key) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return store_.contains(key); });
  return store_.at(key);
}

atoll_status FakeCore::put(void* ctx, const char* key, const void* value, std::size_t n) {
  auto& self = *static_cast<FakeCore*>(ctx);
  const std::lock_guard lock(self.mutex_);
  self.store_[key] = std::string(static_cast<const char*>(value), n);
  self.changed_.notify_all();
  return ATOLL_OK;
}

atoll_status FakeCore::get(void* ctx, const char* key, void* value, std::size_t* n,
                           std::int64_t timeout_ns) {
  auto& self = *static_cast<FakeCore*>(ctx);
  std::unique_lock lock(self.mutex_);
  const auto end = std::chrono::system_clock::now() +
                   std::chrono::nanoseconds(std::min<std::int64_t>(timeout_ns, 60'000'000'000));
  if (!self.changed_.wait_until(lock, end, [&] { return self.store_.contains(key); })) {
    return ATOLL_TIMEOUT;
  }
  const auto& found = self.store_.at(key);
  const bool fits = found.size() <= *n;
  *n = found.size();
  if (!fits) return ATOLL_INVALID_ARGUMENT;
  if (!found.empty()) std::memcpy(value, found.data(), found.size());
  return ATOLL_OK;
}

atoll_status FakeCore::get_all(void* ctx, const char* const* keys, std::int32_t n,
                               void* const* values, std::size_t* sizes, std::int64_t timeout_ns) {
  atoll_status status = ATOLL_OK;
  for (std::int32_t i = 0; i < n && status == ATOLL_OK; ++i)
    status = get(ctx, keys[i], values[i], &sizes[i], timeout_ns);
  return status;
}

std::string text(const Layout& layout) {
  std::string result;
  for (const int host : layout) result += std::to_string(host);
  return result;
}

Group::Group(const Layout& layout, int rank, const GroupOptions& options)
    : options_(options), group_{} {
  for (std::size_t r = 0; r < layout.size(); ++r) {
    const char* rails = options_.rails.empty() ? nullptr : options_.rails[r].c_str();
    const int device = options_.memory == ATOLL_MEMORY_CUDA ? static_cast<int>(r) : -1;
    placements_.push_back({sizeof(atoll_placement), 2 * static_cast<int>(r) + 1, layout[r], device,
                           "127.0.0.1", rails});
  }
  for (const auto& placement : placements_) pointers_.push_back(&placement);
  group_.size = sizeof(group_);
  group_.rank = rank;
  group_.nranks = static_cast<std::int32_t>(layout.size());
  group_.world_rank = 2 * rank + 1;
  group_.world_size = 2 * group_.nranks;
  group_.memory = options_.memory;
  group_.id = options_.id.c_str();
  group_.name = "shard";
  group_.placements = pointers_.data();
  group_.token = options_.token.c_str();
  group_.timeout_ns = options_.timeout_ns;
  group_.tuning = options_.tuning.c_str();
  group_.deterministic = options_.deterministic;
  group_.host_ranks = options_.host_ranks;
  group_.owns_process = 1;
  group_.checksum = options_.checksum;
  group_.cut_ns = options_.cut_ns;
  group_.compute_units = options_.compute_units;
}

Rank::Rank(const atoll_backend& backend, atoll_comm* comm, const Layout& layout, int rank,
           std::int32_t memory)
    : backend_(backend),
      comm_(comm),
      rank_(rank),
      size_(static_cast<int>(layout.size())),
      memory_(memory) {}

Rank::Rank(Rank&& other) noexcept
    : timeout_ns(other.timeout_ns),
      backend_(other.backend_),
      comm_(std::exchange(other.comm_, nullptr)),
      rank_(other.rank_),
      size_(other.size_),
      memory_(other.memory_),
      sequence_(other.sequence_) {}

Rank::~Rank() { close(); }

void Rank::close() {
  if (comm_ != nullptr) backend_.close(std::exchange(comm_, nullptr));
}

atoll_operation Rank::operation(std::int32_t kind, std::int32_t dtype, const void* src, void* dst,
                                std::uint64_t count) const {
  atoll_operation o{};
  o.factor = 1.0;
  o.size = sizeof(o);
  o.kind = kind;
  o.dtype = dtype;
  o.memory = memory_;
  o.src = src;
  o.dst = dst;
  o.count = count;
  o.timeout_ns = timeout_ns;
  return o;
}

Result Rank::submit(std::vector<atoll_operation> operations) {
  std::vector<atoll_operation*> pointers;
  for (auto& operation : operations) {
    operation.sequence = sequence_++;
    pointers.push_back(&operation);
  }
  return told(backend_.submit(comm_, pointers.data(), static_cast<std::int32_t>(pointers.size())));
}

Result Rank::submit(const atoll_operation& operation) {
  return submit(std::vector<atoll_operation>{operation});
}

Result Rank::async_error() { return told(backend_.async_error(comm_)); }

Result Rank::register_memory(void* memory, std::size_t bytes) {
  return told(backend_.register_memory(comm_, memory, bytes));
}

Result Rank::deregister_memory(void* memory) {
  return told(backend_.deregister_memory(comm_, memory));
}

Result Rank::register_caller_memory(void* memory, std::size_t bytes, std::string& slow) {
  const char* why = nullptr;
  Result result = told(backend_.register_caller_memory(comm_, memory, bytes, &why));
  slow = why == nullptr ? "" : why;
  return result;
}

Result Rank::deregister_caller_memory(void* memory) {
  return told(backend_.deregister_caller_memory(comm_, memory));
}

Result Rank::told(atoll_status status) const {
  Result result;
  result.status = status;
  if (status != ATOLL_OK) result.text = backend_.last_error(comm_);
  return result;
}

void in_threads(int n, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(n));
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < n; ++i) {
      threads.emplace_back([&, i] {
        try {
          body(i);
        } catch (...) {
          failures[static_cast<std::size_t>(i)] = std::current_exception();
        }
      });
    }
  }
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

std::vector<Result> until_one_fails(std::vector<Rank>& ranks,
                                    const std::function<Result(Rank&)>& body, int gone) {
  std::vector<Result> results(ranks.size());
  on_ranks(ranks, [&](Rank& rank) {
    auto& result = results[static_cast<std::size_t>(rank.rank())];
    result = body(rank);
    if (result.status == ATOLL_OK) return;
    for (auto& other : ranks) {
      if (other.rank() != gone) other.abort();
    }
  });
  return results;
}

std::vector<Rank> open_ranks(const atoll_backend& backend, FakeCore& core, const Layout& layout,
                             const GroupOptions& options) {
  std::vector<atoll_comm*> comms(layout.size(), nullptr);
  in_threads(static_cast<int>(layout.size()), [&](int rank) {
    const Group group(layout, rank, options);
    if (backend.open(&core.services(), &group.get(), &comms[static_cast<std::size_t>(rank)]) !=
        ATOLL_OK) {
      throw std::runtime_error(backend.last_error(nullptr));
    }
  });
  std::vector<Rank> ranks;
  ranks.reserve(layout.size());
  for (std::size_t r = 0; r < layout.size(); ++r) {
    ranks.emplace_back(backend, comms[r], layout, static_cast<int>(r), options.memory);
  }
  return ranks;
}

void on_ranks(std::vector<Rank>& ranks, const std::function<void(Rank&)>& body) {
  in_threads(static_cast<int>(ranks.size()),
             [&](int rank) { body(ranks[static_cast<std::size_t>(rank)]); });
}

void connect_ranks(std::vector<Rank>& ranks) {
  on_ranks(ranks, [](Rank& rank) {
    const Result result = rank.submit(rank.operation(ATOLL_BARRIER, 0, nullptr, nullptr, 0));
    if (result.status != ATOLL_OK) throw std::runtime_error(result.text);
  });
}

void close_ranks(std::vector<Rank>& ranks) {
  on_ranks(ranks, [](Rank& rank) { rank.close(); });
}

void run_ranks(const atoll_backend& backend, const Layout& layout,
               const std::function<void(Rank&)>& body, const GroupOptions& options) {
  FakeCore core;
  auto ranks = open_ranks(backend, core, layout, options);
  on_ranks(ranks, body);
  close_ranks(ranks);
}

std::size_t size_of(std::int32_t dtype) {
  std::size_t size = 0;
  with_dtype(dtype, [&](auto value, auto codec) { size = codec.second(nullptr, value); });
  return size;
}

Bytes input(std::int32_t dtype, int rank, std::uint64_t count, int salt) {
  const std::size_t element = size_of(dtype);
  Bytes bytes(count * element);
  with_dtype(dtype, [&](auto value, auto codec) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto mixed = (i * 7 + static_cast<std::uint64_t>(rank * 5 + salt * 3)) % 13;
      codec.second(bytes.data() + i * element, static_cast<decltype(value)>(mixed));
    }
  });
  return bytes;
}

Bytes noisy_input(int rank, std::uint64_t count) {
  Bytes bytes(count * sizeof(float));
  std::uint32_t state = 12345U + static_cast<std::uint32_t>(rank) * 7919U;
  for (std::uint64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    const auto value =
        std::ldexp(static_cast<float>(state >> 8), static_cast<int>(state % 23) - 30);
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(float));
  }
  return bytes;
}

Bytes reference_reduce(const std::vector<Bytes>& parts, std::int32_t dtype, std::int32_t op) {
  const std::size_t element = size_of(dtype);
  Bytes result(parts.front().size());
  with_dtype(dtype, [&](auto value, auto codec) {
    std::vector<decltype(value)> values(parts.size());
    for (std::size_t at = 0; at < result.size(); at += element) {
      for (std::size_t p = 0; p < parts.size(); ++p) values[p] = codec.first(parts[p].data() + at);
      codec.second(result.data() + at, tree(values, op));
    }
  });
  return result;
}

}  // namespace plugin_ranks
