/* The C ABI of a communication backend, version 1.3. Self-contained: C11 and C++20, no other header
 * of atoll.
 *
 * A backend is a shared object, libatoll-NAME.so, that exports one symbol, atoll_backend_entry_v1.
 * Core loads it once per process with dlopen(RTLD_NOW | RTLD_LOCAL) and never unloads it.
 *
 * Compatibility. Every struct begins with its `size`. Slots and fields are only appended. The
 * reader of a struct checks `size` before it touches an appended field; a NULL slot means
 * unsupported. A different ATOLL_ABI_MAJOR is refused.
 *
 * Errors. Every function returns an atoll_status and never lets an exception out. After a failure
 * last_error() gives one line that names the peer, operation, sequence number and bytes.
 *
 * Threads. One caller at a time per communicator, except abort() and async_error(), which any
 * thread may call at any time before close(). Different communicators may be used from different
 * threads at the same time.
 *
 * Execution. A backend of host memory is called on the thread that executes the stream, and returns
 * when the operation is complete on this rank; while it waits it polls abort and the deadline. A
 * backend of CUDA memory is called on the caller's thread with the stream, may wait for connections
 * but never for data, and has truly launched its work when it returns.
 */
#ifndef ATOLL_PLUGIN_H
#define ATOLL_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATOLL_ABI_MAJOR 1u /* layout broke: core refuses the plugin */
#define ATOLL_ABI_MINOR 3u /* slots appended: `size` says which exist */

typedef int32_t atoll_status; /* 0: success; else a value below, frozen */
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
  ATOLL_AVG = 1, /* sum, divided by the number of ranks before the one rounding */
  ATOLL_MIN = 2,
  ATOLL_MAX = 3
};

enum { /* atoll_memory: where src and dst are */
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
  /* since 1.1 */
  ATOLL_REDUCE = 8,
  ATOLL_GATHER = 9,
  ATOLL_SCATTER = 10,
  ATOLL_ALL_GATHER_V = 11,
  ATOLL_REDUCE_SCATTER_V = 12
};

enum { /* level of atoll_host.log */
  ATOLL_LOG_TRACE = 0,
  ATOLL_LOG_DEBUG = 1,
  ATOLL_LOG_INFO = 2,
  ATOLL_LOG_WARN = 3,
  ATOLL_LOG_ERROR = 4
};

/* One pass over `nparts` arrays of `count` elements: for every d, dsts[d][i] = op over
 * factors[p] * parts[p][i], in the order of an adjacent-pair tree: parts 0 and 1, 2 and 3, ...,
 * then pairs of those; an odd last one is carried up. bf16 and f16 are scaled and summed in f32 and
 * rounded once. A dst may equal a part. */
typedef struct atoll_reduction {
  size_t size;
  void* const* dsts;
  const void* const* parts;
  const double* factors; /* by part; NULL: all 1. Of SUM and AVG on floating types only */
  int32_t ndsts;
  int32_t nparts;
  uint64_t count;
  int32_t dtype;
  int32_t op;
  int32_t divisor;   /* of AVG; 0: nparts */
  int32_t streaming; /* not 0: nobody reads the dsts soon; stores may pass by the caches */
} atoll_reduction;

/* Services that core lends to a plugin; valid until shutdown() has returned. */
typedef struct atoll_host {
  size_t size;
  void* ctx; /* first argument of every function here */
  void (*log)(void* ctx, int32_t level, const char* message);
  /* The World's store. get() waits for the key; *n is the capacity of `value` on entry and the size
   * of the value on return (ATOLL_INVALID_ARGUMENT, with *n set, when it does not fit). */
  atoll_status (*put)(void* ctx, const char* key, const void* value, size_t n);
  atoll_status (*get)(void* ctx, const char* key, void* value, size_t* n, int64_t timeout_ns);
  /* dst[i] = op over parts[0..nparts)[i], in the order of an adjacent-pair tree: parts 0 and 1, 2
   * and 3, ..., then pairs of those; an odd last one is carried up. bf16 and f16 are summed in f32
   * and rounded once. AVG divides by nparts. dst may equal one of the parts. */
  atoll_status (*reduce)(void* ctx, void* dst, const void* const* parts, int32_t nparts,
                         uint64_t count, int32_t dtype, int32_t op);
  /* since 1.1 */
  atoll_status (*reduce_into)(void* ctx, const atoll_reduction* reduction);
  /* memcpy; `streaming` as in atoll_reduction. */
  void (*copy)(void* ctx, void* dst, const void* src, size_t bytes, int32_t streaming);
} atoll_host;

