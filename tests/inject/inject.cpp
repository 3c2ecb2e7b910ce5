// Makes one call of a program fail. A rank preloads this library, which counts the calls of atoll's
// libraries and of the program, and makes the chosen call fail.
//
// The library identifies a call by its function, its call stack, and its number among the calls
// from this stack, because threads change the order of all calls from run to run, but rarely the
// stacks. The hash of a stack covers each return address as an object and an offset, so it is equal
// in all runs of one build.
//
// INJECT_LOG=FILE writes a line for each function and stack at exit: function, hash, number of
// calls, and the stack. INJECT_FAIL=FUNCTION:HASH:K makes the K-th call (from 1) fail with the
// usual error of the function. The library creates the file INJECT_HIT=FILE when that happens.
//
// A call counts if its innermost caller, other than the C and C++ libraries, fmt and spdlog, is a
// library of atoll or the program. Calls of hwloc, OpenMP or oneDNN do not count. Calls on standard
// streams never fail.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <link.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::size_t most_frames = 40;
constexpr std::size_t slots = 1U << 15;  // a power of two, several times the number of points

struct Frame {
  const link_map* object = nullptr;
  std::uintptr_t offset = 0;
};

struct Stack {
  Frame frames[most_frames];
  std::size_t size = 0;
};

struct Point {
  const char* function = nullptr;
  std::uint64_t hash = 0;
  std::uint64_t calls = 0;
  Stack stack;
};

enum class Mode {
  off,
  log,
  fail
};

Point table[slots];
std::atomic_flag table_lock = ATOMIC_FLAG_INIT;
std::atomic<Mode> mode{Mode::off};  // off until main() starts
Mode wanted_mode = Mode::off;
int (*real_main)(int, char**, char**) = nullptr;
const char* log_file = nullptr;
const char* hit_file = nullptr;
char chosen_function[32];
std::uint64_t chosen_hash = 0;
std::uint64_t chosen_call = 0;
std::atomic<std::uint64_t> chosen_calls{0};
thread_local __attribute__((tls_model("initial-exec"))) bool inside = false;

const char* base_name(const link_map* object) {
  const char* const slash = std::strrchr(object->l_name, '/');
  return slash == nullptr ? object->l_name : slash + 1;
}

bool starts_with(const char* text, const char* start) {
  return std::strncmp(text, start, std::strlen(start)) == 0;
}

// The program itself has an empty name.
bool is_atoll(const link_map* object) {
  const char* const name = base_name(object);
  return *name == '\0' || starts_with(name, "libatoll");
}

bool acts_for_its_caller(const link_map* object) {
  const char* const name = base_name(object);
  for (const char* start : {"libc.", "libstdc++.", "libgcc_s.", "libfmt.", "libspdlog."}) {
    if (starts_with(name, start)) return true;
  }
  return false;
}

const link_map* own_object() {
  static const link_map* const found = [] {
    dl_find_object result{};
    _dl_find_object(table, &result);
    return result.dlfo_link_map;
  }();
  return found;
}

_Unwind_Reason_Code add_frame(_Unwind_Context* context, void* data) {
  auto& stack = *static_cast<Stack*>(data);
  const std::uintptr_t address = _Unwind_GetIP(context);
  dl_find_object result{};
  if (address == 0 || _dl_find_object(reinterpret_cast<void*>(address - 1), &result) != 0) {
    return _URC_END_OF_STACK;
  }
  const link_map* const object = result.dlfo_link_map;
  if (object == own_object()) return _URC_NO_REASON;
  stack.frames[stack.size++] = {object, address - object->l_addr};
  return stack.size == most_frames ? _URC_END_OF_STACK : _URC_NO_REASON;
}

bool called_by_atoll(const Stack& stack) {
  for (std::size_t i = 0; i < stack.size; ++i) {
    if (is_atoll(stack.frames[i].object)) return true;
    if (!acts_for_its_caller(stack.frames[i].object)) return false;
  }
  return false;
}

// FNV-1a.
std::uint64_t hash_of(const char* function, const Stack& stack) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](const void* data, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
    }
  };
  add(function, std::strlen(function));
  for (std::size_t i = 0; i < stack.size; ++i) {
    const char* const name = base_name(stack.frames[i].object);
    add(name, std::strlen(name));
    add(&stack.frames[i].offset, sizeof stack.frames[i].offset);
  }
  return hash;
}

