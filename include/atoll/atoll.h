/* The C API of atoll, for C99 and later and for languages that call C. It has a handle for each
 * class of the C++ headers, whose contracts apply: `world.hpp` for atoll_world_..., and so on.
 * engine.h has the training engine, and planner.h simulated devices.
 *
 * Handles. A function that makes a handle stores it through its last argument, and the caller owns
 * it until ..._close(), which accepts NULL. Close handles in the reverse order of their making: the
 * World last. Functions of a handle may be called by any thread, but not during its ..._close().
 *
 * Errors. Functions return ATOLL_OK or another status of plugin.h, and no C++ exception leaves
 * them. After a failure, atoll_last_error() is one line that names the argument or, where they are
 * known, the rank, communicator, operation and sequence number. A function that fails stores
 * nothing. NULL for a pointer that is not documented as optional is ATOLL_INVALID_ARGUMENT.
 *
 * Streams. Functions with a stream enqueue their work there and return at once; the others return
 * when they are done. A collective must be called by all ranks of its World or communicator, in the
 * same order. Callbacks get `context`, run on a thread of the library unless a comment says
 * otherwise, and must not wait for streams, nor throw C++ exceptions.
 *
 * Arguments. Sizes are bytes, counts are numbers of elements, and times are milliseconds. `dtype`,
 * `op` and `memory` are values of plugin.h. Texts end with a null character; the library copies
 * those that it is given. A `const char*` from the library belongs to the handle.
 *
 * ABI. The caller sets the first member of a structure, if it is `size`, to the sizeof of the
 * structure. New members are appended to such structures, and 0 stands for the default. */
#ifndef ATOLL_ATOLL_H
#define ATOLL_ATOLL_H

#include <stddef.h>
#include <stdint.h>

#include "atoll/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define ATOLL_C_ABI 1u /* incremented when a declaration changes incompatibly */

typedef struct atoll_config atoll_config;
typedef struct atoll_world atoll_world;
typedef struct atoll_device atoll_device;
typedef struct atoll_stream atoll_stream;
typedef struct atoll_topology atoll_topology;
typedef struct atoll_mesh atoll_mesh;
typedef struct atoll_communicator atoll_communicator;
typedef struct atoll_work atoll_work;
typedef struct atoll_buffer atoll_buffer;
typedef struct atoll_registration atoll_registration;
typedef struct atoll_stop atoll_stop;

/* ATOLL_C_ABI of the library that the program has loaded. A program compares it with its own. */
uint32_t atoll_c_abi(void);
/* Version of the library, such as "0.1.0". */
const char* atoll_version(void);
/* Text of the last failure of a function on this thread, "" if there was none. Valid until the next
 * call of this thread that fails. */
const char* atoll_last_error(void);
/* Name of a status, such as "peer lost". */
const char* atoll_status_name(atoll_status status);
/* Frees a `char*` that the library has stored; NULL is allowed. */
void atoll_free(char* text);

/* ---- Settings (config.hpp) ---- */

/* Makes settings from the file ATOLL_CONFIG and the ATOLL_ variables of the environment. */
atoll_status atoll_config_open(atoll_config** config);
/* Sets one setting by the name of its variable ("ATOLL_TIMEOUT"), of which `atoll-topo --env` has a
 * list with units, or by this name without ATOLL_ in lower case ("timeout").
 * ATOLL_INVALID_ARGUMENT for an unknown name or a malformed value. */
atoll_status atoll_config_set(atoll_config* config, const char* name, const char* value);
void atoll_config_close(atoll_config* config);

/* ---- World (world.hpp) ---- */

/* Joins the job that the environment describes. Collective. `config` may be NULL: settings from the
 * environment. The World copies the settings. ATOLL_TIMEOUT names the ranks that did not join in
 * time; ATOLL_MISMATCH if ranks have different settings that must be equal. */