/* Where one rank of a communicator runs. */
typedef struct atoll_placement {
  size_t size;
  int32_t world_rank;
  int32_t host;        /* ranks with equal numbers share memory */
  int32_t numa;        /* -1: unknown */
  int32_t device;      /* CUDA ordinal of the caller's GPU; -1: host memory, or another rank */
  int32_t rail;        /* nearest to the rank; -1: unknown */
  const char* address; /* of the rank's host, for connections from other hosts */
  /* since 1.1 */
  const char* rail_addresses; /* one per rail of the rank, separated by single spaces, in the order
                                 in which rails of different ranks belong together; the first is
                                 `address`. NULL or "": that one */
} atoll_placement;

/* The ranks of a communicator that is about to open. Pointers are valid during the call. */
typedef struct atoll_group {
  size_t size;
  int32_t rank; /* of the caller in this group */
  int32_t nranks;
  int32_t world_rank;
  int32_t world_size;
  int32_t memory;   /* atoll_memory of the buffers to come */
  const char* id;   /* unique in the job: prefix of the store keys of this group */
  const char* name; /* for messages: "shard", "replicate.reduce" */
  const atoll_placement* const* placements; /* nranks of them */
  const char* topology_json;                /* "" when unknown */
  const char* token;  /* the job's secret, for connections of the plugin's own */
  int64_t timeout_ns; /* to open */
  /* since 1.1 */
  /* What the user asks of the algorithms: lines "COLLECTIVE MIN_BYTES ALGORITHM", the last one
   * that fits wins, and "connections N", streams between two ranks on each rail; "": the backend
   * chooses. Equal on all ranks. An algorithm that the backend does not have is
   * ATOLL_INVALID_ARGUMENT, with the names of those that it has. */
  const char* tuning;
  /* not 0: sums in the order of atoll_reduction over the ranks, always. A backend that cannot order
   * its sums returns ATOLL_UNSUPPORTED, on every rank and before it waits for any: core opens it
   * again with 0, and builds the sums of floating types itself. */
  int32_t deterministic;
  int32_t host_ranks; /* of the job, on the caller's host; 0: unknown */
} atoll_group;

/* One operation. Counts are elements: all_gather sends `count` and receives count * nranks;
 * reduce_scatter sends count * nranks and receives `count`; all_to_all sends and receives `count`
 * to and from each rank; gather and scatter move `count` per rank; the _v forms move counts[r] for
 * rank r, packed in rank order, and `count` is their sum; the others move `count`. Ranks that are
 * not the root pass no dst to reduce and gather, no src to scatter. In place: all_gather (_v) and
 * gather with src in its place in dst, reduce_scatter (_v) and scatter with dst in its place in
 * src, all_reduce, reduce and broadcast with src = dst. Any other overlap of src and dst is an
 * error of the caller. */
typedef struct atoll_operation {
  size_t size;
  int32_t kind; /* atoll_collective_kind */
  int32_t dtype;
  int32_t op;   /* of the reductions */
  int32_t peer; /* root, or peer of send and recv; a rank of the group */
  int32_t memory;
  const void* src;
  void* dst;
  uint64_t count;
  uint64_t sequence;  /* number of this operation on this communicator, from 0 */
  void* stream;       /* cudaStream_t; NULL on host memory */
  int64_t timeout_ns; /* from the call on */
  int64_t start_ns;   /* virtual time: when the caller's stream arrives */
  int64_t end_ns;     /* virtual time: written by the backend */
  /* since 1.1 */
  const uint64_t* counts; /* of the _v forms: nranks of them, equal on all ranks */
  double factor; /* of this rank: src is multiplied with it before a SUM or AVG of a floating type;
                    1 for everything else, and on memory of a GPU */
} atoll_operation;

