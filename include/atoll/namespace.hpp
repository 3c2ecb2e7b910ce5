// Declares the namespace of the library. The C library declares a function `atoll` in the global
// namespace, so a global namespace cannot have that name. The library therefore uses
// `atoll_v1::atoll`, and the using-directive below lets users write `atoll::World`. Do not write
// `::atoll::World`: that name, like `std::atoll`, refers to the C function.
#pragma once

#include "atoll/export.hpp"

namespace atoll_v1::atoll {}
using namespace atoll_v1;  // NOLINT(google-global-names-in-headers): allows atoll::World

#if __cplusplus <= 201703L
#error "the headers of atoll need C++20: compile with -std=c++20 or later"
#endif
#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#error "the old ABI of std::string does not match libatoll: leave out _GLIBCXX_USE_CXX11_ABI=0"
#endif
#ifdef _GLIBCXX_DEBUG
#error "_GLIBCXX_DEBUG changes container layouts, so they do not match libatoll: compile without it"
#endif