void count(const char* function, std::uint64_t hash, const Stack& stack) {
  while (table_lock.test_and_set(std::memory_order_acquire)) {
  }
  std::size_t slot = hash % slots;
  while (table[slot].calls != 0 && table[slot].hash != hash) slot = (slot + 1) % slots;
  if (table[slot].calls++ == 0) {
    table[slot].function = function;
    table[slot].hash = hash;
    table[slot].stack = stack;
  }
  table_lock.clear(std::memory_order_release);
}

void note_hit() {
  if (hit_file == nullptr) return;
  const long fd = ::syscall(SYS_openat, AT_FDCWD, hit_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) ::syscall(SYS_close, fd);
}

// Counts this call, and returns whether it must fail.
bool fails(const char* function) {
  const Mode now = mode.load(std::memory_order_relaxed);
  if (now == Mode::off || inside) return false;
  if (now == Mode::fail && std::strcmp(function, chosen_function) != 0) return false;
  inside = true;
  const int error = errno;
  bool result = false;
  Stack stack;
  _Unwind_Backtrace(add_frame, &stack);
  if (called_by_atoll(stack)) {
    const std::uint64_t hash = hash_of(function, stack);
    if (now == Mode::log) {
      count(function, hash, stack);
    } else if (hash == chosen_hash && ++chosen_calls == chosen_call) {
      note_hit();
      result = true;
    }
  }
  errno = error;
  inside = false;
  return result;
}

__attribute__((constructor)) void start() {
  own_object();
  hit_file = std::getenv("INJECT_HIT");
  log_file = std::getenv("INJECT_LOG");
  if (log_file != nullptr) wanted_mode = Mode::log;
  const char* const point = std::getenv("INJECT_FAIL");
  if (point == nullptr) return;
  if (std::sscanf(point, "%31[a-z_0-9]:%lx:%lu", chosen_function, &chosen_hash, &chosen_call) !=
      3) {
    std::fprintf(stderr, "inject: INJECT_FAIL=%s: expected FUNCTION:HASH:K\n", point);
    std::_Exit(2);
  }
  wanted_mode = Mode::fail;
}

int start_program(int count, char** arguments, char** environment) {
  mode = wanted_mode;
  return real_main(count, arguments, environment);
}

__attribute__((destructor)) void write_log() {
  if (mode.exchange(Mode::off) != Mode::log) return;
  std::FILE* const file = std::fopen(log_file, "w");
  if (file == nullptr) return;
  for (const Point& point : table) {
    if (point.calls == 0) continue;
    std::fprintf(file, "%s %lx %lu", point.function, point.hash, point.calls);
    for (std::size_t i = 0; i < point.stack.size; ++i) {
      const Frame& frame = point.stack.frames[i];
      const bool program = *frame.object->l_name == '\0';
      std::fprintf(file, " %s+%lx", program ? "program" : frame.object->l_name, frame.offset);
    }
    std::fputc('\n', file);
  }
  std::fclose(file);
}

template <class Function>
Function* next(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Returns false for standard streams, so that a rank can report its error, and for an eventfd: its
// transfers cannot fail. fstat() reports no file type for an eventfd.
bool can_fail(int fd) {
  struct stat info {};
  return fd > STDERR_FILENO && ::fstat(fd, &info) == 0 && (info.st_mode & S_IFMT) != 0;
}

// Returns the usual error of a transfer: a reset connection, or `of_file`.
int transfer_error(int fd, int of_file) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? ECONNRESET : of_file;
}

template <class Result>
Result failed(int error, Result result) {
  errno = error;
  return result;
}

}  // namespace

#define NEXT(name) static const auto real = next(&::name, #name)

