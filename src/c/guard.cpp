#include "c/guard.hpp"

#include <cstdlib>
#include <new>

#include "atoll/version.hpp"

namespace atoll_v1::atoll::c {
namespace {

thread_local std::string newest_text;

atoll_status remember(atoll_status status, const std::string& text) {
  newest_text = text;
  return status;
}

atoll_status translate(const char* function) {
  try {
    throw;
  } catch (const BadArgument& bad) {
    return remember(ATOLL_INVALID_ARGUMENT,
                    std::string(function) + ": the argument " + bad.name + " " + bad.why);
  } catch (const Error& error) {
    return remember(static_cast<atoll_status>(error.code()), error.what());
  } catch (const std::bad_alloc& error) {
    return remember(ATOLL_OUT_OF_MEMORY, std::string(function) + ": " + text_of(error));
  } catch (const std::exception& error) {
    return remember(ATOLL_INTERNAL, std::string(function) + ": " + error.what());
  } catch (...) {
    return remember(ATOLL_INTERNAL, std::string(function) + ": an unknown exception");
  }
}

}  // namespace

atoll_status status_of_exception(const char* function) noexcept {
  try {
    return translate(function);
  } catch (...) {  // there was no memory for the text
    newest_text.clear();
    return ATOLL_OUT_OF_MEMORY;
  }
}

char* copy_of(const std::string& text) {
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace atoll_v1::atoll::c

uint32_t atoll_c_abi() { return ATOLL_C_ABI; }
const char* atoll_version() { return atoll::version().data(); }
const char* atoll_last_error() { return atoll::c::newest_text.c_str(); }
const char* atoll_status_name(atoll_status status) {
  return status == ATOLL_OK ? "success" : name(static_cast<atoll::ErrorCode>(status)).data();
}
void atoll_free(char* text) { std::free(text); }