atoll_status atoll_world_open(const atoll_config* config, atoll_world** world);
/* The bytes that a broadcast of atoll_world_open_ranks() sends. */
#define ATOLL_BROADCAST_BYTES 1024
/* Sends the `bytes` bytes of rank 0 to all ranks, as MPI_Bcast() does. Returns 0, or another number
 * if it has failed. */
typedef int (*atoll_broadcast_fn)(void* context, void* data, size_t bytes);
/* Joins a job whose ranks the program knows, without a launcher. Calls `broadcast` once on this
 * thread if size > 1; its data contains the secret of the job. Collective. `config` may be NULL. */
atoll_status atoll_world_open_ranks(int32_t rank, int32_t size, atoll_broadcast_fn broadcast,
                                    void* context, const atoll_config* config, atoll_world** world);
/* Makes one rank of a job of hosts * ranks_per_host ranks that does not exist, for simulated
 * devices (planner.h). `config` may be NULL: the default settings. */
atoll_status atoll_world_open_simulated(int32_t rank, int32_t hosts, int32_t ranks_per_host,
                                        const atoll_config* config, atoll_world** world);
/* Leaves the job. Rank 0 serves the job until all other ranks have left, for at most 10 s. Other
 * ranks take this for the good end of this rank; call atoll_world_fail() before if it is not. A
 * process that ends without this call is lost for the other ranks. */
void atoll_world_close(atoll_world* world);

/* Rank of this process and number of ranks, in the job and on this host. */
atoll_status atoll_world_rank(const atoll_world* world, int32_t* rank);
atoll_status atoll_world_size(const atoll_world* world, int32_t* size);
atoll_status atoll_world_local_rank(const atoll_world* world, int32_t* rank);
atoll_status atoll_world_local_size(const atoll_world* world, int32_t* size);
atoll_status atoll_world_hosts(const atoll_world* world, int32_t* hosts); /* number of hosts */
/* Index of the host on which `rank` runs. */
atoll_status atoll_world_host_of(const atoll_world* world, int32_t rank, int32_t* host);

/* Stores a value of at most 16 MiB under a key of 1 to 256 bytes, for all ranks. */
atoll_status atoll_world_put(atoll_world* world, const char* key, const void* value, size_t bytes);
/* Waits until a rank has put the key; ATOLL_TIMEOUT after `timeout_ms`. On entry *bytes is the
 * capacity of `value`, on return the size of the stored value. If it does not fit, the function
 * sets *bytes only and returns ATOLL_INVALID_ARGUMENT. */
atoll_status atoll_world_get(atoll_world* world, const char* key, int64_t timeout_ms, void* value,
                             size_t* bytes);
/* Returns when all ranks have called it. Collective. */
atoll_status atoll_world_barrier(atoll_world* world);

/* Declares that the job has failed: the calls of all ranks fail with `reason`. Does nothing if an
 * argument is NULL. */
void atoll_world_fail(atoll_world* world, const char* reason);
/* Takes this rank, which is not rank 0, out of the job, while the others go on. All handles made
 * from the World must be closed before; then the World can only be closed. */
atoll_status atoll_world_leave(atoll_world* world);
/* What a process asks for when it wants a place in the next epoch of the job (World::Regroup). */
typedef struct atoll_regroup {
  size_t size;
  const char* tag;   /* replica to which the process belongs; NULL: it is a replica alone */
  int32_t needed;    /* ranks of a whole replica; 0: 1 */
  int32_t min_ranks; /* with fewer ranks no epoch begins; 0: 1 */
  int64_t grace_ms;  /* wait for living ranks that have not asked; 0: 10 s */
} atoll_regroup;
/* Rebuilds the World after a loss, with the setting "failure_scope" communicator: ends `old`, whose
 * handles can then only be closed, and makes the World of the next epoch, in which the living ranks
 * have new numbers. Collective among these. `wish` may be NULL. ATOLL_MISMATCH if the epoch began
 * without this rank, ATOLL_ABORTED if too few ranks are left. */
atoll_status atoll_world_regroup(atoll_world* old, const atoll_regroup* wish, atoll_world** world);
/* Enters a running job as a new process: waits at the store of the settings "addr" and "token"
 * until its ranks regroup. `wish` and `config` may be NULL. */
