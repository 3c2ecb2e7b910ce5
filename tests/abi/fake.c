/* A test backend in C that supports no operation. CMake builds several valid and invalid variants
 * of it: FAKE_NAME is required; FAKE_MAJOR, FAKE_SIZE, FAKE_PREFERENCE and FAKE_TABLE replace valid
 * values. */
#include <stddef.h>

#include "atoll/plugin.h"

#ifndef FAKE_MAJOR
#define FAKE_MAJOR ATOLL_ABI_MAJOR
#endif
#ifndef FAKE_SIZE
#define FAKE_SIZE sizeof(atoll_backend)
#endif
#ifndef FAKE_PREFERENCE
#define FAKE_PREFERENCE 1
#endif
#ifndef FAKE_TABLE
#define FAKE_TABLE &table.known
#endif

static int32_t probe(const atoll_core* core, const atoll_group* world) {
  return core->size >= sizeof(atoll_core) && world->size >= sizeof(atoll_group) ? FAKE_PREFERENCE
                                                                                : 0;
}

static int32_t capability(int32_t kind, int32_t dtype, int32_t op, int32_t memory) {
  (void)kind;
  (void)dtype;
  (void)op;
  return memory == ATOLL_MEMORY_CPU;
}

static atoll_status open_group(const atoll_core* core, const atoll_group* group, atoll_comm** out) {
  (void)core;
  (void)group;
  (void)out;
  return ATOLL_UNSUPPORTED;
}

static atoll_status submit(atoll_comm* comm, atoll_operation* const* operations, int32_t n) {
  (void)comm;
  (void)operations;
  (void)n;
  return ATOLL_UNSUPPORTED;
}

static void abort_group(atoll_comm* comm) { (void)comm; }
static void close_group(atoll_comm* comm) { (void)comm; }

static const char* last_error(const atoll_comm* comm) {
  (void)comm;
  return "the fake has no wires";
}

static void end(int32_t failed) { (void)failed; }

/* A member that lies beyond `size` in the shorter variants, so that the loader must not read it. */
static atoll_status async_error(atoll_comm* comm) {
  (void)comm;
  return ATOLL_OK;
}

/* A table as of a later minor version, with more members than atoll_backend. */
static const struct {
  atoll_backend known;
  void (*later[4])(void);
} table = {{FAKE_SIZE,   FAKE_MAJOR, ATOLL_ABI_MINOR,
            FAKE_NAME,   probe,      capability,
            open_group,  submit,     abort_group,
            close_group, last_error, end,
            async_error, NULL,       NULL,
            NULL,        NULL,       NULL,
            0,           NULL,       NULL,
            NULL,        NULL},
           {NULL, NULL, NULL, NULL}};

const atoll_backend* atoll_backend_entry_v1(void) { return FAKE_TABLE; }
