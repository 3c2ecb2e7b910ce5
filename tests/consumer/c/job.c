/* Prints the mesh that the topology suggests, adds up one number of every rank, and passes another
 * one around. With the argument "killed" the last rank then kills itself: the other ranks get
 * ATOLL_PEER_LOST, go on with a communicator of those that are left, and then rebuild the World. */
#define _POSIX_C_SOURCE 200112L
#include <atoll/plugin.h>
/* A program may include both headers, in either order. */
#include <atoll/atoll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct job {
  atoll_world* world;
  atoll_stream* stream;
  int32_t rank, size, hosts;
} job;

static void check(atoll_status status, const char* what) {
  if (status == ATOLL_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, atoll_status_name(status), atoll_last_error());
  exit(1);
}
#define CHECK(call) check(call, #call)

static void require(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "not true: %s\n", what);
  exit(1);
}
#define REQUIRE(condition) require(condition, #condition)

/* Counts calls with a success. */
static void count(void* context, atoll_status status, const char* text) {
  if (status == ATOLL_OK && text[0] == 0) ++*(int*)context;
}

static atoll_mesh* suggested_mesh(const job* job) {
  atoll_topology* topology;
  atoll_mesh* mesh;
  const char *text, *reason;
  atoll_finding finding;
  size_t n = 0;
  CHECK(atoll_topology_discover(job->world, &topology));
  CHECK(atoll_mesh_plan(topology, job->world, NULL, &mesh));
  CHECK(atoll_mesh_text(mesh, &text));
  CHECK(atoll_mesh_reason(mesh, &reason));
  finding.size = sizeof finding;
  while (atoll_mesh_finding(mesh, n, &finding) == ATOLL_OK) printf("%zu. %s\n", ++n, finding.line);
  printf("rank %d of %d, hosts %d: mesh %s\n", (int)job->rank, (int)job->size, (int)job->hosts,
         text);
  if (job->rank == 0) printf("because %s\n", reason);
  atoll_topology_close(topology);
  return mesh;
}

static void sum(const job* job, atoll_communicator* comm, float expected) {
  atoll_work* work;
  int32_t done = 0;
  int told = 0;
  float number = 1.0f + (float)job->rank;
  CHECK(atoll_all_reduce(comm, &number, &number, 1, ATOLL_F32, ATOLL_SUM, job->stream, &work));
  while (!done) CHECK(atoll_work_synchronize_for(work, 1000, &done));
  CHECK(atoll_work_then(work, count, &told)); /* the work is complete, so it calls at once */
  REQUIRE(told == 1);
  CHECK(atoll_work_error(work));
  atoll_work_close(work);
  REQUIRE(number == expected);
}

/* Every rank sends its number to the next rank: even ranks first send, and odd ranks receive. */
static void pass_around(const job* job, atoll_communicator* comm) {
  const int32_t next = (job->rank + 1) % job->size;
  const int32_t last = (job->rank + job->size - 1) % job->size;
  const int64_t mine = 100 + job->rank;
  int64_t theirs = 0;
  if (job->rank % 2 == 0) CHECK(atoll_send(comm, &mine, 1, ATOLL_I64, next, 0, job->stream, NULL));
  CHECK(atoll_recv(comm, &theirs, 1, ATOLL_I64, last, 0, job->stream, NULL));
  if (job->rank % 2 != 0) CHECK(atoll_send(comm, &mine, 1, ATOLL_I64, next, 0, job->stream, NULL));
  CHECK(atoll_stream_synchronize(job->stream));
  printf("rank %d received %d from rank %d\n", (int)job->rank, (int)theirs, (int)last);
}

/* The ranks that are left form a World of their own. */
static void rebuild(const job* last) {
  int32_t ranks[64], epoch;
  job next = *last;
  atoll_communicator* all;
  CHECK(atoll_world_regroup(last->world, NULL, &next.world));
  CHECK(atoll_world_epoch(next.world, &epoch));
  CHECK(atoll_world_rank(next.world, &next.rank));
  CHECK(atoll_world_size(next.world, &next.size));
  REQUIRE(epoch == 1 && next.rank == last->rank && next.size == last->size - 1);
  for (int32_t rank = 0; rank < next.size; ++rank) ranks[rank] = rank;
  CHECK(atoll_communicator_open_ranks(next.world, ranks, (size_t)next.size, NULL, &all));
  sum(&next, all, (float)(next.size * (next.size + 1) / 2));
  atoll_communicator_close(all);
  atoll_world_close(next.world);
}

static void lose_last_rank(const job* job, atoll_communicator* comm) {
  int32_t survivors[64], lost = -1;
  size_t departed = 0;
  float number = 1.0f;
  atoll_status status;
  atoll_communicator_options options = {0};
  atoll_communicator* rest;
  CHECK(atoll_world_barrier(job->world)); /* all ranks have their messages */
  fflush(stdout);                         /* or the killed rank would lose its lines */
  if (job->rank == job->size - 1) kill(getpid(), SIGKILL);
  status = atoll_all_reduce(comm, &number, &number, 1, ATOLL_F32, ATOLL_SUM, job->stream, NULL);
  if (status == ATOLL_OK) status = atoll_stream_synchronize(job->stream);
  printf("rank %d: %s\n", (int)job->rank, atoll_last_error());
  REQUIRE(status == ATOLL_PEER_LOST);
  REQUIRE(atoll_communicator_check(comm) == ATOLL_PEER_LOST);
  while (departed == 0) {
    departed = 1;
    CHECK(atoll_world_departed(job->world, &lost, &departed));
  }
  REQUIRE(lost == job->size - 1);
  for (int32_t rank = 0; rank < job->size - 1; ++rank) survivors[rank] = rank;
  options.size = sizeof options;
  options.name = "rest";
  CHECK(
      atoll_communicator_open_ranks(job->world, survivors, (size_t)job->size - 1, &options, &rest));
  sum(job, rest, (float)(job->size * (job->size - 1) / 2));
  atoll_communicator_close(rest);
  rebuild(job);
  printf("rank %d goes on\n", (int)job->rank);
}

int main(int argc, char** argv) {
  job job;
  atoll_config* config;
  atoll_device* cpu;
  atoll_mesh* mesh;
  atoll_communicator* comm;
  REQUIRE(atoll_c_abi() == ATOLL_C_ABI);
  CHECK(atoll_config_open(&config));
  CHECK(atoll_config_set(config, "failure_scope", "communicator"));
  CHECK(atoll_world_open(config, &job.world));
  atoll_config_close(config);
  CHECK(atoll_world_rank(job.world, &job.rank));
  CHECK(atoll_world_size(job.world, &job.size));
  CHECK(atoll_world_hosts(job.world, &job.hosts));
  CHECK(atoll_device_open(ATOLL_MEMORY_CPU, 0, &cpu));
  CHECK(atoll_stream_open(cpu, "compute", &job.stream));
  mesh = suggested_mesh(&job);
  CHECK(atoll_communicator_open(mesh, "world", NULL, &comm));
  sum(&job, comm, (float)(job.size * (job.size + 1) / 2));
  if (job.size > 1) pass_around(&job, comm);
  if (argc > 1 && strcmp(argv[1], "killed") == 0) lose_last_rank(&job, comm);
  atoll_communicator_close(comm);
  atoll_mesh_close(mesh);
  atoll_stream_close(job.stream);
  atoll_device_close(cpu);
  atoll_world_close(job.world);
  return 0;
}