typedef struct atoll_comm atoll_comm; /* owned by the plugin, opaque */

typedef struct atoll_backend {
  size_t size;
  uint32_t abi_major, abi_minor;
  const char* name;
  /* 0: unusable here, with the reason in last_error(NULL); else a preference, the larger the
   * better. Cheap: called before every open(), and by tools; not collective. */
  int32_t (*probe)(const atoll_host* host, const atoll_group* world);
  /* 1 when open() communicators take this operation, else 0. */
  int32_t (*capability)(int32_t kind, int32_t dtype, int32_t op, int32_t memory);
  /* Collective over the group; groups open in one order on all ranks. */
  atoll_status (*open)(const atoll_host* host, const atoll_group* group, atoll_comm** out);
  /* Performs `n` operations as one group: point-to-point operations of a group cannot deadlock each
   * other, collectives run in order. */
  atoll_status (*submit)(atoll_comm* comm, atoll_operation* const* operations, int32_t n);
  /* Idempotent. Everything that waits on this communicator returns ATOLL_ABORTED soon. */
  void (*abort)(atoll_comm* comm);
  /* Not collective; the communicator is idle or aborted. */
  void (*close)(atoll_comm* comm);
  /* Text of the calling thread's last failure; comm may be NULL. Never NULL. */
  const char* (*last_error)(const atoll_comm* comm);
  /* Ends what the plugin started in this process (MPI, say), before main returns. `failed` is not 0
   * when the job failed: then nothing may wait for other ranks. */
  void (*shutdown)(int32_t failed);
  /* ---- optional from here on: NULL means unsupported ---- */
  /* CUDA: a failure that happened after the launch, ATOLL_OK if none. Any thread may call it, as
   * abort. */
  atoll_status (*async_error)(atoll_comm* comm);
  /* Subgroups of an open communicator that is idle, which every rank of it calls; ranks that pass a
   * NULL group take part and get no comm. Groups of one call have no rank in common. */
  atoll_status (*split)(atoll_comm* comm, const atoll_group* group, atoll_comm** out);
  /* Memory on the fast path of this backend, filled with zeros; not collective. */
  atoll_status (*mem_alloc)(size_t bytes, int32_t memory, int32_t device, void** out);
  atoll_status (*mem_free)(void* memory);
  /* Collective, same order and size on all ranks; the range is part of one mem_alloc or any memory,
   * as the backend's README says. Without deregister_memory it stays there, and registered, until
   * the communicator is closed. */
  atoll_status (*register_memory)(atoll_comm* comm, void* memory, size_t bytes);
  atoll_status (*deregister_memory)(atoll_comm* comm, void* memory);
  /* since 1.2 */
  int32_t has_levels; /* not 0: all_gather and reduce_scatter over several hosts send between them
                         only what must be sent; else core may build them of two levels */
  /* since 1.3 */
  /* How data moves between ranks, as far as connections exist by now, in lines NAME=VALUE:
   * network=, one for each that joins hosts (IB, Socket); gdr=yes|no|some, whether NICs reach
   * memory of GPUs on those; nvls=yes|no, whether NVLink switches can add and copy; unknown=WHY,
   * alone, where nothing is known. What has no line is not in use or not known yet. Valid until
   * this thread calls it again. NULL: it failed. */
  const char* (*transports)(atoll_comm* comm);
} atoll_backend; /* append below only */

/* The one exported symbol. The table is static. */
const atoll_backend* atoll_backend_entry_v1(void);
typedef const atoll_backend* (*atoll_backend_entry_fn)(void);

#ifdef __cplusplus
}
#endif

#endif /* ATOLL_PLUGIN_H */