atoll_status atoll_world_enter(const atoll_regroup* wish, const atoll_config* config,
                               atoll_world** world);
/* Number of the epoch: 0 for the World that the launcher starts. */
atoll_status atoll_world_epoch(const atoll_world* world, int32_t* epoch);
/* Returns the status and text with which the job has failed; ATOLL_OK if it has not. */
atoll_status atoll_world_check(const atoll_world* world);
/* Stores the ranks that have left, or that were lost while the setting "failure_scope" is
 * "communicator". On entry *n is the capacity of `ranks`, on return the number of these ranks; only
 * as many as fit are stored. */
atoll_status atoll_world_departed(const atoll_world* world, int32_t* ranks, size_t* n);
/* Status and text of an operation or a job; ATOLL_OK and "" for a success. */
typedef void (*atoll_done_fn)(void* context, atoll_status status, const char* text);
typedef void (*atoll_departure_fn)(void* context, int32_t rank, atoll_status status,
                                   const char* text);
/* Calls `callback` when the job fails, or once for each rank that departs, until the World is
 * closed; for what has happened before, at once on this thread. The callback must not call
 * functions of the World that communicate, nor open communicators. */
atoll_status atoll_world_on_failure(atoll_world* world, atoll_done_fn callback, void* context);
atoll_status atoll_world_on_departure(atoll_world* world, atoll_departure_fn callback,
                                      void* context);

/* ---- Devices, streams and memory (device.hpp, communicator.hpp) ---- */

/* Opens the CPU (ATOLL_MEMORY_CPU; `ordinal` is ignored) or the GPU with this CUDA ordinal
 * (ATOLL_MEMORY_CUDA). ATOLL_UNSUPPORTED in a build without CUDA. */
atoll_status atoll_device_open(int32_t memory, int32_t ordinal, atoll_device** device);
void atoll_device_close(atoll_device* device);

/* Makes a stream. `name` is for messages and traces and may be NULL. */
atoll_status atoll_stream_open(const atoll_device* device, const char* name, atoll_stream** stream);
/* Makes a stream of a cudaStream_t that the caller owns and keeps alive as long as the result. */
atoll_status atoll_stream_wrap(const atoll_device* device, void* cuda_stream, const char* name,
                               atoll_stream** stream);
/* Blocks until all enqueued work is done. If that work has failed and no function has returned its
 * error yet, the job fails. */
void atoll_stream_close(atoll_stream* stream);
/* Calls `work` in stream order. On a GPU it must not call CUDA or this API. */
atoll_status atoll_stream_enqueue(atoll_stream* stream, void (*work)(void* context), void* context);
/* Copies bytes, or fills them with zeros, in stream order. */
atoll_status atoll_stream_copy(atoll_stream* stream, void* dst, const void* src, size_t bytes);
atoll_status atoll_stream_zero(atoll_stream* stream, void* dst, size_t bytes);
/* Makes later work of `stream` wait for the work that `other` has now. */
atoll_status atoll_stream_wait(atoll_stream* stream, atoll_stream* other);
/* Blocks until all work is done. Returns the error of the stream's work if some has failed; later
 * work then runs again. */
atoll_status atoll_stream_synchronize(atoll_stream* stream);

/* Allocates zeroed memory that the n communicators access on their fastest path. Collective over
 * each of them. With n = 0, allocates uninitialised memory of the device, not collective. */
atoll_status atoll_buffer_open(const atoll_device* device, size_t bytes,
                               atoll_communicator* const* communicators, size_t n,
                               atoll_buffer** buffer);
/* Allocates memory on this rank alone; not collective. Blocks until the collectives that are
 * enqueued on the communicators are complete. See allocate_alone() for registration and errors. */
atoll_status atoll_buffer_open_alone(const atoll_device* device, size_t bytes,
                                     atoll_communicator* const* communicators, size_t n,
                                     atoll_buffer** buffer);
