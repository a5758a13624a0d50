/* A Sluice worker in plain C: linear regression on made-up data, y = x * (1 2 3 4) + 0.5.
 *
 *   cc -std=c99 linear_worker.c -lsluice-worker -o linear_worker
 *   sluice run linear.yaml
 */
#include <sluice/worker.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kWidth = 4, kSamples = 1000, kHeldOut = 100 };
enum { kWeights, kBias }; /* in the order in which they are added */

/* Sample `index`, a function of its number: any worker computes any sample. */
static double sample(uint64_t index, double x[kWidth]) {
  double y = 0.5;
  for (int i = 0; i < kWidth; ++i) {
    const uint64_t mixed = (index * kWidth + (uint64_t)i + 1) * 0x9E3779B97F4A7C15u;
    x[i] = (double)(mixed >> 11) / (double)(1ull << 52) - 1;
    y += x[i] * (i + 1);
  }
  return y;
}

static int failed(const char* what, sluice_code code) {
  fprintf(stderr, "%s: %s: %s\n", what, sluice_code_text(code), sluice_last_error());
  return EXIT_FAILURE;
}

static sluice_code add_tensor(sluice_worker* worker, const char* name, int64_t elements) {
  const double zeros[kWidth] = {0};
  sluice_tensor tensor = {0};
  tensor.struct_size = sizeof tensor;
  tensor.name = name;
  tensor.dtype = SLUICE_FLOAT64;
  tensor.kind = SLUICE_PARAMETER;
  tensor.shape = &elements;
  tensor.dimensions = 1;
  tensor.initial = zeros;
  tensor.initial_bytes = (size_t)elements * sizeof(double);
  return sluice_worker_add_tensor(worker, &tensor);
}

/* Adds up the squared errors of the samples, and their gradients. */
static double pass(sluice_worker* worker, const sluice_work* work, uint64_t first_sample,
                   double weight_gradient[kWidth], double* bias_gradient) {
  const void* memory;
  sluice_worker_parameter(worker, kWeights, &memory, NULL);
  const double* weights = memory;
  sluice_worker_parameter(worker, kBias, &memory, NULL);
  const double* bias = memory;

  double loss = 0;
  for (uint64_t n = 0; n < work->samples; ++n) {
    double x[kWidth];
    double error = *bias - sample(first_sample + work->indices[n], x);
    for (int i = 0; i < kWidth; ++i) error += weights[i] * x[i];
    loss += error * error;
    for (int i = 0; i < kWidth; ++i) weight_gradient[i] += 2 * error * x[i];
    *bias_gradient += 2 * error;
  }
  return loss;
}

static sluice_code answer(sluice_worker* worker, const sluice_work* work) {
  double weight_gradient[kWidth] = {0}, bias_gradient = 0;
  const uint64_t first_sample = work->kind == SLUICE_EVALUATE ? kSamples : 0;
  sluice_result result = {0};
  result.struct_size = sizeof result;
  result.loss_sum = pass(worker, work, first_sample, weight_gradient, &bias_gradient);

  sluice_code code = SLUICE_OK;
  if (work->kind == SLUICE_GRADIENTS) {
    /* Token 0: the library copies them. */
    code = sluice_worker_gradient(worker, kWeights, weight_gradient, sizeof weight_gradient, 0);
    if (code == SLUICE_OK) {
      code = sluice_worker_gradient(worker, kBias, &bias_gradient, sizeof bias_gradient, 0);
    }
  }
  return code == SLUICE_OK ? sluice_worker_done(worker, &result) : code;
}

static void print_model(sluice_worker* worker) {
  uint64_t step = 0;
  const void *weights, *bias;
  sluice_worker_position(worker, &step);
  sluice_worker_parameter(worker, kWeights, &weights, NULL);
  sluice_worker_parameter(worker, kBias, &bias, NULL);
  printf("step %llu: weights", (unsigned long long)step);
  for (int i = 0; i < kWidth; ++i) printf(" %.2f", ((const double*)weights)[i]);
  printf(", bias %.2f\n", *(const double*)bias);
}

int main(void) {
  if (sluice_abi_version() != SLUICE_WORKER_ABI) {
    fprintf(stderr, "libsluice-worker.so is of another version than sluice/worker.h\n");
    return EXIT_FAILURE;
  }

  /* `sluice run` and the operator set these. */
  sluice_join_options options = {0};
  options.struct_size = sizeof options;
  options.coordinator = getenv("SLUICE_COORDINATOR");
  options.job = getenv("SLUICE_JOB");
  options.secret_file = getenv("SLUICE_SECRET_FILE");
  options.tls_directory = options.secret_file ? NULL : getenv("SLUICE_TLS_DIRECTORY");
  options.index =
      (uint32_t)atoi(getenv("SLUICE_WORKER_INDEX") ? getenv("SLUICE_WORKER_INDEX") : "0");
  options.timeout_seconds = 30;

  sluice_worker* worker;
  sluice_code code = sluice_worker_join(&options, &worker);
  if (code != SLUICE_OK) return failed("join", code);

  code = add_tensor(worker, "weights", kWidth);
  if (code == SLUICE_OK) code = add_tensor(worker, "bias", 1);
  if (code == SLUICE_OK) code = sluice_worker_open(worker, kSamples, kHeldOut);

  sluice_work work = {0};
  work.struct_size = sizeof work;
  while (code == SLUICE_OK && (code = sluice_worker_next(worker, 0, &work)) == SLUICE_OK) {
    code = answer(worker, &work);
  }

  int status = EXIT_SUCCESS;
  if (code == SLUICE_ENDED) {
    print_model(worker);
  } else {
    status = failed("worker", code);
  }
  sluice_worker_free(worker);
  return status;
}
