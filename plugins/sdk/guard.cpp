#include "sdk/guard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>
#include <system_error>

namespace atoll_sdk {
namespace {

// A fixed array, so that running out of memory can be told, too.
thread_local std::array<char, 2048> text{};

}  // namespace

Error system_error(std::string_view what, int error) {
  return {ATOLL_IO, fmt::format("{}: {}", what, std::generic_category().message(error))};
}

const char* last_error() noexcept { return text.data(); }

void set_last_error(std::string_view message) noexcept {
  const std::size_t length = std::min(message.size(), text.size() - 1);
  std::copy_n(message.data(), length, text.data());
  text[length] = '\0';
}

atoll_status record_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return ATOLL_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return ATOLL_INTERNAL;
  } catch (...) {
    set_last_error("unknown exception");
    return ATOLL_INTERNAL;
  }
}

}  // namespace atoll_sdk