/* Stores the address of the memory, which belongs to the buffer. */
atoll_status atoll_buffer_data(const atoll_buffer* buffer, void** data);
/* Frees the memory. No stream of this rank may still use it. */
void atoll_buffer_close(atoll_buffer* buffer);
/* Registers memory of the caller with n communicators. Collective over each of them. The caller
 * keeps the memory until the registration is closed. */
atoll_status atoll_registration_open(void* memory, size_t bytes,
                                     atoll_communicator* const* communicators, size_t n,
                                     atoll_registration** registration);
/* Stores why operations access the memory more slowly than a buffer; "" if they do not. */
atoll_status atoll_registration_slow(const atoll_registration* registration, const char** reason);
/* Blocks until the enqueued operations of the communicators are complete. */
void atoll_registration_close(atoll_registration* registration);

/* ---- Topology (topology.hpp) ---- */

/* Discovers all hosts of the job. Collective. */
atoll_status atoll_topology_discover(atoll_world* world, atoll_topology** topology);
/* Discovers this host. `host_id` becomes its id; NULL: the host name. */
atoll_status atoll_topology_discover_local(const char* host_id, atoll_topology** topology);
/* Reads the JSON of topology/README.md. `source` names the text in errors: ATOLL_BAD_DATA with the
 * byte offset. */
atoll_status atoll_topology_from_json(const char* json, const char* source,
                                      atoll_topology** topology);
/* Stores a text that the caller passes to atoll_free(). */
atoll_status atoll_topology_to_json(const atoll_topology* topology, char** json);
void atoll_topology_close(atoll_topology* topology);

/* ---- Mesh (mesh.hpp) ---- */

typedef struct atoll_mesh_options {
  size_t size;
  int32_t tensor;           /* size of a third, innermost axis "tensor"; 0 or 1: no such axis */
  int32_t emulated_islands; /* number of islands to emulate; 0: the setting "islands" */
  double params;            /* parameters of the model that must fit in memory; 0: not considered */
} atoll_mesh_options;
/* Plans the mesh "replicate" x "shard" that suits the topology. Collective. `options` may be NULL,
 * and must be equal on all ranks. */
atoll_status atoll_mesh_plan(const atoll_topology* topology, atoll_world* world,
                             const atoll_mesh_options* options, atoll_mesh** mesh);
typedef struct atoll_axis {
  const char* name;
  int32_t size; /* number of ranks */
} atoll_axis;
/* Makes a mesh of n named axes, outermost first, whose sizes multiply to the size of the World.
 * Collective. With a topology, which may be NULL, the mesh has findings. */
atoll_status atoll_mesh_make(atoll_world* world, const atoll_axis* axes, size_t n,
                             const atoll_topology* topology, atoll_mesh** mesh);
/* The axes as text, such as "2x4", and why the planner chose them. */
atoll_status atoll_mesh_text(const atoll_mesh* mesh, const char** text);
atoll_status atoll_mesh_reason(const atoll_mesh* mesh, const char** reason);
/* Stores name and size of the axis with this index, outermost first. ATOLL_NOT_FOUND if there are
 * no more axes. */
atoll_status atoll_mesh_axis(const atoll_mesh* mesh, size_t index, atoll_axis* axis);
/* Stores the ranks of the World along an axis ("world": all of the mesh) in order, their number,
 * and the position of this rank among them. The ranks belong to the mesh. */
atoll_status atoll_mesh_ranks(const atoll_mesh* mesh, const char* axis, const int32_t** ranks,
                              int32_t* n, int32_t* index);
enum { /* severity of a finding */
  ATOLL_SEVERITY_INFO = 0,
  ATOLL_SEVERITY_WARNING = 1,
  ATOLL_SEVERITY_ERROR = 2
};
typedef struct atoll_finding {
  size_t size;
  const char* id; /* name of the check, such as "nvlink_down" */
  int32_t severity;
  const char* evidence;    /* what the check saw, with figures */
  const char* consequence; /* what the problem costs */
  const char* fix;         /* how to fix the problem */
  const char* line;        /* all three as one line for a log */
  const char* subjects;    /* the hosts and devices concerned, separated by ", " */
} atoll_finding;
/* Stores what is wrong with the machine or the mesh: the finding with this index. The caller sets
 * finding->size; the texts belong to the mesh. ATOLL_NOT_FOUND if there are no more findings. */
