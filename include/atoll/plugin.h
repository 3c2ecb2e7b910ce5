/* The C ABI of a communication backend. This header compiles as C11 and C++20, and includes no
 * other atoll header. "Core" means libatoll, which loads the backends.
 *
 * A backend is a shared object, libatoll-NAME.so, that exports one symbol, atoll_backend_entry_v1.
 * Core loads it once per process with dlopen(RTLD_NOW | RTLD_LOCAL) and never unloads it.
 *
 * Compatibility. Every struct begins with its `size`. New fields and function pointers are only
 * appended. The reader of a struct checks `size` before it reads an appended field. A NULL function
 * pointer means that the backend does not support the function. Core refuses a backend with another
 * ATOLL_ABI_MAJOR.
 *
 * Errors. Functions return an atoll_status and never let a C++ exception escape. After a failure
 * last_error() returns one line that names the peer, operation, sequence number and bytes.
 *
 * Threads. Each communicator is used by one caller at a time, except for abort() and async_error(),
 * which any thread may call at any time before close(). Different communicators may be used from
 * different threads at the same time.
 *
 * Execution on CPU memory. Core calls submit() on the thread that executes the stream. submit()
 * returns when the operation is complete on this rank. While it waits, it checks regularly whether
 * abort() was called and whether the deadline has passed.
 *
 * Execution on CUDA memory. Core calls submit() on the caller's thread and passes the stream.
 * submit() may wait for connections but never for data. It returns after the work is launched.
 *
 * Execution on simulated memory. Core calls submit() on the caller's thread. submit() moves
 * nothing: it fills in atoll_operation.cost, and core lets the operation take this time on its
 * stream.
 */
#ifndef ATOLL_PLUGIN_H
#define ATOLL_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATOLL_ABI_MAJOR 3u /* incremented when the layout changes incompatibly */
#define ATOLL_ABI_MINOR 2u /* incremented when functions, fields or values are appended */

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

enum { /* atoll_dtype: element type of a buffer */
  ATOLL_F32 = 0,
  ATOLL_BF16 = 1,
  ATOLL_F16 = 2,
  ATOLL_F64 = 3,
  ATOLL_I32 = 4,
  ATOLL_I64 = 5,
  ATOLL_U8 = 6,
  ATOLL_I8 = 7,
  ATOLL_U16 = 8,
  ATOLL_U32 = 9,
  ATOLL_U64 = 10,
  ATOLL_F8E4M3 = 11, /* 8-bit floating point (OCP): data is moved, but no kind reduces it */
  ATOLL_F8E5M2 = 12,
  ATOLL_I16 = 13,
  ATOLL_BOOL = 14 /* one byte, 0 or 1. Core reduces sums as maxima and products as minima. */
};

/* bf16 and f16 are scaled and combined in f32 and rounded once. Sums and products of integers wrap
 * around. */
enum { /* atoll_reduce_op: operator of a reduction */
  ATOLL_SUM = 0,
  ATOLL_AVG = 1, /* the sum divided by the number of ranks, then rounded once */
  ATOLL_MIN = 2,
  ATOLL_MAX = 3,
  ATOLL_PRODUCT = 4,
  ATOLL_BAND = 5, /* bitwise and; this and the next two: of integers and truth values only */
  ATOLL_BOR = 6,  /* bitwise or */
  ATOLL_BXOR = 7  /* bitwise exclusive or */
};

enum { /* atoll_memory: kind of memory that holds src and dst */
  ATOLL_MEMORY_CPU = 0,
  ATOLL_MEMORY_CUDA = 1,
  ATOLL_MEMORY_SIMULATED = 2 /* memory of a simulated device: addresses without data */
};

enum { /* atoll_collective_kind: kind of an operation */
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
  ATOLL_REDUCE_SCATTER_V = 12,
  ATOLL_ALL_TO_ALL_V = 13,
  ATOLL_GATHER_V = 14
};

enum { /* how many compute units of a GPU (SMs) collectives may take from other kernels */
  ATOLL_COMPUTE_UNITS_ANY = 0,
  ATOLL_COMPUTE_UNITS_FEW = 1,
  ATOLL_COMPUTE_UNITS_NONE = 2 /* copy engines move the data, where the hardware can */
};

enum { /* checksums of the data that a backend sends to other hosts */
  ATOLL_CHECKSUM_NONE = 0,
  ATOLL_CHECKSUM_CRC32C = 1
};

enum { /* severity levels of atoll_core.log */
  ATOLL_LOG_TRACE = 0,
  ATOLL_LOG_DEBUG = 1,
  ATOLL_LOG_INFO = 2,
  ATOLL_LOG_WARN = 3,
  ATOLL_LOG_ERROR = 4
};