// Defines a function that returns `result` with `error` in errno when it fails.
#define FAILING(type, name, parameters, arguments, error, result) \
  extern "C" type name parameters {                               \
    NEXT(name);                                                   \
    if (fails(#name)) return failed<type>(error, result);         \
    return real arguments;                                        \
  }

// Defines a transfer, whose first parameter is the descriptor `fd`.
#define TRANSFER(name, parameters, arguments, of_file)                                         \
  extern "C" ssize_t name parameters {                                                         \
    NEXT(name);                                                                                \
    if (can_fail(fd) && fails(#name)) return failed(transfer_error(fd, of_file), ssize_t{-1}); \
    return real arguments;                                                                     \
  }

// Counts calls only from main() on: if a constructor of a library gets no memory, no program can
// start, which is not a defect of atoll.
extern "C" int __libc_start_main(int (*main)(int, char**, char**), int count, char** arguments,
                                 void (*init)(), void (*fini)(), void (*loader_fini)(),
                                 void* stack) {
  NEXT(__libc_start_main);
  real_main = main;
  return real(start_program, count, arguments, init, fini, loader_fini, stack);
}

// --- memory ---

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  return fails("malloc") ? failed<void*>(ENOMEM, nullptr) : __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  return fails("calloc") ? failed<void*>(ENOMEM, nullptr) : __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  return fails("realloc") ? failed<void*>(ENOMEM, nullptr) : __libc_realloc(old, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  return fails("memalign") ? failed<void*>(ENOMEM, nullptr) : __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return fails("aligned_alloc") ? failed<void*>(ENOMEM, nullptr)
                                : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  if (fails("posix_memalign")) return ENOMEM;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}

FAILING(void*, mmap, (void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset),
        (at, bytes, protection, flags, fd, offset), ENOMEM, MAP_FAILED)
FAILING(void*, mmap64,
        (void* at, std::size_t bytes, int protection, int flags, int fd, off64_t offset),
        (at, bytes, protection, flags, fd, offset), ENOMEM, MAP_FAILED)
FAILING(int, mprotect, (void* at, std::size_t bytes, int protection), (at, bytes, protection),
        ENOMEM, -1)
FAILING(int, memfd_create, (const char* name, unsigned flags), (name, flags), EMFILE, -1)

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) {
  NEXT(pthread_create);
  return fails("pthread_create") ? EAGAIN : real(thread, attributes, body, argument);
}

// --- files ---

#define OPENING(name, parameters, arguments)                   \
  extern "C" int name parameters {                             \
    NEXT(name);                                                \
    mode_t permissions = 0;                                    \
    if ((flags & (O_CREAT | __O_TMPFILE)) != 0) {              \
      va_list rest;                                            \
      va_start(rest, flags);                                   \
      permissions = va_arg(rest, mode_t);                      \
      va_end(rest);                                            \
    }                                                          \
    return fails(#name) ? failed(EMFILE, -1) : real arguments; \
  }
OPENING(open, (const char* path, int flags, ...), (path, flags, permissions))
OPENING(open64, (const char* path, int flags, ...), (path, flags, permissions))
OPENING(openat, (int folder, const char* path, int flags, ...), (folder, path, flags, permissions))
OPENING(openat64, (int folder, const char* path, int flags, ...),
        (folder, path, flags, permissions))
FAILING(std::FILE*, fopen, (const char* path, const char* how), (path, how), EMFILE, nullptr)
FAILING(std::FILE*, fopen64, (const char* path, const char* how), (path, how), EMFILE, nullptr)
FAILING(DIR*, opendir, (const char* path), (path), EMFILE, nullptr)
FAILING(DIR*, fdopendir, (int fd), (fd), ENOMEM, nullptr)
FAILING(dirent*, readdir, (DIR * folder), (folder), EIO, nullptr)
TRANSFER(read, (int fd, void* data, std::size_t bytes), (fd, data, bytes), EIO)
TRANSFER(pread, (int fd, void* data, std::size_t bytes, off_t at), (fd, data, bytes, at), EIO)
TRANSFER(pread64, (int fd, void* data, std::size_t bytes, off64_t at), (fd, data, bytes, at), EIO)
TRANSFER(readv, (int fd, const iovec* parts, int count), (fd, parts, count), EIO)
TRANSFER(write, (int fd, const void* data, std::size_t bytes), (fd, data, bytes), ENOSPC)
TRANSFER(pwrite, (int fd, const void* data, std::size_t bytes, off_t at), (fd, data, bytes, at),
         ENOSPC)
TRANSFER(pwrite64, (int fd, const void* data, std::size_t bytes, off64_t at), (fd, data, bytes, at),
         ENOSPC)
TRANSFER(writev, (int fd, const iovec* parts, int count), (fd, parts, count), ENOSPC)
FAILING(int, fsync, (int fd), (fd), EIO, -1)
FAILING(int, fdatasync, (int fd), (fd), EIO, -1)
FAILING(int, ftruncate, (int fd, off_t bytes), (fd, bytes), ENOSPC, -1)
FAILING(int, ftruncate64, (int fd, off64_t bytes), (fd, bytes), ENOSPC, -1)
extern "C" int posix_fallocate(int fd, off_t at, off_t bytes) {
  NEXT(posix_fallocate);
  return fails("posix_fallocate") ? ENOSPC : real(fd, at, bytes);
}
FAILING(int, flock, (int fd, int operation), (fd, operation), ENOLCK, -1)
FAILING(int, mkdir, (const char* path, mode_t permissions), (path, permissions), ENOSPC, -1)
FAILING(int, rename, (const char* from, const char* to), (from, to), EIO, -1)
FAILING(int, renameat2, (int f, const char* from, int t, const char* to, unsigned flags),
        (f, from, t, to, flags), EIO, -1)

// --- sockets ---

FAILING(int, socket, (int family, int type, int protocol), (family, type, protocol), EMFILE, -1)
FAILING(int, bind, (int fd, const sockaddr* address, socklen_t bytes), (fd, address, bytes),
        EADDRINUSE, -1)
FAILING(int, listen, (int fd, int backlog), (fd, backlog), EADDRINUSE, -1)
FAILING(int, connect, (int fd, const sockaddr* address, socklen_t bytes), (fd, address, bytes),
        ECONNREFUSED, -1)
FAILING(int, accept4, (int fd, sockaddr* address, socklen_t* bytes, int flags),
        (fd, address, bytes, flags), EMFILE, -1)
FAILING(int, setsockopt, (int fd, int level, int option, const void* value, socklen_t bytes),
        (fd, level, option, value, bytes), ENOBUFS, -1)
FAILING(int, getsockname, (int fd, sockaddr* address, socklen_t* bytes), (fd, address, bytes),
        ENOBUFS, -1)
FAILING(int, getpeername, (int fd, sockaddr* address, socklen_t* bytes), (fd, address, bytes),
        ENOTCONN, -1)
TRANSFER(send, (int fd, const void* data, std::size_t bytes, int flags), (fd, data, bytes, flags),
         EIO)
TRANSFER(sendto,
         (int fd, const void* data, std::size_t bytes, int flags, const sockaddr* to,
          socklen_t to_bytes),
         (fd, data, bytes, flags, to, to_bytes), EIO)
TRANSFER(sendmsg, (int fd, const msghdr* message, int flags), (fd, message, flags), EIO)
TRANSFER(recv, (int fd, void* data, std::size_t bytes, int flags), (fd, data, bytes, flags), EIO)
TRANSFER(recvmsg, (int fd, msghdr* message, int flags), (fd, message, flags), EIO)
FAILING(int, epoll_create1, (int flags), (flags), EMFILE, -1)
FAILING(int, epoll_ctl, (int fd, int operation, int other, epoll_event* event),
        (fd, operation, other, event), ENOMEM, -1)
FAILING(int, epoll_wait, (int fd, epoll_event* events, int count, int milliseconds),
        (fd, events, count, milliseconds), EINTR, -1)
FAILING(int, poll, (pollfd * fds, nfds_t count, int milliseconds), (fds, count, milliseconds),
        EINTR, -1)
FAILING(int, ppoll, (pollfd * fds, nfds_t count, const timespec* limit, const sigset_t* mask),
        (fds, count, limit, mask), EINTR, -1)
FAILING(int, eventfd, (unsigned value, int flags), (value, flags), EMFILE, -1)
FAILING(int, getifaddrs, (ifaddrs * *list), (list), ENOMEM, -1)
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** result) {
  NEXT(getaddrinfo);
  return fails("getaddrinfo") ? EAI_AGAIN : real(node, service, hints, result);
}
