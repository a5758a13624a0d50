/* A worker of a Sluice job, for programs in any language: the library libsluice-worker.so.
 *
 * The library contains the protocol, the connections and the memory of a worker. The program has
 * the model and the data, and computes:
 *
 *   sluice_worker* worker;
 *   sluice_join_options options = {.struct_size = sizeof options, .coordinator = "host:29500"};
 *   sluice_worker_join(&options, &worker);
 *   sluice_worker_add_tensor(worker, &weights);  // each tensor of the model
 *   sluice_worker_open(worker, training_samples, 0);
 *   sluice_work work = {.struct_size = sizeof work};
 *   while (sluice_worker_next(worker, 0, &work) == SLUICE_OK) {
 *     ... read the parameters, compute the gradients of the samples work.indices ...
 *     sluice_worker_gradient(worker, tensor, gradient, bytes, 0);
 *     sluice_worker_done(worker, &result);
 *   }
 *   sluice_worker_free(worker);
 *
 * examples/c/linear_worker.c is a whole program.
 *
 * Errors. A call returns SLUICE_OK or the code of an error, and then changes nothing unless it says
 * otherwise; sluice_last_error has the text. No C++ exception leaves the library.
 *
 * Threads. One thread calls join, add_tensor, add_metric, open, next, done, close and free of a
 * worker. Between next and done, weight, sum, gradient, row_gradient, no_gradient, buffer_change,
 * rows, metric_state, metric_parts, metric_part and metric_value may be called by several threads
 * at once, as backward passes on several devices do. leave, fail, stop_job, save_job, cancelled,
 * parameter, position and indices may be called by any thread at any time before free. A call that
 * another thread's call excludes returns SLUICE_BUSY. After a fork only the parent may use the
 * library: in the child every call on a worker of the parent returns SLUICE_FORKED, and so does
 * join.
 *
 * Blocking. join, next, sum and the calls of a running job wait for other processes; close and free
 * wait for the library's own threads. All other calls return at once: they take time in proportion
 * to the bytes that they copy or send, and wait for no peer.
 *
 * Ownership. A handle belongs to the caller until it is freed, and is invalid from then on.
 * Pointers that the library returns are the library's, and are valid as long as the call says. The
 * library copies what it is given, unless the call says otherwise.
 *
 * Tensors are numbered in the order of add_tensor, from 0. Elements are row-major, little endian.
 */
#ifndef SLUICE_WORKER_H_
#define SLUICE_WORKER_H_

#include <stddef.h>
#include <stdint.h>

/* Changes when a program that was compiled with another number would not work. */
#define SLUICE_WORKER_ABI 3

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sluice_code {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT = 1, /* NULL, a wrong size, type or number; the text names it */
  SLUICE_WRONG_STATE = 2,      /* a call that is not allowed now */
  SLUICE_BUSY = 3,             /* another thread is in a call that excludes this one */
  SLUICE_FORKED = 4,           /* this process is a fork of the one that uses the library */
  SLUICE_NOT_FOUND = 5,        /* no job answers at the address, or another job does */
  SLUICE_WIRE_VERSION = 6,     /* the job uses a version of the protocol that this library lacks */
  SLUICE_MODEL_DIFFERS = 7,    /* tensors or sample counts are not those of the job */
  SLUICE_DUPLICATE = 8,        /* another running process has the index */
  SLUICE_ENDED = 9,            /* the job has succeeded, or this worker has left it */
  SLUICE_JOB_FAILED = 10,      /* the job, or this worker, has failed; the text is the reason */
  SLUICE_UNAVAILABLE = 11,     /* the job cannot answer now; try again */
  SLUICE_TIMEOUT = 12,         /* the time given has passed */
  SLUICE_INTERNAL = 13         /* out of memory, or a defect of the library */
} sluice_code;

typedef enum sluice_dtype { /* the numbers of DataType in proto/common.proto */
                            SLUICE_FLOAT32 = 1,
                            SLUICE_FLOAT64 = 2,
                            SLUICE_BFLOAT16 = 3,
                            SLUICE_FLOAT16 = 4,
                            SLUICE_INT64 = 5
} sluice_dtype;