/* Functions that core offers to a backend. They stay valid until shutdown() has returned. */
typedef struct atoll_core {
  size_t size;
  void* ctx; /* first argument of every function below */
  void (*log)(void* ctx, int32_t level, const char* message);
  /* put() and get() access the World's key-value store. get() waits until the key exists. On entry
   * *n is the capacity of `value`; on return *n is the size of the stored value. If the value does
   * not fit, get() sets *n and returns ATOLL_INVALID_ARGUMENT. Keys that begin with a group's id
   * and "/" are deleted when every rank has closed the group. */
  atoll_status (*put)(void* ctx, const char* key, const void* value, size_t n);
  atoll_status (*get)(void* ctx, const char* key, void* value, size_t* n, int64_t timeout_ns);
  /* Performs get() of `n` keys in one round trip to the store: waits until all of them exist, and
   * stores the value of keys[i] in values[i], whose capacity and size are sizes[i]. If a value does
   * not fit, the call sets all sizes and returns ATOLL_INVALID_ARGUMENT. */
  atoll_status (*get_all)(void* ctx, const char* const* keys, int32_t n, void* const* values,
                          size_t* sizes, int64_t timeout_ns);
  /* Stores in `value` which ports of RDMA adapters this rank should use by the topology of its
   * host, and the reason: "DEVICE,DEVICE:PORT\nREASON"; port 1 is not written. The list is empty if
   * the topology shows no active adapter. `device` is the CUDA ordinal of the GPU whose memory the
   * adapters move; -1: CPU memory. Sizes are those of get(). Discovers the host at every call,
   * which may take seconds. */
  atoll_status (*adapters)(void* ctx, int32_t device, char* value, size_t* n);
} atoll_core; /* append new members at the end */

/* Where one rank of a communicator runs. */
typedef struct atoll_placement {
  size_t size;
  int32_t world_rank;
  int32_t host;        /* ranks with equal numbers share memory */
  int32_t device;      /* CUDA ordinal of the caller's GPU; -1 on CPU memory and for other ranks */
  const char* address; /* address of the rank's host, for connections from other hosts */
  /* One address per rail (network) of the rank, separated by single spaces; the first is `address`.
   * Rail i is the same network on all ranks. NULL or "" means that `address` is the only rail. */
  const char* rail_addresses;
} atoll_placement;

/* Describes a communicator that is about to open. The pointers are valid only during the call. */
typedef struct atoll_group {
  size_t size;
  int32_t rank; /* rank of the caller in this group */
  int32_t nranks;
  int32_t world_rank;
  int32_t world_size;
  int32_t memory;   /* atoll_memory of the buffers that operations will pass */
  const char* id;   /* unique in the job; prefix of the group's keys in the store */
  const char* name; /* name for messages, such as "shard" or "replicate.reduce" */
  const atoll_placement* const* placements; /* placement of each rank of the group */
  const char* token;  /* secret of the job; authenticates connections of the backend */
  int64_t timeout_ns; /* time limit for opening the communicator */
  /* The user's choice of algorithms, equal on all ranks. A line "COLLECTIVE MIN_BYTES ALGORITHM"
   * selects the algorithm for data of at least MIN_BYTES; the last matching line decides. A line
   * "connections N" sets the number of connections between two ranks on each rail. "" leaves all
   * choices to the backend. For an unknown algorithm open() returns ATOLL_INVALID_ARGUMENT, and the
   * error text lists the known algorithms. */
  const char* tuning;
  /* Nonzero requires that collectives sum over the ranks in the order of an adjacent-pair tree:
   * ranks 0 and 1, ranks 2 and 3, ..., then pairs of the results; an odd last part moves up a level
   * unchanged. A backend that cannot do so returns ATOLL_UNSUPPORTED on every rank, before it waits
   * for other ranks. Core then opens the group again with 0 in this field and builds the sums of
   * floating types itself. */
  int32_t deterministic;
  int32_t host_ranks;    /* number of ranks of the whole job on the caller's host; 0: unknown */
  int32_t checksum;      /* ATOLL_CHECKSUM_..., equal on all ranks; a backend may ignore it */
  int32_t compute_units; /* ATOLL_COMPUTE_UNITS_..., equal on all ranks; a hint */
  /* Time without any answer from another host after which the network counts as cut; 0 leaves the
   * choice to the backend. A rank that is slow or stopped is not a cut. */
  int64_t cut_ns;
  /* The user's settings of RDMA as words NAME=VALUE separated by spaces, which the README of the
   * backend defines; NULL or "" leaves all choices to the backend. May differ between ranks. */
  const char* rdma;
  const char* links;    /* model of the links of a simulated device, as text; NULL: a real device */
  int32_t owns_process; /* nonzero: the backend may change environment and limits of the process */
  /* Nonzero: the group performs only sends and receives, which have tags. Core calls submit() from
   * several threads at the same time, and no call may delay another one. open() of a backend
   * without tags returns ATOLL_UNSUPPORTED. */
  int32_t tags;
} atoll_group;