atoll_status atoll_mesh_finding(const atoll_mesh* mesh, size_t index, atoll_finding* finding);
void atoll_mesh_close(atoll_mesh* mesh);

/* ---- Communicator (communicator.hpp) ---- */

typedef struct atoll_communicator_options {
  size_t size;
  const char* name;           /* name in messages and traces; NULL: the name of the axis */
  const char* backend;        /* NULL: the setting "backend", or else the best common backend */
  const atoll_device* device; /* NULL: the CPU */
  const atoll_communicator* parent; /* a communicator to split, or NULL */
  int64_t timeout_ms;               /* time limit of one collective; 0: the setting "timeout" */
  int32_t deterministic;  /* 1 and -1 turn the setting "deterministic" on and off; 0 leaves it */
  int32_t one_level;      /* nonzero: NCCL sends all data through one communicator */
  const char* algorithm;  /* such as "all_reduce:ring"; NULL: the setting "algorithm" */
  int32_t compute_units;  /* ATOLL_COMPUTE_UNITS_... */
  int32_t tags;           /* nonzero: messages have tags and may come from any rank */
  const atoll_stop* stop; /* ends the opening; NULL: nothing does */
} atoll_communicator_options;
/* A stop ends atoll_communicator_open() on all ranks with ATOLL_ABORTED, if any thread has
 * requested it before or during the call on one rank. Each rank may pass a stop of its own, or
 * NULL. The caller owns it and closes it after the call. */
atoll_status atoll_stop_open(atoll_stop** stop);
atoll_status atoll_stop_request(atoll_stop* stop);
void atoll_stop_close(atoll_stop* stop);
/* Opens a communicator over an axis of the mesh ("world": all its ranks). Collective over the axis.
 * `options` may be NULL; they must be equal on all ranks, except the stop. */
atoll_status atoll_communicator_open(const atoll_mesh* mesh, const char* axis,
                                     const atoll_communicator_options* options,
                                     atoll_communicator** comm);
/* Opens a communicator of n ranks of the World, in this order. Collective over these ranks. */
atoll_status atoll_communicator_open_ranks(atoll_world* world, const int32_t* ranks, size_t n,
                                           const atoll_communicator_options* options,
                                           atoll_communicator** comm);
/* Ranks of one color, which is at least 0, form a communicator, ordered by key and then by rank.
 * Collective. A rank with a negative color gets NULL. `name` may be NULL. */
atoll_status atoll_communicator_split(const atoll_communicator* comm, int32_t color, int32_t key,
                                      const char* name, atoll_communicator** part);
/* Makes another handle of the same communicator, whose operations have this time limit. */
atoll_status atoll_communicator_with_timeout(const atoll_communicator* comm, int64_t timeout_ms,
                                             atoll_communicator** result);
/* Blocks until all enqueued operations are complete. */
void atoll_communicator_close(atoll_communicator* comm);
/* Rank of the caller in the communicator and number of ranks; names of communicator and backend. */
atoll_status atoll_communicator_rank(const atoll_communicator* comm, int32_t* rank);
atoll_status atoll_communicator_size(const atoll_communicator* comm, int32_t* size);
atoll_status atoll_communicator_name(const atoll_communicator* comm, const char** name);
atoll_status atoll_communicator_backend(const atoll_communicator* comm, const char** name);
/* Stores a text such as "network IB with GPUDirect RDMA", for atoll_free() by the caller. */
atoll_status atoll_communicator_transports(const atoll_communicator* comm, char** text);
/* Returns the status and text with which the communicator has ended on any rank; ATOLL_OK if it has
 * not. Does not block. */