typedef enum sluice_tensor_kind {
  SLUICE_PARAMETER = 0, /* trained by the job's optimizer */
  SLUICE_BUFFER = 1,    /* floating point: each step adds the mean of the microbatches' changes */
  SLUICE_COUNTER = 2    /* integer: advances by one in each step, by itself */
} sluice_tensor_kind;

typedef struct sluice_worker sluice_worker;     /* a worker of a job */
typedef struct sluice_snapshot sluice_snapshot; /* tensors of a running job, at one version */

/* ---- the library. Any thread, at any time. */

/* SLUICE_WORKER_ABI of the library: compare it with the header's before any other call. */
SLUICE_API uint32_t sluice_abi_version(void);

/* The version of Sluice, such as "0.1.0". Valid forever. */
SLUICE_API const char* sluice_version(void);

/* A code in words, such as "wrong state". Valid forever; never NULL. */
SLUICE_API const char* sluice_code_text(int code);

/* The text of the last error on the calling thread: what is wrong, where, and what would be right.
 * "" if there was none. Valid until the thread's next call of the library. */
SLUICE_API const char* sluice_last_error(void);

/* CRC-32C (Castagnoli) of bytes, the checksum of the files of checkpoints. */
SLUICE_API uint32_t sluice_crc32c(const void* data, size_t bytes);

/* ---- joining a job */

typedef struct sluice_join_options {
  size_t struct_size;      /* sizeof(sluice_join_options) */
  const char* coordinator; /* host:port */
  const char* job;         /* "namespace/name/uid"; NULL: the job of that coordinator */
  uint32_t index;          /* of this worker among the job's workers, from 0 */
  double timeout_seconds;  /* for the job's first answer; 0: without a limit */
  /* At most one of the two: the directory with the worker's ca.crt, tls.crt and tls.key, if the job
   * uses TLS, or the file with the run's secret. Both NULL: plain text without a secret. */
  const char* tls_directory;
  const char* secret_file;
  const char* advertised_host; /* the address at which other workers reach this one, for `dense:
                                  {aggregation: AllReduce}`; NULL: the address of the route to the
                                  coordinator */
  int no_shared_memory;        /* 1: use sockets even with shards of this machine */
  const char* log_level;       /* of lines on standard error: "debug", "info", "warning", "error",
                                  "off"; NULL: "error" */
} sluice_join_options;

/* Registers a worker and waits for the job's answer. `*worker` is set only on success. The worker
 * keeps its place in the job, with heartbeats from a thread of the library, until it is freed; if
 * the job expels it by mistake, it registers again.
 *
 * INVALID_ARGUMENT; NOT_FOUND: no answer in time, or another job; WIRE_VERSION; DUPLICATE; ENDED;
 * JOB_FAILED; FORKED. */
SLUICE_API sluice_code sluice_worker_join(const sluice_join_options* options,
                                          sluice_worker** worker);

/* The job's name, and the job's specification as a serialized message JobSpec of
 * proto/job.proto. Each output may be NULL. Valid until free. Any thread. */
SLUICE_API sluice_code sluice_worker_job(sluice_worker* worker, const char** name,
                                         const void** spec, size_t* spec_bytes);

/* ---- the model. After join, before open. All workers of a job describe the same model. */

typedef struct sluice_tensor {
  size_t struct_size; /* sizeof(sluice_tensor) */
  const char* name;   /* UTF-8; unique within the model */
  int dtype;          /* sluice_dtype; of a counter INT64, of others not INT64 */
  int kind;           /* sluice_tensor_kind */
  const int64_t* shape;
  size_t dimensions;   /* 0: a scalar */
  const void* initial; /* the value at version 0; if workers differ, one worker's is used */
  size_t initial_bytes;
  int rows; /* 1: a matrix of which a batch reads only the rows that its samples name (an embedding
               table); next then asks for these rows before it asks for gradients */
} sluice_tensor;

