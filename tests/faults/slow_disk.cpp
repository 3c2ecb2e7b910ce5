// Emulates a slow disk in a process that preloads this library. Once the file FAULTS_SLOW_WHEN
// exists, fsync and fdatasync take FAULTS_SYNC_MS milliseconds longer.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

namespace {

void be_slow() {
  const char* when = std::getenv("FAULTS_SLOW_WHEN");
  const char* ms = std::getenv("FAULTS_SYNC_MS");
  if (when == nullptr || ms == nullptr || ::access(when, F_OK) != 0) return;
  ::usleep(static_cast<useconds_t>(std::atoi(ms)) * 1000);
}

using Sync = int (*)(int);
int call(const char* name, int fd) {
  be_slow();
  return reinterpret_cast<Sync>(::dlsym(RTLD_NEXT, name))(fd);
}

}  // namespace

extern "C" int fsync(int fd) { return call("fsync", fd); }
extern "C" int fdatasync(int fd) { return call("fdatasync", fd); }