enum {
  ATOLL_ANY = -1
}; /* in a receive: any source, or any tag */

/* The time that an operation on simulated memory takes. Shares are from 0 to 1. */
typedef struct atoll_cost {
  size_t size;
  double latency_s; /* seconds before data flows */
  double seconds;   /* seconds during which data flows when nothing else uses the links */
  double intra;     /* share of the links inside a host that are in use while data flows */
  double inter;     /* share of the links to other hosts that are in use while data flows */
  double compute;   /* share of the device's compute units that are in use while data flows */
} atoll_cost;

typedef struct atoll_arrival {
  int32_t source; /* rank of the group */
  int32_t tag;
} atoll_arrival;

/* One collective, send or recv. Counts are numbers of elements. all_gather sends `count` elements
 * and receives count * nranks; reduce_scatter sends count * nranks elements and receives `count`;
 * all_to_all exchanges `count` elements with each rank; gather and scatter move `count` elements
 * per rank. The _v forms move counts[r] elements for each rank r, packed in rank order, and `count`
 * is the sum of the counts. In all_to_all_v, counts[r] elements go to rank r and recv_counts[r]
 * elements come from rank r. All other kinds move `count` elements. Ranks other than the root pass
 * no dst to reduce and gather (_v), and no src to scatter.
 *
 * An operation may be in place: in all_gather (_v) and gather (_v), src is then this rank's block
 * of dst; in reduce_scatter (_v) and scatter, dst is this rank's block of src; in all_reduce,
 * reduce and broadcast, src equals dst. The caller guarantees that they do not overlap otherwise.
 */
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
  uint64_t sequence;      /* index of this operation on this communicator, from 0 */
  void* stream;           /* cudaStream_t; NULL on CPU memory */
  int64_t timeout_ns;     /* time limit, from the call of submit() */
  const uint64_t* counts; /* _v forms only: one count per rank, equal on all ranks except in
                             all_to_all_v */
  double factor; /* multiplies this rank's src before a SUM or AVG of a floating type; may differ
                    between ranks; 1 for all other operations and on GPU memory */
  const uint64_t* recv_counts; /* all_to_all_v only: one count per rank; recv_counts[r] is the
                                  number of elements that rank r sends to this rank */
  atoll_cost* cost;  /* on simulated memory, submit() moves no data and fills in this cost; NULL on
                       other memory */
  const char* label; /* purpose, such as the name of a tensor; equal on all ranks, so a backend may
                        compare it; NULL: none */
  /* Only in groups with atoll_group.tags. A receive takes the earliest message from `peer` with
   * this tag. `peer` and `tag` may be ATOLL_ANY. Before submit() returns, the backend writes the
   * source and the tag of the message to `arrived`, unless it is NULL. */
  int32_t tag;
  atoll_arrival* arrived;
} atoll_operation;

typedef struct atoll_comm atoll_comm; /* owned by the backend, opaque to core */