/* Adds a tensor; copies its initial value. INVALID_ARGUMENT; WRONG_STATE: after open. */
SLUICE_API sluice_code sluice_worker_add_tensor(sluice_worker* worker, const sluice_tensor* tensor);

typedef struct sluice_model {
  size_t struct_size; /* sizeof(sluice_model) */
  /* In training, the model cannot compute fewer samples than this at once, because of the module of
   * this name (batch norm: 2). 0 or 1: any number. */
  uint32_t smallest_batch;
  const char* smallest_batch_module; /* NULL: none */
  /* What the user should know before training starts, one sentence each: at most 64. The job
   * reports each sentence once. */
  const char* const* notes;
  size_t note_count;
  /* What the bits of the results depend on, apart from the job and the program. */
  const char* kernels; /* instructions for which the library of linear algebra chooses its kernels:
                          a level such as "x86-64-v3", or the kernels' names; NULL: not known */
  const char* library; /* "PyTorch 2.15.0"; NULL: none */
  uint32_t threads;    /* within one operation; 0: not known */
} sluice_model;

/* Describes the model besides its tensors; optional. Copies the texts, which are UTF-8 of at most
 * 4096 bytes each. A second call replaces the first. INVALID_ARGUMENT; WRONG_STATE: after open. */
SLUICE_API sluice_code sluice_worker_describe(sluice_worker* worker, const sluice_model* model);

/* Adds a digest of something that the samples' values depend on, such as the values of a few
 * samples or an encoding that was learned from data; optional. Workers of one job whose digests of
 * one name differ have different data: the job fails, or refuses the worker. Checkpoints record
 * digests, and the job does not continue with others. `name` is a noun phrase in the singular for
 * messages ("the content of the samples"): UTF-8 of 1 to 256 bytes. At most 16, of distinct names.
 * INVALID_ARGUMENT; WRONG_STATE: after open. */
SLUICE_API sluice_code sluice_worker_add_digest(sluice_worker* worker, const char* name,
                                                uint64_t hash);

/* Adds a metric of the program's own, which every evaluation reports beside the loss: at most 32,
 * numbered in the order of the calls, from 0. The same in all workers of a job. `name`: 1 to 63
 * letters, digits and underscores, not loss, accuracy or perplexity. INVALID_ARGUMENT; WRONG_STATE:
 * after open. */
SLUICE_API sluice_code sluice_worker_add_metric(sluice_worker* worker, const char* name);

/* Reports to the job that model and data are open. `evaluation_samples` may be 0. Allocates memory
 * for two versions of the model. INVALID_ARGUMENT: no sample, or no parameter; WRONG_STATE: a
 * second call; ENDED, JOB_FAILED. */
SLUICE_API sluice_code sluice_worker_open(sluice_worker* worker, uint64_t training_samples,
                                          uint64_t evaluation_samples);

/* ---- the loop */

typedef enum sluice_work_kind {
  SLUICE_GRADIENTS = 1, /* compute the gradients of training samples */
  SLUICE_EVALUATE = 2,  /* evaluate held-out samples */
  SLUICE_ROWS = 3,      /* name the rows that training samples read: see sluice_worker_rows */
  SLUICE_METRICS = 4    /* compute the values of metrics: see sluice_worker_metric_part */
} sluice_work_kind;

typedef struct sluice_work {
  size_t struct_size; /* sizeof(sluice_work), set by the caller */
  int kind;           /* sluice_work_kind */
  uint64_t step;      /* synchronous: of the job; asynchronous: the first sample's position */
  uint64_t first_microbatch; /* within the step */
  uint64_t microbatch_size;  /* samples; the last microbatch may have fewer */
  uint64_t microbatches;
  uint64_t seed; /* for dropout: a function of the job's seed, step and first microbatch */
  /* 1: gradients are the sum over microbatches of the gradient of their mean loss (`aggregation:
   * Sum`). 0: the sum over samples of the gradients of their losses. */
  int sum_of_means;
  const uint64_t* indices; /* of the samples, in the data; valid until done */
  uint64_t samples;
  /* Of the samples, in the sequence that the job trains on, over all epochs (with `partitioning:
   * PerWorker`: in this worker's own sequence); valid until done. NULL: held-out samples. */
  const uint64_t* positions;
} sluice_work;

