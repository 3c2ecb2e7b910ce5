// Marks the symbols that the shared libraries export. All other symbols are hidden.
#pragma once

#if defined(__GNUC__)
#define ATOLL_API __attribute__((visibility("default")))   // a class or function of the public API
#define ATOLL_LOCAL __attribute__((visibility("hidden")))  // a hidden member of an exported class
#else
#define ATOLL_API
#define ATOLL_LOCAL
#endif
