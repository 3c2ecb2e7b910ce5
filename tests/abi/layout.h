/* Pins the offset of every field and the value of every constant of plugin.h on 64-bit machines.
 * Once the ABI is released, lines may be added here but never changed, because old backends rely on
 * these numbers. A C file and a C++ file include this header. */
#include <stddef.h>

#include "atoll/plugin.h"

#ifndef __cplusplus
#include <assert.h> /* static_assert */
#endif

#define AT(type, field, offset) \
  static_assert(offsetof(type, field) == (offset), #type "." #field " has moved")
#define SIZE(type, bytes) \
  static_assert(sizeof(type) == (bytes), "the size of " #type " has changed")
#define VALUE(name, number) \
  static_assert((int)(name) == (number), "the value of " #name " has changed")

static_assert(sizeof(void*) == 8, "the offsets in this file are those of 64-bit machines");
SIZE(atoll_status, 4);

AT(atoll_core, size, 0);
AT(atoll_core, ctx, 8);
AT(atoll_core, log, 16);
AT(atoll_core, put, 24);
AT(atoll_core, get, 32);
AT(atoll_core, get_all, 40);
AT(atoll_core, adapters, 48);
SIZE(atoll_core, 56);

AT(atoll_placement, size, 0);
AT(atoll_placement, world_rank, 8);
AT(atoll_placement, host, 12);
AT(atoll_placement, device, 16);
AT(atoll_placement, address, 24);
AT(atoll_placement, rail_addresses, 32);
SIZE(atoll_placement, 40);

AT(atoll_group, size, 0);
AT(atoll_group, rank, 8);
AT(atoll_group, nranks, 12);
AT(atoll_group, world_rank, 16);
AT(atoll_group, world_size, 20);
AT(atoll_group, memory, 24);
AT(atoll_group, id, 32);
AT(atoll_group, name, 40);
AT(atoll_group, placements, 48);
AT(atoll_group, token, 56);
AT(atoll_group, timeout_ns, 64);
AT(atoll_group, tuning, 72);
AT(atoll_group, deterministic, 80);
AT(atoll_group, host_ranks, 84);
AT(atoll_group, checksum, 88);
AT(atoll_group, compute_units, 92);
AT(atoll_group, cut_ns, 96);
AT(atoll_group, rdma, 104);
AT(atoll_group, links, 112);
AT(atoll_group, owns_process, 120);
AT(atoll_group, tags, 124);
SIZE(atoll_group, 128);

AT(atoll_cost, size, 0);
AT(atoll_cost, latency_s, 8);
AT(atoll_cost, seconds, 16);
AT(atoll_cost, intra, 24);
AT(atoll_cost, inter, 32);
AT(atoll_cost, compute, 40);
SIZE(atoll_cost, 48);

AT(atoll_arrival, source, 0);
AT(atoll_arrival, tag, 4);
SIZE(atoll_arrival, 8);

AT(atoll_operation, size, 0);
AT(atoll_operation, kind, 8);
AT(atoll_operation, dtype, 12);
AT(atoll_operation, op, 16);
AT(atoll_operation, peer, 20);
AT(atoll_operation, memory, 24);
AT(atoll_operation, src, 32);
AT(atoll_operation, dst, 40);
AT(atoll_operation, count, 48);
AT(atoll_operation, sequence, 56);
AT(atoll_operation, stream, 64);
AT(atoll_operation, timeout_ns, 72);
AT(atoll_operation, counts, 80);
AT(atoll_operation, factor, 88);
AT(atoll_operation, recv_counts, 96);
AT(atoll_operation, cost, 104);
AT(atoll_operation, label, 112);
AT(atoll_operation, tag, 120);
AT(atoll_operation, arrived, 128);
SIZE(atoll_operation, 136);

AT(atoll_backend, size, 0);
AT(atoll_backend, abi_major, 8);
AT(atoll_backend, abi_minor, 12);
AT(atoll_backend, name, 16);
AT(atoll_backend, probe, 24);
AT(atoll_backend, capability, 32);
AT(atoll_backend, open, 40);
AT(atoll_backend, submit, 48);
AT(atoll_backend, abort, 56);
AT(atoll_backend, close, 64);
AT(atoll_backend, last_error, 72);
AT(atoll_backend, shutdown, 80);
AT(atoll_backend, async_error, 88);
AT(atoll_backend, split, 96);
AT(atoll_backend, mem_alloc, 104);
AT(atoll_backend, mem_free, 112);
AT(atoll_backend, register_memory, 120);
AT(atoll_backend, deregister_memory, 128);
AT(atoll_backend, has_levels, 136);
AT(atoll_backend, transports, 144);
AT(atoll_backend, register_caller_memory, 152);
AT(atoll_backend, deregister_caller_memory, 160);
AT(atoll_backend, register_own_memory, 168);
SIZE(atoll_backend, 176);

VALUE(ATOLL_OK, 0);
VALUE(ATOLL_INVALID_ARGUMENT, 1);
VALUE(ATOLL_NOT_FOUND, 2);
VALUE(ATOLL_UNSUPPORTED, 3);
VALUE(ATOLL_TIMEOUT, 4);
VALUE(ATOLL_PEER_LOST, 5);
VALUE(ATOLL_ABORTED, 6);
VALUE(ATOLL_MISMATCH, 7);
VALUE(ATOLL_IO, 8);
VALUE(ATOLL_OUT_OF_MEMORY, 9);
VALUE(ATOLL_BAD_DATA, 10);
VALUE(ATOLL_BACKEND, 11);
VALUE(ATOLL_INTERNAL, 12);

VALUE(ATOLL_F32, 0);
VALUE(ATOLL_BF16, 1);
VALUE(ATOLL_F16, 2);
VALUE(ATOLL_F64, 3);
VALUE(ATOLL_I32, 4);
VALUE(ATOLL_I64, 5);
VALUE(ATOLL_U8, 6);
VALUE(ATOLL_I8, 7);
VALUE(ATOLL_U16, 8);
VALUE(ATOLL_U32, 9);
VALUE(ATOLL_U64, 10);
VALUE(ATOLL_F8E4M3, 11);
VALUE(ATOLL_F8E5M2, 12);
VALUE(ATOLL_I16, 13);
VALUE(ATOLL_BOOL, 14);

VALUE(ATOLL_SUM, 0);
VALUE(ATOLL_AVG, 1);
VALUE(ATOLL_MIN, 2);
VALUE(ATOLL_MAX, 3);
VALUE(ATOLL_PRODUCT, 4);
VALUE(ATOLL_BAND, 5);
VALUE(ATOLL_BOR, 6);
VALUE(ATOLL_BXOR, 7);

VALUE(ATOLL_MEMORY_CPU, 0);
VALUE(ATOLL_MEMORY_CUDA, 1);
VALUE(ATOLL_MEMORY_SIMULATED, 2);

VALUE(ATOLL_BARRIER, 0);
VALUE(ATOLL_BROADCAST, 1);
VALUE(ATOLL_ALL_GATHER, 2);
VALUE(ATOLL_REDUCE_SCATTER, 3);
VALUE(ATOLL_ALL_REDUCE, 4);
VALUE(ATOLL_ALL_TO_ALL, 5);
VALUE(ATOLL_SEND, 6);
VALUE(ATOLL_RECV, 7);
VALUE(ATOLL_REDUCE, 8);
VALUE(ATOLL_GATHER, 9);
VALUE(ATOLL_SCATTER, 10);
VALUE(ATOLL_ALL_GATHER_V, 11);
VALUE(ATOLL_REDUCE_SCATTER_V, 12);
VALUE(ATOLL_ALL_TO_ALL_V, 13);
VALUE(ATOLL_GATHER_V, 14);

VALUE(ATOLL_CHECKSUM_NONE, 0);
VALUE(ATOLL_CHECKSUM_CRC32C, 1);

VALUE(ATOLL_LOG_TRACE, 0);
VALUE(ATOLL_LOG_DEBUG, 1);
VALUE(ATOLL_LOG_INFO, 2);
VALUE(ATOLL_LOG_WARN, 3);
VALUE(ATOLL_LOG_ERROR, 4);
