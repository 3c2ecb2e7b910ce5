/* The training engine of the C API (fsdp.hpp, optimizer.hpp), for programs that include atoll.h.
 * The rules of atoll.h apply. One thread at a time calls the functions of an engine.
 *
 *   atoll_engine_open(mesh, NULL, &engine);
 *   atoll_engine_add_unit(engine, "layer", params, n, &layer);
 *   atoll_engine_seal(engine, order, 1);      (the order of the units in forward)
 *   atoll_engine_initialize(engine, 1);
 *   atoll_optimizer_open(engine, NULL, &optimizer);
 *   for each step:
 *     atoll_engine_begin(engine, 0, 1, 0, compute, &pass);
 *     for each unit: atoll_pass_forward(pass, unit, &scope), compute, atoll_scope_close(scope);
 *     in reverse: atoll_pass_backward(pass, unit, &scope), compute, atoll_scope_close(scope);
 *     atoll_pass_close(pass);
 *     atoll_optimizer_step(optimizer, rate, compute); */
#ifndef ATOLL_ENGINE_H
#define ATOLL_ENGINE_H

#include "atoll/atoll.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

typedef struct atoll_engine atoll_engine;
typedef struct atoll_unit atoll_unit; /* belongs to its engine */
typedef struct atoll_pass atoll_pass;
typedef struct atoll_scope atoll_scope;
typedef struct atoll_optimizer atoll_optimizer;

typedef struct atoll_engine_options {
  size_t size;
  const char* strategy;       /* such as "full_shard"; NULL: "hybrid_shard" */
  const atoll_device* device; /* NULL: the CPU */
  const char* backend;        /* NULL: the setting "backend", or else the best common backend */
  uint64_t memory_bytes;      /* limit of the memory plan; 0: none */
  int32_t average;            /* nonzero: gradients are averages over ranks, 0: sums */
  int32_t param_dtype;        /* dtype that compute reads; 0 is ATOLL_F32 */
  int32_t reduce_dtype;       /* dtype in which gradients are sent: ATOLL_F32 or ATOLL_BF16 */
  int32_t synchronous;        /* nonzero: for compute on the CPU in the calling thread */
} atoll_engine_options;
/* Collective over all ranks of the mesh. `options` may be NULL. */
atoll_status atoll_engine_open(const atoll_mesh* mesh, const atoll_engine_options* options,
                               atoll_engine** engine);
/* Close passes and optimizers before. Blocks until no stream uses the engine's memory. */
void atoll_engine_close(atoll_engine* engine);

typedef struct atoll_param {
  const char* name;
  const int64_t* shape; /* extents, in row-major order; their number is `dimensions` */
  size_t dimensions;
  float mean, deviation; /* normal distribution of the initial values */
  int32_t frozen;        /* nonzero: no gradient */
} atoll_param;
/* Declares n parameters that are gathered and reduced together. */
atoll_status atoll_engine_add_unit(atoll_engine* engine, const char* name,
                                   const atoll_param* params, size_t n, atoll_unit** unit);
/* Ends the setup: plans and allocates all memory. `order` has the names of n units in the order in
 * which forward uses them. Collective. */
atoll_status atoll_engine_seal(atoll_engine* engine, const char* const* order, size_t n);
/* Fills the parameters with their initial values. Collective. */
atoll_status atoll_engine_initialize(atoll_engine* engine, uint64_t seed);
typedef void (*atoll_visit_fn)(void* context, const char* unit, const char* param,
                               const float* values, uint64_t count);
/* Calls `visit` on this thread with each whole parameter in f32, in the order of the units.
 * Collective. */
atoll_status atoll_engine_visit(atoll_engine* engine, atoll_visit_fn visit, void* context);

/* Begins the micro batch with index `micro` of `of` micro batches, for compute that is enqueued on
 * `compute`. evaluate = 1: a pass without backward. */
atoll_status atoll_engine_begin(atoll_engine* engine, int32_t micro, int32_t of, int32_t evaluate,
                                atoll_stream* compute, atoll_pass** pass);
/* Close scopes before. */
void atoll_pass_close(atoll_pass* pass);
/* Gathers a unit for compute until the scope is closed. ATOLL_INVALID_ARGUMENT for a unit out of
 * order. */
atoll_status atoll_pass_forward(atoll_pass* pass, atoll_unit* unit, atoll_scope** scope);
atoll_status atoll_pass_backward(atoll_pass* pass, atoll_unit* unit, atoll_scope** scope);
/* Stores address and number of elements of a whole parameter, in param_dtype. Work of the stream
 * `compute` may use it until the scope is closed. */
atoll_status atoll_scope_param(const atoll_scope* scope, const char* param, void** data,
                               uint64_t* count);
/* Stores the address of the f32 gradient, with as many elements, in a scope of backward. Compute
 * must write every element (*accumulate = 0) or add to it (1). */
atoll_status atoll_scope_gradient(const atoll_scope* scope, const char* param, float** data,
                                  int32_t* accumulate);
/* Ends the use of the unit. In backward, starts the reduction of its gradients. */
void atoll_scope_close(atoll_scope* scope);

typedef struct atoll_optimizer_options {
  size_t size;
  int32_t sgd;                 /* nonzero: SGD, 0: AdamW */
  float beta1, beta2, epsilon; /* 0: 0.9, 0.95 and 1e-8 */
  float weight_decay;
  float max_norm; /* gradients are scaled down to this global norm; 0: 1; below 0: never */
} atoll_optimizer_options;
/* Collective over the ranks of the engine. `options` may be NULL. */
atoll_status atoll_optimizer_open(atoll_engine* engine, const atoll_optimizer_options* options,
                                  atoll_optimizer** optimizer);
void atoll_optimizer_close(atoll_optimizer* optimizer);
/* Enqueues the update on `compute`, after the last micro batch. Collective. */
atoll_status atoll_optimizer_step(atoll_optimizer* optimizer, float learning_rate,
                                  atoll_stream* compute);
/* Stores the global norm of the gradients of the last step, before it was limited. Blocks. */
atoll_status atoll_optimizer_norm(atoll_optimizer* optimizer, float* norm);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif /* ATOLL_ENGINE_H */