typedef struct atoll_backend {
  size_t size;
  uint32_t abi_major, abi_minor;
  const char* name;
  /* Returns the backend's preference; core opens the backend with the largest one. Returns 0 if the
   * backend is unusable in this process; last_error(NULL) then returns the reason. Not collective.
   * Must be cheap, because core calls probe() before every open(), and tools call it as well. */
  int32_t (*probe)(const atoll_core* core, const atoll_group* world);
  /* Returns 0 if communicators of this backend do not support the operation, 1 if they do, and 2 if
   * they do with less accurate arithmetic: they round partial results to the dtype, or divide
   * before they add. Core submits the latter only if the caller asks for it
   * (Reduction::natively()). */
  int32_t (*capability)(int32_t kind, int32_t dtype, int32_t op, int32_t memory);
  /* Opens a communicator. Collective over the group. Ranks open groups of the same ranks in the
   * same order. If the communicator is aborted meanwhile, get() of a key that begins with the id of
   * the group returns ATOLL_ABORTED, and open() should return at once. A backend that waits for
   * something else calls get() at intervals, to notice the abort. */
  atoll_status (*open)(const atoll_core* core, const atoll_group* group, atoll_comm** out);
  /* Performs `n` operations as one group: the sends and receives of a group cannot deadlock each
   * other, and its collectives run in order. */
  atoll_status (*submit)(atoll_comm* comm, atoll_operation* const* operations, int32_t n);
  /* Makes every call that waits on this communicator return ATOLL_ABORTED soon. Idempotent. */
  void (*abort)(atoll_comm* comm);
  /* Closes the communicator, which must be idle or aborted. Not collective. */
  void (*close)(atoll_comm* comm);
  /* Returns the text of the calling thread's last failure, never NULL. `comm` may be NULL. */
  const char* (*last_error)(const atoll_comm* comm);
  /* Ends everything that the backend has started in this process, such as MPI. Core calls it when
   * the last World that used the backend ends. If `failed` is nonzero, the job has failed, and
   * shutdown() must not wait for other ranks. */
  void (*shutdown)(int32_t failed);
  /* ---- The functions below are optional: NULL means unsupported. ---- */
  /* Returns a failure that occurred after the launch of CUDA work, or ATOLL_OK. Any thread may call
   * it. */
  atoll_status (*async_error)(atoll_comm* comm);
  /* Creates communicators over disjoint groups of the ranks of an open, idle communicator.
   * Collective over that communicator. A rank that passes a NULL group must call split() too, but
   * gets no communicator. */
  atoll_status (*split)(atoll_comm* comm, const atoll_group* group, atoll_comm** out);
  /* Allocates zeroed memory with which this backend is fastest. Not collective. */
  atoll_status (*mem_alloc)(size_t bytes, int32_t memory, int32_t device, void** out);
  atoll_status (*mem_free)(void* memory);
  /* Registers a range of memory. Collective: all ranks register ranges of the same size in the same
   * order. The range must be part of one mem_alloc() allocation, unless the backend's README allows
   * other memory. If deregister_memory is NULL, the range stays registered until the communicator
   * is closed. */
  atoll_status (*register_memory)(atoll_comm* comm, void* memory, size_t bytes);
  atoll_status (*deregister_memory)(atoll_comm* comm, void* memory);
  /* Nonzero if all_gather and reduce_scatter over several hosts use a two-level algorithm, which
   * sends the minimum of bytes between hosts. If zero, core may build both from a communicator
   * within each host and a communicator across hosts instead. */
  int32_t has_levels;
  /* Returns the transports of the connections made so far as lines NAME=VALUE. There is one
   * network= line per network that joins hosts (IB, Socket). gdr=yes|no|some reports whether NICs
   * access GPU memory directly on these networks. nvls=yes|no reports whether NVLink switches can
   * reduce and multicast. copy_engines=yes|no, after the first all_gather, reports whether
   * all_gathers have used copy engines, which need no compute units. device_bytes=N reports the
   * bytes of GPU memory that the backend holds for the communicators of this process. A missing
   * line means that the transport is unused, or that the fact is not known yet. If no transport can
   * be known, unknown=REASON replaces the lines about transports. The text is valid until this
   * thread's next call. NULL means failure. */
  const char* (*transports)(atoll_comm* comm);
  /* Registers a range of memory that mem_alloc() did not allocate. Collective: all ranks call this
   * function and register_memory() in the same order and with the same sizes. The backend uses the
   * range until deregister_caller_memory(); the caller may then free it. Sets *slow to NULL if
   * operations access the range as fast as memory of mem_alloc(), or else to a text with the
   * reason, which is valid until this thread's next call. */
  atoll_status (*register_caller_memory)(atoll_comm* comm, void* memory, size_t bytes,
                                         const char** slow);
  /* Ends a registration of register_caller_memory(). Does not wait for other ranks, but all ranks
   * end a registration between the same two operations. No operation may be in flight. */
  atoll_status (*deregister_caller_memory)(atoll_comm* comm, void* memory);
  /* Registers memory of this rank with the network, without the other ranks. Not collective. No
   * operation may be in flight. The memory may come from mem_alloc() or from the caller.
   * deregister_caller_memory() ends the registration. */
  atoll_status (*register_own_memory)(atoll_comm* comm, void* memory, size_t bytes);
} atoll_backend; /* append new members at the end */

/* The one symbol that a backend exports. It returns a table that stays valid forever. */
const atoll_backend* atoll_backend_entry_v1(void);
typedef const atoll_backend* (*atoll_backend_entry_fn)(void);

#ifdef __cplusplus
}
#endif

#endif /* ATOLL_PLUGIN_H */