/* Waits for work, at most `timeout_seconds` (0: without a limit). While it waits, the parameters
 * may change; from its return to the next call they do not. Work must be answered by done before
 * the next call. TIMEOUT: there is none so far; call again.
 *
 * ENDED: the job has succeeded, or the worker has left. JOB_FAILED, MODEL_DIFFERS, DUPLICATE, ...:
 * it has ended for another reason. These are final: every later call returns the same. WRONG_STATE:
 * before open, or work is not answered. BUSY: another thread is in next. */
SLUICE_API sluice_code sluice_worker_next(sluice_worker* worker, double timeout_seconds,
                                          sluice_work* work);

/* The memory of a tensor: of the version to be evaluated while the work is EVALUATE, otherwise of
 * the worker's current version. Read only; aligned to 64 bytes. The content is constant until the
 * next call of next; the addresses of all versions are valid until free, so that a program may keep
 * its own views of them. With `rows`, only the rows that were named are of this version. Any
 * thread. INVALID_ARGUMENT; WRONG_STATE: before open. */
SLUICE_API sluice_code sluice_worker_parameter(sluice_worker* worker, uint32_t tensor,
                                               const void** data, size_t* bytes);

/* Gives the weight of the work's samples in the mean over the whole step, where the mean of the
 * loss is not the mean over samples (class weights, ignored targets): for example, the sum of the
 * weights of the targets. The gradients of this work are then of the weight times the mean loss;
 * the job divides their sum by the sum of the weights of all workers. At most once for each work
 * GRADIENTS, before its first gradient. Without it the weight is the number of samples. With
 * `sum_of_means` it has no effect. For a work EVALUATE the same of the evaluation's mean loss. The
 * result's loss_sum is then the mean over the weights times the number of samples.
 *
 * INVALID_ARGUMENT: not in [0, 1e30]. WRONG_STATE: no such work, or after a gradient. */
SLUICE_API sluice_code sluice_worker_weight(sluice_worker* worker, double weight);

/* With `training: {sync: BatchNorm}`: replaces `values` by their sums over all workers that compute
 * in this step, for layers that compute with numbers of the whole step. Waits for these workers, at
 * most `timeout_seconds` (0: without a limit). Every worker calls this in the same order, with the
 * same number of values and the same name, which says in messages what is summed (1 to 512 bytes of
 * UTF-8); at most 131072 values. Any thread, one at a time.
 *
 * `*abandoned` is 1 if the job no longer needs the work, because a worker was lost or has joined:
 * `values` are then unchanged, and all workers get the step's samples as new work. The program
 * finishes the work with any numbers, without waiting. TIMEOUT: call again with the same arguments;
 * `values` are unchanged. INVALID_ARGUMENT; WRONG_STATE: no work GRADIENTS, a job without `sync`,
 * or a sum with another number of values is not finished; BUSY: another thread waits for a sum. */
SLUICE_API sluice_code sluice_worker_sum(sluice_worker* worker, const char* name, double* values,
                                         size_t count, double timeout_seconds, int* abandoned);

/* Gives the gradient of a whole parameter, in its type, as soon as it is final: it is sent while
 * the program computes the others. Each parameter is given exactly once for each work GRADIENTS, by
 * this call, row_gradient or no_gradient.
 *
 * `token` 0: the data is copied. Otherwise it is not: the memory must not change until
 * sluice_worker_released has returned the token. If the call fails, the memory stays the caller's.
 *
 * INVALID_ARGUMENT: not a parameter, or a wrong size. WRONG_STATE: no such work, or a second time.
 * If the result is no longer needed, the call has no effect and returns OK. */
SLUICE_API sluice_code sluice_worker_gradient(sluice_worker* worker, uint32_t tensor,
                                              const void* data, size_t bytes, uint64_t token);