atoll_status atoll_communicator_check(const atoll_communicator* comm);
/* Ends the communicator on all its ranks with `reason`. Returns at once. */
atoll_status atoll_communicator_abort(atoll_communicator* comm, const char* reason);

/* ---- Collectives (communicator.hpp) ----
 *
 * Each function enqueues its operation on `stream` and returns at once. The counts, dtypes and ops
 * of all ranks must be equal, and the buffers must stay alive until the operation is complete.
 * `work` may be NULL; otherwise the caller owns *work. n is the size of the communicator.
 *
 * Wrong arguments are ATOLL_INVALID_ARGUMENT, before anything is sent. The status of an operation
 * that fails later comes from the functions of its Work, or from atoll_stream_synchronize(). With
 * the setting "failure_scope" = "communicator", a failed operation or a lost rank (ATOLL_PEER_LOST)
 * ends the communicator on all its ranks, and otherwise the job. */

/* A flag for the op (ATOLL_SUM | ATOLL_NATIVE): the backend may use its own arithmetic. NCCL then
 * reduces bf16 and f16 itself and rounds at every rank (Reduction::natively()). */
#define ATOLL_NATIVE 0x10000
/* dst[i] = op over all ranks r of (src of rank r)[i], for `count` elements. In place: src = dst. */
atoll_status atoll_all_reduce(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                              int32_t dtype, int32_t op, atoll_stream* stream, atoll_work** work);
/* Sends `count` elements and receives count * n. In place: src = dst + rank * count. */
atoll_status atoll_all_gather(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                              int32_t dtype, atoll_stream* stream, atoll_work** work);
/* Sends count * n elements and receives `count`: the sum of the parts at rank * count. In place:
 * dst = src + rank * count. */
atoll_status atoll_reduce_scatter(atoll_communicator* comm, const void* src, void* dst,
                                  uint64_t count, int32_t dtype, int32_t op, atoll_stream* stream,
                                  atoll_work** work);
/* The same sums of factor * src. Factors may differ between ranks, but all ranks of an operation
 * call this form. `op` is ATOLL_SUM or ATOLL_AVG, and `dtype` a floating-point type. */
atoll_status atoll_all_reduce_scaled(atoll_communicator* comm, const void* src, void* dst,
                                     uint64_t count, int32_t dtype, int32_t op, double factor,
                                     atoll_stream* stream, atoll_work** work);
atoll_status atoll_reduce_scatter_scaled(atoll_communicator* comm, const void* src, void* dst,
                                         uint64_t count, int32_t dtype, int32_t op, double factor,
                                         atoll_stream* stream, atoll_work** work);
/* Reduces like all_reduce, but only dst of `root` is written; other ranks may pass NULL. */
atoll_status atoll_reduce(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                          int32_t dtype, int32_t op, int32_t root, atoll_stream* stream,
                          atoll_work** work);
/* Copies `data` of `root` to `data` of all other ranks. */
atoll_status atoll_broadcast(atoll_communicator* comm, void* data, uint64_t count, int32_t dtype,
                             int32_t root, atoll_stream* stream, atoll_work** work);
/* dst[r * count + i] = (src of rank r)[rank * count + i] for every rank r. src and dst have
 * count * n elements and must not overlap. */
atoll_status atoll_all_to_all(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                              int32_t dtype, atoll_stream* stream, atoll_work** work);
/* Gathers `count` elements of each rank in dst of `root`, in rank order; other ranks may pass no
 * dst. In place on root: src = dst + root * count. */
atoll_status atoll_gather(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                          int32_t dtype, int32_t root, atoll_stream* stream, atoll_work** work);
/* Sends `count` elements of src of `root` to each rank, in rank order; other ranks may pass no src.
 * In place on root: dst = src + root * count. */
atoll_status atoll_scatter(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                           int32_t dtype, int32_t root, atoll_stream* stream, atoll_work** work);

/* Uneven forms: counts[r] elements belong to rank r, packed in rank order. All ranks pass the same
 * n counts. */
