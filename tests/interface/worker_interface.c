/* Misuses the C interface of a worker in a real job: worker_interface CASE. Every wrong call must
 * return an error with a text, and the job must go on. Exits with 0 if all is as expected. */
#include <math.h>
#include <pthread.h>
#include <sluice/worker.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kElements = 12, kRows = 4, kWidth = 3 };
enum { kVector, kTable, kMean };

static int problems = 0;

static void expect(int line, const char* call, sluice_code code, sluice_code wanted,
                   const char* text) {
  const char* said = sluice_last_error();
  const int right = code == wanted && (code == SLUICE_OK || strstr(said, text) != NULL);
  if (right) return;
  ++problems;
  printf("line %d: %s: %s, \"%s\"; wanted: %s, \"%s\"\n", line, call, sluice_code_text(code), said,
         sluice_code_text(wanted), text);
}
#define EXPECT(call, wanted, text) expect(__LINE__, #call, call, wanted, text)
#define OK(call) EXPECT(call, SLUICE_OK, "")
#define INVALID(call, text) EXPECT(call, SLUICE_INVALID_ARGUMENT, text)
#define WRONG(call, text) EXPECT(call, SLUICE_WRONG_STATE, text)
#define CHECK(condition) \
  if (!(condition)) ++problems, printf("line %d: not true: %s\n", __LINE__, #condition)

static const double zeros[kElements];
static double ones[kElements];

static sluice_join_options join_options(void) {
  sluice_join_options options = {0};
  options.struct_size = sizeof options;
  options.coordinator = getenv("SLUICE_COORDINATOR");
  options.secret_file = getenv("SLUICE_SECRET_FILE");
  options.timeout_seconds = 30;
  options.log_level = "off";
  return options;
}

static sluice_worker* join(void) {
  sluice_join_options options = join_options();
  sluice_worker* worker = NULL;
  OK(sluice_worker_join(&options, &worker));
  if (worker == NULL) exit(1);
  return worker;
}

static sluice_tensor make_tensor(const char* name, const int64_t* shape, size_t dimensions) {
  sluice_tensor tensor = {0};
  tensor.struct_size = sizeof tensor;
  tensor.name = name;
  tensor.dtype = SLUICE_FLOAT64;
  tensor.kind = SLUICE_PARAMETER;
  tensor.shape = shape;
  tensor.dimensions = dimensions;
  tensor.initial = zeros;
  tensor.initial_bytes = sizeof zeros;
  return tensor;
}

/* A vector, a table with rows, and a buffer. */
static void add_tensors(sluice_worker* worker) {
  const int64_t flat[] = {kElements}, matrix[] = {kRows, kWidth};
  sluice_tensor vector = make_tensor("vector", flat, 1);
  sluice_tensor table = make_tensor("table", matrix, 2);
  sluice_tensor mean = make_tensor("mean", flat, 1);
  table.rows = 1;
  mean.kind = SLUICE_BUFFER;
  OK(sluice_worker_add_tensor(worker, &vector));
  OK(sluice_worker_add_tensor(worker, &table));
  OK(sluice_worker_add_tensor(worker, &mean));
}

static void name_rows(sluice_worker* worker) {
  const uint64_t rows[] = {3, 1, 3};
  OK(sluice_worker_rows(worker, kTable, rows, 3));
  OK(sluice_worker_done(worker, NULL));
}

/* Answers everything else, until there are gradients to compute. */
static sluice_code next_gradients(sluice_worker* worker, sluice_work* work) {
  memset(work, 0, sizeof *work);
  work->struct_size = sizeof *work;
  sluice_result result = {0};
  result.struct_size = sizeof result;
  sluice_code code;
  while ((code = sluice_worker_next(worker, 60, work)) == SLUICE_OK) {
    if (work->kind == SLUICE_GRADIENTS) return code;
    if (work->kind == SLUICE_ROWS) {
      name_rows(worker);
    } else {
      OK(sluice_worker_done(worker, &result));
    }
  }
  return code;
}

static void give(sluice_worker* worker) {
  const uint64_t rows[] = {1, 3};
  OK(sluice_worker_gradient(worker, kVector, ones, sizeof ones, 0));
  OK(sluice_worker_row_gradient(worker, kTable, rows, 2, ones, 2 * kWidth * sizeof(double), 0));
  OK(sluice_worker_buffer_change(worker, kMean, ones, sizeof ones));
}

static sluice_worker* start(sluice_work* work) {
  sluice_worker* worker = join();
  add_tensors(worker);
  OK(sluice_worker_open(worker, 1000, 100));
  OK(next_gradients(worker, work));
  return worker;
}

static void finish(sluice_worker* worker) {
  sluice_work work;
  sluice_code code;
  while ((code = next_gradients(worker, &work)) == SLUICE_OK) {
    give(worker);
    OK(sluice_worker_done(worker, NULL));
  }
  EXPECT(code, SLUICE_ENDED, "");
}

static void null_arguments(void) {
  sluice_join_options options = join_options();
  sluice_worker* worker = NULL;
  const void* data;
  size_t count;
  uint64_t token;
  INVALID(sluice_worker_join(NULL, &worker), "options is NULL");
  INVALID(sluice_worker_join(&options, NULL), "NULL");
  INVALID(sluice_worker_job(NULL, NULL, NULL, NULL), "worker is NULL");
  INVALID(sluice_worker_add_tensor(NULL, NULL), "worker is NULL");
  INVALID(sluice_worker_open(NULL, 1, 1), "worker is NULL");
  INVALID(sluice_worker_next(NULL, 0, NULL), "worker is NULL");
  INVALID(sluice_worker_parameter(NULL, 0, &data, NULL), "worker is NULL");
  INVALID(sluice_worker_gradient(NULL, 0, ones, 1, 0), "worker is NULL");
  INVALID(sluice_worker_row_gradient(NULL, 0, NULL, 0, NULL, 0, 0), "worker is NULL");
  INVALID(sluice_worker_no_gradient(NULL, 0), "worker is NULL");
  INVALID(sluice_worker_buffer_change(NULL, 0, ones, 1), "worker is NULL");
  INVALID(sluice_worker_rows(NULL, 0, NULL, 0), "worker is NULL");
  INVALID(sluice_worker_released(NULL, &token, 1, &count), "worker is NULL");
  INVALID(sluice_worker_cancelled(NULL, NULL), "worker is NULL");
  INVALID(sluice_worker_done(NULL, NULL), "worker is NULL");
  INVALID(sluice_worker_position(NULL, NULL), "worker is NULL");
  INVALID(sluice_worker_indices(NULL, 0, 1, &token), "worker is NULL");
  INVALID(sluice_worker_ended(NULL), "worker is NULL");
  INVALID(sluice_worker_leave(NULL, "x", 0), "worker is NULL");
  INVALID(sluice_worker_fail(NULL, "x"), "worker is NULL");
  INVALID(sluice_worker_stop_job(NULL, "x"), "worker is NULL");
  INVALID(sluice_worker_save_job(NULL), "worker is NULL");
  INVALID(sluice_worker_close(NULL), "worker is NULL");
  OK(sluice_worker_free(NULL));
  sluice_free(NULL);
  sluice_snapshot_free(NULL);
  INVALID(sluice_job_progress(&options, NULL, &count), "NULL");
  INVALID(sluice_snapshot_open(&options, NULL), "NULL");
  INVALID(sluice_snapshot_info(NULL, NULL, NULL), "NULL");
  INVALID(sluice_snapshot_tensor(NULL, 0, NULL), "NULL");
  CHECK(strcmp(sluice_code_text(-1), "unknown code") == 0);
  CHECK(strcmp(sluice_code_text(1000), "unknown code") == 0);
  CHECK(sluice_abi_version() == SLUICE_WORKER_ABI && sluice_version()[0] != '\0');

  worker = join();
  OK(sluice_worker_job(worker, NULL, NULL, NULL));
  INVALID(sluice_worker_add_tensor(worker, NULL), "tensor is NULL");
  INVALID(sluice_worker_next(worker, 0, NULL), "work is NULL");
  INVALID(sluice_worker_parameter(worker, 0, NULL, NULL), "NULL");
  INVALID(sluice_worker_gradient(worker, 0, NULL, 8, 0), "gradient of tensor 0 is NULL");
  INVALID(sluice_worker_row_gradient(worker, 0, NULL, 1, NULL, 8, 0), "NULL");
  INVALID(sluice_worker_buffer_change(worker, 0, NULL, 8), "NULL");
  INVALID(sluice_worker_rows(worker, 0, NULL, 1), "NULL");
  INVALID(sluice_worker_released(worker, NULL, 1, NULL), "NULL");
  INVALID(sluice_worker_cancelled(worker, NULL), "NULL");
  INVALID(sluice_worker_position(worker, NULL), "NULL");
  INVALID(sluice_worker_indices(worker, 0, 1, NULL), "NULL");
  INVALID(sluice_worker_indices(worker, ~(uint64_t)0, 1, &token), "below 2^64");
  INVALID(sluice_worker_fail(worker, NULL), "reason is NULL");
  INVALID(sluice_worker_stop_job(worker, NULL), "reason is NULL");
  INVALID(sluice_worker_stop_job(worker, ""), "reason is empty");
  OK(sluice_worker_free(worker));
}

static void join_with(sluice_join_options options, sluice_code wanted, const char* text) {
  sluice_worker* worker = NULL;
  EXPECT(sluice_worker_join(&options, &worker), wanted, text);
  CHECK(worker == NULL);
}

static void wrong_options(void) {
  sluice_join_options good = join_options(), options = good;
  options.struct_size -= 1;
  join_with(options, SLUICE_INVALID_ARGUMENT, "struct_size");
  options = good, options.coordinator = NULL;
  join_with(options, SLUICE_INVALID_ARGUMENT, "coordinator is NULL");
  options = good, options.coordinator = "no port:here";
  join_with(options, SLUICE_INVALID_ARGUMENT, "'here' is not a port");
  options = good, options.index = 5000;
  join_with(options, SLUICE_INVALID_ARGUMENT, "index is 5000");
  options = good, options.timeout_seconds = -1;
  join_with(options, SLUICE_INVALID_ARGUMENT, "timeout_seconds");
  options = good, options.timeout_seconds = NAN;
  join_with(options, SLUICE_INVALID_ARGUMENT, "timeout_seconds");
  options = good, options.tls_directory = "/";
  join_with(options, SLUICE_INVALID_ARGUMENT, "exclude each other");
  options = good, options.secret_file = "/nowhere/secret";
  join_with(options, SLUICE_INVALID_ARGUMENT, "/nowhere/secret");
  options = good, options.log_level = "loud";
  join_with(options, SLUICE_INVALID_ARGUMENT, "loud");
  options = good, options.job = "an/other/job";
  join_with(options, SLUICE_NOT_FOUND, "not an/other/job");
  options = good, options.coordinator = "127.0.0.1:9", options.timeout_seconds = 0.3;
  join_with(options, SLUICE_NOT_FOUND, "127.0.0.1:9");
  options.job = "a/b/c";
  join_with(options, SLUICE_NOT_FOUND, "127.0.0.1:9");
}

static void add_with(sluice_worker* worker, sluice_tensor tensor, const char* text) {
  INVALID(sluice_worker_add_tensor(worker, &tensor), text);
}

static void wrong_tensors(void) {
  sluice_worker* worker = join();
  const int64_t shape[] = {kElements}, negative[] = {-3}, huge[] = {INT64_MAX, INT64_MAX};
  sluice_tensor good = make_tensor("good", shape, 1), tensor = good;
  tensor.struct_size = 0;
  add_with(worker, tensor, "struct_size");
  tensor = good, tensor.name = NULL;
  add_with(worker, tensor, "no name");
  tensor = good, tensor.name = "\xff\xfe";
  add_with(worker, tensor, "UTF-8");
  tensor = good, tensor.dtype = 0;
  add_with(worker, tensor, "type 0");
  tensor = good, tensor.dtype = 99;
  add_with(worker, tensor, "type 99");
  tensor = good, tensor.dtype = SLUICE_INT64;
  add_with(worker, tensor, "counters are INT64");
  tensor = good, tensor.kind = 7;
  add_with(worker, tensor, "kind 7");
  tensor = good, tensor.kind = SLUICE_COUNTER;
  add_with(worker, tensor, "counters are INT64");
  tensor = good, tensor.shape = NULL;
  add_with(worker, tensor, "shape");
  tensor = good, tensor.shape = negative;
  add_with(worker, tensor, "is -3");
  tensor = good, tensor.shape = huge, tensor.dimensions = 2;
  add_with(worker, tensor, "bytes");
  tensor = good, tensor.dimensions = 1000;
  add_with(worker, tensor, "1000 dimensions");
  tensor = good, tensor.initial = NULL;
  add_with(worker, tensor, "initial value");
  tensor = good, tensor.initial_bytes -= 1;
  add_with(worker, tensor, "95 bytes, its shape [12] needs 96");
  tensor = good, tensor.rows = 1;
  add_with(worker, tensor, "not a matrix");

  INVALID(sluice_worker_open(worker, 1000, 0), "no parameter");
  OK(sluice_worker_add_tensor(worker, &good));
  add_with(worker, good, "two tensors 'good'");
  INVALID(sluice_worker_open(worker, 0, 0), "0 training samples");
  const char* notes[] = {"A note.", "\xff"};
  sluice_model model = {0};
  INVALID(sluice_worker_describe(worker, NULL), "model is NULL");
  INVALID(sluice_worker_describe(worker, &model), "struct_size");
  model.struct_size = sizeof model, model.note_count = 2;
  INVALID(sluice_worker_describe(worker, &model), "must not be NULL");
  model.notes = notes;
  INVALID(sluice_worker_describe(worker, &model), "a note must be UTF-8");
  model.note_count = 1, model.smallest_batch = 2, model.smallest_batch_module = "bn";
  OK(sluice_worker_describe(worker, &model));
  model.smallest_batch = 1;
  OK(sluice_worker_describe(worker, &model));
  INVALID(sluice_worker_add_digest(worker, NULL, 1), "is NULL");
  INVALID(sluice_worker_add_digest(worker, "", 1), "1 to 256 bytes");
  INVALID(sluice_worker_add_digest(worker, "\xff", 1), "must be UTF-8");
  OK(sluice_worker_add_digest(worker, "the vocabulary", 1));
  INVALID(sluice_worker_add_digest(worker, "the vocabulary", 1), "two digests 'the vocabulary'");
  char digest[] = "digest a";
  for (; digest[7] < 'p'; ++digest[7]) OK(sluice_worker_add_digest(worker, digest, 1));
  INVALID(sluice_worker_add_digest(worker, digest, 1), "more than 16 digests");
  OK(sluice_worker_open(worker, 1000, 0));
  WRONG(sluice_worker_describe(worker, &model), "is open");
  WRONG(sluice_worker_add_digest(worker, "more", 1), "is open");
  WRONG(sluice_worker_add_tensor(worker, &good), "is open");
  WRONG(sluice_worker_open(worker, 1000, 0), "open already");
  OK(sluice_worker_free(worker));
}

static void wrong_order(void) {
  sluice_work work = {0};
  work.struct_size = sizeof work;
  const void* data;
  sluice_worker* worker = join();
  add_tensors(worker);
  WRONG(sluice_worker_next(worker, 1, &work), "sluice_worker_open before");
  WRONG(sluice_worker_parameter(worker, 0, &data, NULL), "sluice_worker_open before");
  WRONG(sluice_worker_gradient(worker, kVector, ones, sizeof ones, 0), "no work");
  WRONG(sluice_worker_done(worker, NULL), "no work");
  WRONG(sluice_worker_weight(worker, 1), "no work");
  double part[] = {1, 2};
  int abandoned = 0;
  WRONG(sluice_worker_sum(worker, "bn", part, 2, 0, &abandoned), "no work");
  OK(sluice_worker_open(worker, 1000, 100));
  INVALID(sluice_worker_next(worker, -1, &work), "timeout_seconds");
  work.struct_size = 3;
  INVALID(sluice_worker_next(worker, 1, &work), "struct_size");

  OK(next_gradients(worker, &work));
  WRONG(sluice_worker_next(worker, 1, &work), "not ended by sluice_worker_done");
  WRONG(sluice_worker_done(worker, NULL), "'vector' was not given");
  INVALID(sluice_worker_weight(worker, NAN), "weight");
  INVALID(sluice_worker_sum(worker, NULL, part, 2, 0, &abandoned), "is NULL");
  INVALID(sluice_worker_sum(worker, "bn", NULL, 2, 0, &abandoned), "is NULL");
  INVALID(sluice_worker_sum(worker, "bn", part, 2, 0, NULL), "is NULL");
  INVALID(sluice_worker_sum(worker, "\xff", part, 2, 0, &abandoned), "must be UTF-8");
  INVALID(sluice_worker_sum(worker, "bn", part, 2, -1, &abandoned), "timeout_seconds");
  WRONG(sluice_worker_sum(worker, "bn", part, 2, 0, &abandoned), "has no `sync: BatchNorm`");
  INVALID(sluice_worker_gradient(worker, 77, ones, sizeof ones, 0), "no tensor 77");
  INVALID(sluice_worker_gradient(worker, kMean, ones, sizeof ones, 0), "'mean' is not a parameter");
  INVALID(sluice_worker_gradient(worker, kVector, ones, sizeof ones - 8, 0), "'vector'");
  INVALID(sluice_worker_buffer_change(worker, kVector, ones, sizeof ones), "not a buffer");
  INVALID(sluice_worker_buffer_change(worker, kMean, ones, 8), "'mean'");
  const uint64_t rows[] = {2, 1}, far[] = {4}, right[] = {1, 2};
  const size_t bytes = kWidth * sizeof(double);
  INVALID(sluice_worker_row_gradient(worker, kTable, rows, 2, ones, 2 * bytes, 0), "row 1 after");
  INVALID(sluice_worker_row_gradient(worker, kTable, far, 1, ones, bytes, 0), "4 rows");
  INVALID(sluice_worker_row_gradient(worker, kTable, right, 2, ones, bytes, 0), "'table'");
  INVALID(sluice_worker_row_gradient(worker, kVector, right, 2, ones, 2 * bytes, 0),
          "not a matrix");
  WRONG(sluice_worker_rows(worker, kTable, right, 2), "SLUICE_ROWS");
  INVALID(sluice_worker_parameter(worker, 77, &data, NULL), "no tensor 77");
  INVALID(sluice_worker_leave(worker, "x", NAN), "grace_seconds");

  OK(sluice_worker_weight(worker, (double)work.samples));
  give(worker);
  WRONG(sluice_worker_weight(worker, 1), "before its first gradient");
  WRONG(sluice_worker_gradient(worker, kVector, ones, sizeof ones, 0), "was given already");
  WRONG(sluice_worker_no_gradient(worker, kVector), "was given already");
  WRONG(sluice_worker_buffer_change(worker, kMean, ones, sizeof ones), "was given already");
  sluice_result result = {0};
  INVALID(sluice_worker_done(worker, &result), "struct_size");
  result.struct_size = sizeof result, result.data_seconds = NAN;
  INVALID(sluice_worker_done(worker, &result), "time");
  OK(sluice_worker_done(worker, NULL));
  WRONG(sluice_worker_done(worker, NULL), "no work");

  finish(worker);
  CHECK(sluice_worker_ended(worker) == SLUICE_ENDED);
  EXPECT(sluice_worker_next(worker, 1, &work), SLUICE_ENDED, "");
  WRONG(sluice_worker_gradient(worker, kVector, ones, sizeof ones, 0), "no work");
  WRONG(sluice_worker_done(worker, NULL), "no work");
  OK(sluice_worker_leave(worker, NULL, 0));
  OK(sluice_worker_fail(worker, "too late"));
  OK(sluice_worker_stop_job(worker, "too late"));
  OK(sluice_worker_save_job(worker));
  OK(sluice_worker_close(worker));
  OK(sluice_worker_close(worker));
  EXPECT(sluice_worker_next(worker, 1, &work), SLUICE_ENDED, "");
  OK(sluice_worker_parameter(worker, kVector, &data, NULL));
  CHECK(((const double*)data)[0] != 0); /* trained, and still there */
  OK(sluice_worker_free(worker));
}

/* A gradient with a token is the library's until the token is released. */
static void tokens(void) {
  sluice_work work;
  sluice_worker* worker = start(&work);
  uint64_t released[4];
  size_t count;
  int step = 0;
  do {
    double* gradient = malloc(sizeof ones);
    memcpy(gradient, ones, sizeof ones);
    INVALID(sluice_worker_gradient(worker, kVector, gradient, 3, 77), "'vector'"); /* not taken */
    const uint64_t token = (uint64_t)(uintptr_t)gradient;
    OK(sluice_worker_gradient(worker, kVector, gradient, sizeof ones, token));
    OK(sluice_worker_no_gradient(worker, kTable));
    OK(sluice_worker_done(worker, NULL));
    OK(sluice_worker_released(worker, released, 4, &count));
    for (size_t i = 0; i < count; ++i) free((void*)(uintptr_t)released[i]);
    step += (int)count;
  } while (next_gradients(worker, &work) == SLUICE_OK);
  CHECK(step > 5);
  OK(sluice_worker_close(worker));
  do {
    OK(sluice_worker_released(worker, released, 4, &count));
    for (size_t i = 0; i < count; ++i) free((void*)(uintptr_t)released[i]);
  } while (count > 0);
  OK(sluice_worker_free(worker));
}

static void* wait_for_work(void* worker) {
  sluice_work work;
  sluice_code code;
  while ((code = next_gradients(worker, &work)) == SLUICE_BUSY) {
  }
  return (void*)(intptr_t)code;
}

static void* train(void* worker) {
  sluice_work work;
  sluice_code code;
  while ((code = next_gradients(worker, &work)) == SLUICE_OK) {
    give(worker);
    OK(sluice_worker_done(worker, NULL));
  }
  return (void*)(intptr_t)code;
}

static void* give_vector(void* worker) {
  return (void*)(intptr_t)sluice_worker_gradient(worker, kVector, ones, sizeof ones, 0);
}

static void threads(void) {
  sluice_work work = {0};
  work.struct_size = sizeof work;
  sluice_worker* worker = start(&work);

  /* Of several threads that give the same gradient, one succeeds. */
  pthread_t givers[8];
  int given = 0, refused = 0;
  for (int i = 0; i < 8; ++i) pthread_create(&givers[i], NULL, give_vector, worker);
  for (int i = 0; i < 8; ++i) {
    void* code;
    pthread_join(givers[i], &code);
    given += (intptr_t)code == SLUICE_OK;
    refused += (intptr_t)code == SLUICE_WRONG_STATE;
  }
  CHECK(given == 1 && refused == 7);
  OK(sluice_worker_no_gradient(worker, kTable));
  OK(sluice_worker_done(worker, NULL));

  /* A shard that the parent has stopped keeps the other thread waiting. */
  printf("stop the shard\n");
  fflush(stdout);
  (void)getchar();
  sluice_code code;
  while ((code = sluice_worker_next(worker, 1, &work)) == SLUICE_OK) {
    if (work.kind == SLUICE_GRADIENTS) give(worker);
    if (work.kind == SLUICE_ROWS) name_rows(worker);
    if (work.kind != SLUICE_ROWS) OK(sluice_worker_done(worker, NULL));
  }
  expect(__LINE__, "next", code, SLUICE_TIMEOUT, "no work");
  pthread_t waiting;
  pthread_create(&waiting, NULL, wait_for_work, worker);
  while ((code = sluice_worker_next(worker, 1e-3, &work)) == SLUICE_TIMEOUT) {
  }
  expect(__LINE__, "next", code, SLUICE_BUSY, "another thread");
  EXPECT(sluice_worker_close(worker), SLUICE_BUSY, "another thread");
  EXPECT(sluice_worker_free(worker), SLUICE_BUSY, "another thread");
  printf("continue the shard\n");
  fflush(stdout);
  (void)getchar();
  void* got;
  pthread_join(waiting, &got);
  CHECK((intptr_t)got == SLUICE_OK);
  give(worker);
  OK(sluice_worker_done(worker, NULL));
  finish(worker);
  OK(sluice_worker_free(worker));
}

static void forks(void) {
  sluice_work work;
  sluice_worker* worker = start(&work);
  const pid_t child = fork();
  if (child == 0) {
    sluice_join_options options = join_options();
    sluice_worker* other = NULL;
    size_t count;
    EXPECT(sluice_worker_gradient(worker, kVector, ones, sizeof ones, 0), SLUICE_FORKED, "forked");
    EXPECT(sluice_worker_next(worker, 1, &work), SLUICE_FORKED, "forked");
    EXPECT(sluice_worker_leave(worker, "x", 0), SLUICE_FORKED, "forked");
    EXPECT(sluice_worker_stop_job(worker, "x"), SLUICE_FORKED, "forked");
    EXPECT(sluice_worker_save_job(worker), SLUICE_FORKED, "forked");
    EXPECT(sluice_worker_close(worker), SLUICE_FORKED, "forked");
    EXPECT(sluice_worker_free(worker), SLUICE_FORKED, "forked");
    EXPECT(sluice_worker_join(&options, &other), SLUICE_FORKED, "forked");
    EXPECT(sluice_job_progress(&options, (void**)&other, &count), SLUICE_FORKED, "forked");
    fflush(stdout);
    _exit(problems == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  give(worker);
  OK(sluice_worker_done(worker, NULL));
  finish(worker);
  OK(sluice_worker_free(worker));
}

/* A metric whose state is the number of samples: the job's value is the number of all samples. */
static void metrics(void) {
  sluice_worker* worker = join();
  sluice_work work = {0};
  work.struct_size = sizeof work;
  sluice_result result = {0};
  result.struct_size = sizeof result;
  const void* state;
  size_t parts, bytes, computed = 0;
  INVALID(sluice_worker_add_metric(NULL, "samples"), "worker is NULL");
  INVALID(sluice_worker_add_metric(worker, NULL), "metric is NULL");
  INVALID(sluice_worker_add_metric(worker, "a b"), "'a b' must have 1 to 63 letters");
  INVALID(sluice_worker_add_metric(worker, "accuracy"), "another name");
  OK(sluice_worker_add_metric(worker, "samples"));
  INVALID(sluice_worker_add_metric(worker, "samples"), "two metrics 'samples'");
  add_tensors(worker);
  OK(sluice_worker_open(worker, 1000, 100));
  WRONG(sluice_worker_add_metric(worker, "late"), "is open");
  WRONG(sluice_worker_metric_state(worker, 0, "s", 1), "no work SLUICE_EVALUATE");
  WRONG(sluice_worker_metric_parts(worker, &parts), "no work SLUICE_METRICS");
  WRONG(sluice_worker_metric_value(worker, 0, 1, NULL), "no work SLUICE_METRICS");

  sluice_code code;
  while ((code = sluice_worker_next(worker, 60, &work)) == SLUICE_OK) {
    if (work.kind == SLUICE_ROWS) {
      name_rows(worker);
      continue;
    }
    if (work.kind == SLUICE_GRADIENTS) give(worker);
    if (work.kind == SLUICE_EVALUATE) {
      WRONG(sluice_worker_done(worker, &result), "state of metric 'samples' was not given");
      INVALID(sluice_worker_metric_state(worker, 0, NULL, 1), "metric 0 is NULL");
      INVALID(sluice_worker_metric_state(worker, 1, "s", 1), "no metric 1");
      OK(sluice_worker_metric_state(worker, 0, &work.samples, sizeof work.samples));
      WRONG(sluice_worker_metric_state(worker, 0, "s", 1), "was given already");
    }
    if (work.kind == SLUICE_METRICS) {
      uint64_t samples = 0, some;
      INVALID(sluice_worker_metric_parts(worker, NULL), "NULL");
      OK(sluice_worker_metric_parts(worker, &parts));
      for (size_t part = 0; part < parts; ++part) {
        OK(sluice_worker_metric_part(worker, 0, part, &state, &bytes));
        CHECK(bytes == sizeof some);
        memcpy(&some, state, sizeof some);
        samples += some;
      }
      CHECK(samples == 100);
      INVALID(sluice_worker_metric_part(worker, 0, parts, &state, &bytes), "no part");
      INVALID(sluice_worker_metric_part(worker, 0, 0, NULL, NULL), "NULL");
      WRONG(sluice_worker_done(worker, NULL), "value of metric 'samples' was not given");
      OK(sluice_worker_metric_value(worker, 0, (double)samples, "a note"));
      WRONG(sluice_worker_metric_value(worker, 0, 1, NULL), "was given already");
      ++computed;
    }
    OK(sluice_worker_done(worker, &result));
  }
  EXPECT(code, SLUICE_ENDED, "");
  CHECK(computed == 2);
  OK(sluice_worker_free(worker));
}

static void readers(void) {
  sluice_work work;
  sluice_worker* worker = start(&work);
  give(worker);
  OK(sluice_worker_done(worker, NULL));
  pthread_t training;
  pthread_create(&training, NULL, train, worker);

  sluice_join_options options = join_options();
  void* progress = NULL;
  size_t count = 0;
  OK(sluice_job_progress(&options, &progress, &count));
  CHECK(progress != NULL && count > 0);
  sluice_free(progress);

  sluice_snapshot* snapshot = NULL;
  /* A snapshot ends early where the job evaluates meanwhile. */
  for (int i = 0; i < 100; ++i) {
    if (sluice_snapshot_open(&options, &snapshot) != SLUICE_UNAVAILABLE) break;
  }
  CHECK(snapshot != NULL);
  if (snapshot == NULL) return;
  uint64_t version = 0;
  OK(sluice_snapshot_info(snapshot, &version, &count));
  CHECK(count == 3);
  sluice_tensor tensor = {0};
  INVALID(sluice_snapshot_tensor(snapshot, 0, &tensor), "struct_size");
  tensor.struct_size = sizeof tensor;
  INVALID(sluice_snapshot_tensor(snapshot, 3, &tensor), "no tensor 3 of 3");
  OK(sluice_snapshot_tensor(snapshot, kTable, &tensor));
  CHECK(strcmp(tensor.name, "table") == 0 && tensor.dimensions == 2 && tensor.shape[0] == kRows);
  CHECK(tensor.dtype == SLUICE_FLOAT64 && tensor.initial_bytes == sizeof ones);
  sluice_snapshot_free(snapshot);
  OK(sluice_worker_fail(worker, "the test has seen enough"));
  void* code;
  pthread_join(training, &code);
  CHECK((intptr_t)code == SLUICE_JOB_FAILED);
  EXPECT(sluice_worker_next(worker, 60, &work), SLUICE_JOB_FAILED, "the test has seen enough");
  OK(sluice_worker_free(worker));
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } cases[] = {{"null_arguments", null_arguments},
               {"wrong_options", wrong_options},
               {"wrong_tensors", wrong_tensors},
               {"wrong_order", wrong_order},
               {"tokens", tokens},
               {"metrics", metrics},
               {"threads", threads},
               {"forks", forks},
               {"readers", readers}};
  for (int i = 0; i < kElements; ++i) ones[i] = 1;
  for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof cases[0]; ++i) {
    if (strcmp(cases[i].name, argv[1]) != 0) continue;
    cases[i].run();
    if (problems == 0) printf("ok\n");
    return problems == 0 ? 0 : 1;
  }
  fprintf(stderr, "usage: worker_interface CASE\n");
  return 2;
}
