/* The C ABI of a communication backend. Self-contained: C11 and C++20, no other atoll header.
 *
 * A backend is a shared object, libatoll-NAME.so, that exports one symbol, atoll_backend_entry_v1.
 * Core loads it once per process with dlopen(RTLD_NOW | RTLD_LOCAL) and never unloads it.
 *
 * Compatibility. Every struct begins with its `size`. Fields and slots are only appended. The
 * reader of a struct checks `size` before it reads an appended field. A NULL slot means
 * unsupported. Core refuses a backend with another ATOLL_ABI_MAJOR.
 *
 * Errors. Functions return an atoll_status and never let a C++ exception escape. After a failure
 * last_error() returns one line that names the peer, operation, sequence number and bytes.
 *
 * Threads. Each communicator is used by one caller at a time, except for abort() and async_error(),
 * which any thread may call at any time before close(). Different communicators may be used from
 * different threads at the same time.
 *
 * Execution on host memory. Core calls submit() on the thread that executes the stream. submit()
 * returns when the operation is complete on this rank. While it waits, it polls abort and deadline.
 *
 * Execution on CUDA memory. Core calls submit() on the caller's thread and passes the stream.
 * submit() may wait for connections but never for data, and returns after the work is launched.
 */
#ifndef ATOLL_PLUGIN_H
#define ATOLL_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATOLL_ABI_MAJOR 1u /* incremented when the layout changes incompatibly */
#define ATOLL_ABI_MINOR 0u /* incremented when slots are appended; `size` says which exist */

typedef int32_t atoll_status; /* one of the values below, which never change */
enum {
  ATOLL_OK = 0,
  ATOLL_INVALID_ARGUMENT = 1,
  ATOLL_NOT_FOUND = 2,
  ATOLL_UNSUPPORTED = 3,
  ATOLL_TIMEOUT = 4,
  ATOLL_PEER_LOST = 5,
  ATOLL_ABORTED = 6,
  ATOLL_MISMATCH = 7,
  ATOLL_IO = 8,
  ATOLL_OUT_OF_MEMORY = 9,
  ATOLL_BAD_DATA = 10,
  ATOLL_BACKEND = 11,
  ATOLL_INTERNAL = 12
};

enum { /* atoll_dtype: element types */
  ATOLL_F32 = 0,
  ATOLL_BF16 = 1,
  ATOLL_F16 = 2,
  ATOLL_F64 = 3,
  ATOLL_I32 = 4,
  ATOLL_I64 = 5,
  ATOLL_U8 = 6
};

enum { /* atoll_reduce_op */
  ATOLL_SUM = 0,
  ATOLL_AVG = 1, /* the sum divided by the number of ranks, then rounded once */
  ATOLL_MIN = 2,
  ATOLL_MAX = 3
};

enum { /* atoll_memory: kind of memory that holds src and dst */
  ATOLL_MEMORY_HOST = 0,
  ATOLL_MEMORY_CUDA = 1,
  ATOLL_MEMORY_VIRTUAL = 2
};

enum { /* atoll_collective_kind */
  ATOLL_BARRIER = 0,
  ATOLL_BROADCAST = 1,
  ATOLL_ALL_GATHER = 2,
  ATOLL_REDUCE_SCATTER = 3,
  ATOLL_ALL_REDUCE = 4,
  ATOLL_ALL_TO_ALL = 5,
  ATOLL_SEND = 6,
  ATOLL_RECV = 7,
  ATOLL_REDUCE = 8,
  ATOLL_GATHER = 9,
  ATOLL_SCATTER = 10,
  ATOLL_ALL_GATHER_V = 11,
  ATOLL_REDUCE_SCATTER_V = 12
};

enum { /* levels of atoll_host.log */
  ATOLL_LOG_TRACE = 0,
  ATOLL_LOG_DEBUG = 1,
  ATOLL_LOG_INFO = 2,
  ATOLL_LOG_WARN = 3,
  ATOLL_LOG_ERROR = 4
};

/* One pass over `nparts` arrays of `count` elements. For every d it computes
 * dsts[d][i] = op over factors[p] * parts[p][i], in the order of an adjacent-pair tree: parts 0 and
 * 1, parts 2 and 3, ..., then pairs of the results; an odd last part moves up a level unchanged.
 * bf16 and f16 are scaled and summed in f32 and rounded once. A dst may equal a part. */