atoll_status atoll_all_gather_v(atoll_communicator* comm, const void* src, void* dst,
                                const uint64_t* counts, int32_t dtype, atoll_stream* stream,
                                atoll_work** work);
atoll_status atoll_reduce_scatter_v(atoll_communicator* comm, const void* src, void* dst,
                                    const uint64_t* counts, int32_t dtype, int32_t op,
                                    atoll_stream* stream, atoll_work** work);
atoll_status atoll_gather_v(atoll_communicator* comm, const void* src, void* dst,
                            const uint64_t* counts, int32_t dtype, int32_t root,
                            atoll_stream* stream, atoll_work** work);
/* Sends send_counts[r] elements to rank r and receives recv_counts[r] elements from it. Each rank
 * passes its own counts. */
atoll_status atoll_all_to_all_v(atoll_communicator* comm, const void* src,
                                const uint64_t* send_counts, void* dst, const uint64_t* recv_counts,
                                int32_t dtype, atoll_stream* stream, atoll_work** work);

/* Messages between two ranks. A send is complete when src may be reused. Without the option `tags`,
 * `tag` must be 0, and ranks that send to each other use atoll_send_recv(). With it, tags are
 * numbers from 0 to 2147483647, a receive may pass ATOLL_ANY as peer or tag, and ranks may send
 * before they receive, within the limit that communicator.hpp states. */
atoll_status atoll_send(atoll_communicator* comm, const void* src, uint64_t count, int32_t dtype,
                        int32_t peer, int32_t tag, atoll_stream* stream, atoll_work** work);
atoll_status atoll_recv(atoll_communicator* comm, void* dst, uint64_t count, int32_t dtype,
                        int32_t peer, int32_t tag, atoll_stream* stream, atoll_work** work);
typedef struct atoll_message {
  int32_t kind; /* ATOLL_SEND or ATOLL_RECV */
  int32_t peer;
  void* data; /* a send only reads it */
  uint64_t count;
  int32_t dtype;
  int32_t tag; /* as for atoll_send() */
} atoll_message;
/* Performs n sends and receives as one operation, so that they cannot deadlock each other. */
atoll_status atoll_send_recv(atoll_communicator* comm, const atoll_message* messages, size_t n,
                             atoll_stream* stream, atoll_work** work);
/* Complete when the streams of all ranks have reached it. */
atoll_status atoll_barrier(atoll_communicator* comm, atoll_stream* stream, atoll_work** work);

/* ---- Work: an operation in flight (communicator.hpp) ---- */

/* Makes `stream` wait for the operation and returns at once. Returns its status if it is known to
 * have failed. */
atoll_status atoll_work_wait(const atoll_work* work, atoll_stream* stream);
/* Blocks until the operation is complete. Returns its status. */
atoll_status atoll_work_synchronize(const atoll_work* work);
/* The same, but after `timeout_ms` returns ATOLL_OK with *done = 0; otherwise *done = 1. */
atoll_status atoll_work_synchronize_for(const atoll_work* work, int64_t timeout_ms, int32_t* done);
/* *done = 1 if the operation is complete or has failed, else 0. */
atoll_status atoll_work_done(const atoll_work* work, int32_t* done);
/* Returns the status of a failed operation, with its text; ATOLL_OK if it is in flight or
 * complete. Does not block. */
atoll_status atoll_work_error(const atoll_work* work);
/* Stores the source and the tag of the message that a complete atoll_recv() with tags has received;
 * ATOLL_ANY while it is in flight, after a failure, and for other operations. */
atoll_status atoll_work_source(const atoll_work* work, int32_t* source, int32_t* tag);
/* Calls `callback` once when the operation is complete or has failed: at once on this thread if it
 * is. The Work may be closed before. */
atoll_status atoll_work_then(const atoll_work* work, atoll_done_fn callback, void* context);
/* Does not cancel the operation. */
void atoll_work_close(atoll_work* work);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif /* ATOLL_ATOLL_H */