/* The same of a matrix of which only some rows have a gradient: `rows` ascending, each once; all
 * others are zeros. `values`: those rows. */
SLUICE_API sluice_code sluice_worker_row_gradient(sluice_worker* worker, uint32_t tensor,
                                                  const uint64_t* rows, size_t count,
                                                  const void* values, size_t bytes, uint64_t token);

/* The loss does not depend on the parameter, which must not change. */
SLUICE_API sluice_code sluice_worker_no_gradient(sluice_worker* worker, uint32_t tensor);

/* The sum over the work's microbatches of the changes to a buffer, at most once; a buffer that is
 * not given did not change. The data is copied. Errors as for gradient. */
SLUICE_API sluice_code sluice_worker_buffer_change(sluice_worker* worker, uint32_t tensor,
                                                   const void* data, size_t bytes);

/* For work ROWS: the rows of one of the model's `rows` tensors that the samples read, in any order,
 * also repeatedly. No row of a tensor that is not given is read. INVALID_ARGUMENT: no such tensor
 * or row. */
SLUICE_API sluice_code sluice_worker_rows(sluice_worker* worker, uint32_t tensor,
                                          const uint64_t* rows, size_t count);

/* For work EVALUATE: the state of a metric over the samples of this work, from which the job's
 * values can be computed: sums and counts, or the samples' scores. Each metric is given exactly
 * once for each work. The bytes are the program's own: only workers of the job read them. The
 * states of all samples and metrics of an evaluation may have 8 MiB. The data is copied.
 * INVALID_ARGUMENT; WRONG_STATE: no such work, or a second time. */
SLUICE_API sluice_code sluice_worker_metric_state(sluice_worker* worker, uint32_t metric,
                                                  const void* state, size_t bytes);

/* For work METRICS: the number of parts of the evaluation. WRONG_STATE: no such work. */
SLUICE_API sluice_code sluice_worker_metric_parts(sluice_worker* worker, size_t* parts);

/* For work METRICS: the state of a metric over a part of the held-out samples, as a worker has
 * given it. Parts are in the order of the samples and have each sample once, so that a program that
 * merges them in this order gets the same bits again. Valid until done. INVALID_ARGUMENT: no such
 * metric or part; WRONG_STATE: no such work. */
SLUICE_API sluice_code sluice_worker_metric_part(sluice_worker* worker, uint32_t metric,
                                                 size_t part, const void** state, size_t* bytes);

/* For work METRICS: the value of a metric, exactly once for each metric. It may be NaN or infinite.
 * `note`: what the user should know of the value, UTF-8; the job reports it. NULL: nothing.
 * INVALID_ARGUMENT: no such metric; WRONG_STATE: no such work, or a second time. */
SLUICE_API sluice_code sluice_worker_metric_value(sluice_worker* worker, uint32_t metric,
                                                  double value, const char* note);

/* The tokens of gradients whose memory is the caller's again: at most `capacity`, `*count` of them;
 * call again if `*count` is `capacity`. After close, all are the caller's. Any thread. */
SLUICE_API sluice_code sluice_worker_released(sluice_worker* worker, uint64_t* tokens,
                                              size_t capacity, size_t* count);

/* `*cancelled` is 1 if the result of the current work is no longer needed: done may then be called
 * with any part of it, at once. Any thread. */
SLUICE_API sluice_code sluice_worker_cancelled(sluice_worker* worker, int* cancelled);

typedef struct sluice_result {
  size_t struct_size;  /* sizeof(sluice_result) */
  double loss_sum;     /* of the samples, before any update */
  double correct;      /* samples whose class was predicted */
  double data_seconds; /* for reading samples */
  double compute_seconds;
  int counted; /* 1: `correct` was counted, as the loss is a classification's. 0: it was not, so
                  that the job has no accuracy */
} sluice_result;

/* Ends the current work. `result` may be NULL for ROWS and METRICS. WRONG_STATE: no work, or a
 * parameter or metric was not given: the text names it. */
SLUICE_API sluice_code sluice_worker_done(sluice_worker* worker, const sluice_result* result);