typedef struct atoll_reduction {
  size_t size;
  void* const* dsts;
  const void* const* parts;
  const double* factors; /* one per part, for SUM and AVG of floating types; NULL: all are 1 */
  int32_t ndsts;
  int32_t nparts;
  uint64_t count;
  int32_t dtype;
  int32_t op;
  int32_t divisor;   /* divisor of AVG; 0 means nparts */
  int32_t streaming; /* nonzero allows non-temporal stores: no dst is read soon */
} atoll_reduction;

/* Services that core offers to a backend; valid until shutdown() has returned. */
typedef struct atoll_host {
  size_t size;
  void* ctx; /* first argument of every function below */
  void (*log)(void* ctx, int32_t level, const char* message);
  /* The World's key-value store. get() waits for the key. On entry *n is the capacity of `value`,
   * on return the size of the stored value. If the value does not fit, get() sets *n and returns
   * ATOLL_INVALID_ARGUMENT. */
  atoll_status (*put)(void* ctx, const char* key, const void* value, size_t n);
  atoll_status (*get)(void* ctx, const char* key, void* value, size_t* n, int64_t timeout_ns);
  /* Vectorized reduction of host memory. */
  atoll_status (*reduce)(void* ctx, const atoll_reduction* reduction);
  /* memcpy; `streaming` has the meaning that it has in atoll_reduction. */
  void (*copy)(void* ctx, void* dst, const void* src, size_t bytes, int32_t streaming);
} atoll_host;

/* Where one rank of a communicator runs. */
typedef struct atoll_placement {
  size_t size;
  int32_t world_rank;
  int32_t host;        /* ranks with equal numbers share memory */
  int32_t device;      /* the rank's CUDA ordinal; -1 on host memory and for other ranks */
  const char* address; /* address of the rank's host, for connections from other hosts */
  /* One address per rail of the rank, separated by single spaces; the first is `address`. Rail i of
   * one rank belongs to rail i of the others. NULL or "": `address` is the only rail. */
  const char* rail_addresses;
} atoll_placement;

/* The ranks of a communicator that is about to open. Pointers are valid during the call. */
typedef struct atoll_group {
  size_t size;
  int32_t rank; /* rank of the caller in this group */
  int32_t nranks;
  int32_t world_rank;
  int32_t world_size;
  int32_t memory;   /* atoll_memory of the buffers that operations will pass */
  const char* id;   /* unique in the job; prefix for this group's keys in the store */
  const char* name; /* for messages: "shard", "replicate.reduce" */
  const atoll_placement* const* placements; /* one per rank of the group */
  const char* token;  /* the job's secret, for connections that the backend opens itself */
  int64_t timeout_ns; /* limit for opening */
  /* The user's choice of algorithms, equal on all ranks: lines "COLLECTIVE MIN_BYTES ALGORITHM", of
   * which the last matching one counts, and "connections N", the number of connections between two
   * ranks on each rail. "" leaves the choice to the backend. For an unknown algorithm open()
   * returns ATOLL_INVALID_ARGUMENT and lists the known ones. */
  const char* tuning;
  /* Nonzero requires sums in the order of atoll_reduction over the ranks. A backend that cannot
   * order its sums returns ATOLL_UNSUPPORTED on every rank before it waits for other ranks. Core
   * then opens it again with 0 and builds the sums of floating types itself. */
  int32_t deterministic;
  int32_t host_ranks; /* ranks of the whole job on the caller's host; 0: unknown */
} atoll_group;

/* One operation. Counts are elements. all_gather sends `count` elements and receives count *
 * nranks; reduce_scatter sends count * nranks and receives `count`; all_to_all exchanges `count`
 * with each rank; gather and scatter move `count` per rank. The _v forms move counts[r] elements
 * for rank r, packed in rank order, and `count` is their sum. All others move `count`. Ranks other
 * than the root pass no dst to reduce and gather, and no src to scatter.
 *
 * In place: all_gather (_v) and gather with src at this rank's block of dst; reduce_scatter (_v)
 * and scatter with dst at this rank's block of src; all_reduce, reduce and broadcast with src =
 * dst. The caller guarantees that src and dst do not overlap otherwise. */
