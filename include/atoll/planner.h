/* The planner of the C API: simulated devices, and a model of the time of arithmetic (planner.hpp).
 * Programs link libatoll_planner (atoll::planner). The rules of atoll.h apply; times are seconds.
 *
 * The streams of a simulated device are clocks, and its memory has sizes only: do not read or write
 * it. Communicators of a World of atoll_world_open_simulated() take such a device. */
#ifndef ATOLL_PLANNER_H
#define ATOLL_PLANNER_H

#include "atoll/atoll.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

typedef struct atoll_simulated_options {
  size_t size;
  const char* name;      /* NULL: "simulated" */
  uint64_t memory_bytes; /* limit of allocated bytes; 0: none */
  double memory_gbyte_s; /* memory bandwidth in GB/s (1e9 bytes per second); 0: 1000 */
  double launch_seconds; /* CPU time to enqueue one kernel or copy */
  int32_t units;         /* number of compute units (SMs); 0: none */
  int32_t nics;          /* number of NICs of a host; 0: 1 */
  double intra_gbyte_s;  /* rate at which a rank sends inside its host; 0: no links */
  double inter_gbyte_s;  /* rate of all NICs of a host together, in one direction; 0: no links */
} atoll_simulated_options;
/* Makes a simulated device. `options` may be NULL. Collectives need the rate of their links. */
atoll_status atoll_simulated_open(const atoll_simulated_options* options, atoll_device** device);

typedef struct atoll_timed_work {
  size_t size;
  const char* name; /* name in traces; may be NULL */
  double latency;   /* seconds before the work begins to use resources */
  double seconds;   /* seconds that it takes when nothing else runs */
  /* Shares that it uses, from 0 to 1, of compute units, memory bandwidth, links inside the host and
   * links to other hosts. */
  double compute, memory, intra, inter;
} atoll_timed_work;
/* Enqueues work that takes modelled time. The stream must be of a simulated device. */
atoll_status atoll_simulated_run(atoll_stream* stream, const atoll_timed_work* work);
/* Stores the time of the simulated CPU, which launches and synchronize functions advance. */
atoll_status atoll_simulated_time(const atoll_device* device, double* seconds);
/* Lets the simulated CPU spend time on other work. */
atoll_status atoll_simulated_spend(const atoll_device* device, double seconds);

typedef struct atoll_compute_model atoll_compute_model;
/* Finds the model of a GPU by a name such as "H100". ATOLL_NOT_FOUND lists the known names. */
atoll_status atoll_compute_model_open(const char* name, atoll_compute_model** model);
void atoll_compute_model_close(atoll_compute_model* model);
/* Seconds of a product of an m x k and a k x n matrix, in bf16 or (bf16 = 0) f32, whose operands
 * and result have `moved_bytes` bytes. */
atoll_status atoll_product_seconds(const atoll_compute_model* model, int64_t m, int64_t n,
                                   int64_t k, int32_t bf16, uint64_t moved_bytes, double* seconds);
/* Seconds of causal attention over sequences of `seq` tokens, with `flops` operations without the
 * masked half. */
atoll_status atoll_attention_seconds(const atoll_compute_model* model, double flops, int64_t seq,
                                     int32_t bf16, double* seconds);
/* Seconds of a kernel that reads and writes `bytes` bytes in total. */
atoll_status atoll_moving_seconds(const atoll_compute_model* model, double bytes, double* seconds);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif /* ATOLL_PLANNER_H */