/* The step of the current version; asynchronous: the last one applied. Any thread. */
SLUICE_API sluice_code sluice_worker_position(sluice_worker* worker, uint64_t* step);

/* The indices of the samples at the positions [first, first + count), as in sluice_work: for a
 * program that reads samples before it is asked for them. `indices` has room for `count`. Any
 * thread. INVALID_ARGUMENT; WRONG_STATE: before the first work. */
SLUICE_API sluice_code sluice_worker_indices(sluice_worker* worker, uint64_t first, size_t count,
                                             uint64_t* indices);

/* ---- the end */

/* OK while the worker runs; afterwards how it ended, as next reports it. Any thread. */
SLUICE_API sluice_code sluice_worker_ended(sluice_worker* worker);

/* Leaves the job: work continues until the job has given it to other workers, at most
 * `grace_seconds`; next then returns ENDED. May be repeated with a shorter time. Any thread, but
 * not a signal handler. */
SLUICE_API sluice_code sluice_worker_leave(sluice_worker* worker, const char* reason,
                                           double grace_seconds);

/* Fails the whole job, because other workers would fail in the same way. Any thread. */
SLUICE_API sluice_code sluice_worker_fail(sluice_worker* worker, const char* reason);

/* Asks the job to end training at the next step that can be committed, with a last evaluation and a
 * checkpoint: the job has then succeeded, and next returns ENDED. `reason`: UTF-8 of at most 4096
 * bytes, which the job reports. The first request of all workers counts. Without effect once the
 * worker or the job has ended, and in a job that is being suspended. The request is repeated if the
 * worker or the coordinator is replaced, but a job that is interrupted as a whole does not keep it.
 * Any thread. INVALID_ARGUMENT: no reason. */
SLUICE_API sluice_code sluice_worker_stop_job(sluice_worker* worker, const char* reason);

/* Asks the job for a checkpoint of the next version that can be saved. Without effect before
 * training has begun, while such a checkpoint is due already, and once training has ended. Any
 * thread. */
SLUICE_API sluice_code sluice_worker_save_job(sluice_worker* worker);

/* Ends the worker, which leaves the job at once if that has not ended, and the threads of the
 * library. Afterwards job, parameter, position, released and free still work, and next returns how
 * the worker ended. BUSY: a call of another thread is in progress, and nothing has changed. */
SLUICE_API sluice_code sluice_worker_close(sluice_worker* worker);

/* Closes the worker if that was not done, and frees all its memory. NULL: nothing. BUSY, FORKED:
 * nothing is freed. */
SLUICE_API sluice_code sluice_worker_free(sluice_worker* worker);

/* ---- a running job, seen from outside. Any thread. Of the options: coordinator, timeout_seconds,
 * tls_directory, secret_file, no_shared_memory. */

/* The coordinator's progress: a serialized message JobProgress of proto/jobcontrol.proto, which
 * sluice_free frees. NOT_FOUND: no answer in time. */
SLUICE_API sluice_code sluice_job_progress(const sluice_join_options* options, void** progress,
                                           size_t* bytes);
SLUICE_API void sluice_free(void* memory);

/* Reads all tensors of a running job, at one committed version, while training continues.
 * NOT_FOUND; UNAVAILABLE: the job is not training yet, or is changing its members. */
SLUICE_API sluice_code sluice_snapshot_open(const sluice_join_options* options,
                                            sluice_snapshot** snapshot);

/* The version, and the number of tensors. Each output may be NULL. */
SLUICE_API sluice_code sluice_snapshot_info(const sluice_snapshot* snapshot, uint64_t* version,
                                            size_t* tensors);

/* A tensor of the snapshot, in the job's order; `initial` is its content. Pointers are valid until
 * the snapshot is freed. Set `tensor->struct_size` before. */
SLUICE_API sluice_code sluice_snapshot_tensor(const sluice_snapshot* snapshot, size_t place,
                                              sluice_tensor* tensor);
SLUICE_API void sluice_snapshot_free(sluice_snapshot* snapshot);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_WORKER_H_ */