typedef struct atoll_operation {
  size_t size;
  int32_t kind; /* atoll_collective_kind */
  int32_t dtype;
  int32_t op;   /* atoll_reduce_op, for kinds that reduce */
  int32_t peer; /* root of the collective, or peer of send and recv; a rank of the group */
  int32_t memory;
  const void* src;
  void* dst;
  uint64_t count;
  uint64_t sequence;      /* number of this operation on this communicator, from 0 */
  void* stream;           /* cudaStream_t; NULL on host memory */
  int64_t timeout_ns;     /* counted from the call of submit() */
  const uint64_t* counts; /* _v forms only: one per rank, equal on all ranks */
  double factor; /* multiplies this rank's src before a SUM or AVG of a floating type; ranks may
                    differ. 1 for everything else and on GPU memory. */
} atoll_operation;

typedef struct atoll_comm atoll_comm; /* owned by the backend, opaque to core */

typedef struct atoll_backend {
  size_t size;
  uint32_t abi_major, abi_minor;
  const char* name;
  /* Returns a preference, larger is better, or 0 if the backend is unusable here; then
   * last_error(NULL) gives the reason. Not collective and cheap: core calls it before every open(),
   * and tools call it. */
  int32_t (*probe)(const atoll_host* host, const atoll_group* world);
  /* Returns 1 if communicators of this backend support the operation, else 0. */
  int32_t (*capability)(int32_t kind, int32_t dtype, int32_t op, int32_t memory);
  /* Collective over the group. All ranks open their groups in the same order. */
  atoll_status (*open)(const atoll_host* host, const atoll_group* group, atoll_comm** out);
  /* Performs `n` operations as one group: sends and receives of a group cannot deadlock each other,
   * collectives run in order. */
  atoll_status (*submit)(atoll_comm* comm, atoll_operation* const* operations, int32_t n);
  /* Idempotent. Every call that waits on this communicator soon returns ATOLL_ABORTED. */
  void (*abort)(atoll_comm* comm);
  /* Not collective; the communicator is idle or aborted. */
  void (*close)(atoll_comm* comm);
  /* Text of the calling thread's last failure; comm may be NULL. Never returns NULL. */
  const char* (*last_error)(const atoll_comm* comm);
  /* Ends what the backend started in this process (MPI, for example) before main() returns. If
   * `failed` is nonzero the job has failed, and shutdown() must not wait for other ranks. */
  void (*shutdown)(int32_t failed);
  /* ---- The slots below are optional: NULL means unsupported. ---- */
  /* CUDA: returns a failure that occurred after the launch, or ATOLL_OK. Any thread may call it. */
  atoll_status (*async_error)(atoll_comm* comm);
  /* Collective over an open, idle communicator: creates subgroups of it. Ranks that pass a NULL
   * group take part and get no communicator. The groups of one call are disjoint. */
  atoll_status (*split)(atoll_comm* comm, const atoll_group* group, atoll_comm** out);
  /* Not collective: zeroed memory for which this backend is fastest. */
  atoll_status (*mem_alloc)(size_t bytes, int32_t memory, int32_t device, void** out);
  atoll_status (*mem_free)(void* memory);
  /* Collective, with the same order and size on all ranks. The range is part of one mem_alloc()
   * allocation, or any memory if the backend's README allows it. If deregister_memory is NULL, the
   * range stays registered until the communicator is closed. */
  atoll_status (*register_memory)(atoll_comm* comm, void* memory, size_t bytes);
  atoll_status (*deregister_memory)(atoll_comm* comm, void* memory);
  /* Nonzero: all_gather and reduce_scatter over several hosts send each byte across a host's links
   * only as often as necessary. Zero: core may compose both from two communicators instead. */
  int32_t has_levels;
  /* Reports the transports of the connections made so far, as lines NAME=VALUE: one network= line
   * per network that joins hosts (IB, Socket); gdr=yes|no|some, whether NICs access GPU memory on
   * those networks; nvls=yes|no, whether NVLink switches can add and copy. If nothing is known, the
   * only line is unknown=REASON. A missing line means unused or not known yet. The text is valid
   * until this thread's next call; NULL means failure. */
  const char* (*transports)(atoll_comm* comm);
} atoll_backend; /* append new slots here */

/* The one exported symbol. The table is static. */
const atoll_backend* atoll_backend_entry_v1(void);
typedef const atoll_backend* (*atoll_backend_entry_fn)(void);

#ifdef __cplusplus
}
#endif

#endif /* ATOLL_PLUGIN_H */
