// The functions of include/sluice/worker.h: they check what they are given, and call a Worker.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "include/sluice/worker.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/io/file_util.h"
#include "services/common/process/number_range.h"
#include "services/common/text/utf8.h"
#include "services/common/version.h"
#include "services/protocol/samples/sequence.h"
#include "services/snapshot/job_progress.h"
#include "services/snapshot/running_snapshot.h"
#include "services/transport/endpoint.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/transport_security.h"
#include "services/worker/library/call_result.h"
#include "services/worker/library/model_input.h"
#include "services/worker/library/worker.h"

struct sluice_worker {
  sluice_worker(sluice::worker::WorkerProcess::Options options, sluice::Logger logger)
      : worker(std::move(options), std::move(logger)) {}

  const pid_t pid = getpid();
  sluice::worker::Worker worker;
};

struct sluice_snapshot {
  sluice::RunningSnapshot content;
  std::vector<std::string> bytes;  // of each tensor, contiguous
};

namespace sluice::worker {
namespace {

constexpr size_t kMaxReasonBytes = 4096;
constexpr double kMaxSeconds = 1e9;
constexpr char kForked[] =
    "this process was forked from one that uses the library, whose threads and connections are not "
    "here: join in the process that computes, or start it by exec";

thread_local std::string last_error;

// The process in which gRPC runs: it does not survive a fork.
std::once_flag configured;
pid_t configured_pid = 0;

void ConfigureOnce() {
  std::call_once(configured, [] {
    configured_pid = getpid();
    // The memory of the process is the program's business.
    ConfigureGrpcProcess({.data_plane = false});
  });
}

// Runs a function that returns a CallResult; no exception passes.
template <typename F>
sluice_code Guard(F f) {
  try {
    CallResult result = f();
    if (!result.ok()) last_error = std::move(result.text);
    return result.code;
  } catch (const std::exception& error) {
    last_error = absl::StrCat("an internal error: ", error.what());
  } catch (...) {
    last_error = "an internal error";
  }
  return SLUICE_INTERNAL;
}

// The same with the worker's Caller.
template <typename F>
sluice_code WithCaller(const sluice_worker* worker, F f) {
  return Guard([&]() -> CallResult {
    if (worker == nullptr) return Invalid("the worker is NULL: sluice_worker_join makes one");
    if (worker->pid != getpid()) return {SLUICE_FORKED, kForked};
    return f(const_cast<sluice_worker*>(worker)->worker.caller());
  });
}

bool IsTime(double seconds) { return seconds >= 0 && seconds <= kMaxSeconds; }

absl::string_view View(const void* data, size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

// ---- joining

struct Access {
  std::string address;
  std::shared_ptr<const security::TransportSecurity> security;
  absl::Time deadline;
};

CallResult OpenAccess(const sluice_join_options* options, Access* access) {
  if (CallResult wrong = CheckStruct(options, "options"); !wrong.ok()) return wrong;
  if (options->coordinator == nullptr) return Invalid("options->coordinator is NULL");
  if (!IsTime(options->timeout_seconds)) {
    return Invalid("options->timeout_seconds is ", options->timeout_seconds,
                   ": it must be 0 or more");
  }
  if (configured_pid != 0 && configured_pid != getpid()) return {SLUICE_FORKED, kForked};
  ConfigureOnce();

  absl::StatusOr<std::string> address = ResolveCoordinator(options->coordinator, nullptr, nullptr);
  if (!address.ok()) return Invalid(address.status().message());
  security::TransportSecurity::Options security;
  if (options->tls_directory != nullptr) security.directory = options->tls_directory;
  if (options->secret_file != nullptr) security.secret_file = options->secret_file;
  if (!security.directory.empty() && !security.secret_file.empty()) {
    return Invalid("options: tls_directory and secret_file exclude each other");
  }
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  auto opened = security::TransportSecurity::OpenIfAny(files.get(), security, absl::Now());
  if (!opened.ok()) return Invalid(opened.status().message());

  access->address = *std::move(address);
  access->security = *std::move(opened);
  access->deadline = options->timeout_seconds > 0
                         ? absl::Now() + absl::Seconds(options->timeout_seconds)
                         : absl::InfiniteFuture();
  return {};
}

CallResult ProgressOf(const Access& access, v1::JobProgress* progress) {
  absl::StatusOr<v1::JobProgress> found = WaitForProgress(
      access.address, security::ChannelCredentialsOf(access.security), access.deadline);
  if (!found.ok()) return {SLUICE_NOT_FOUND, std::string(found.status().message())};
  *progress = *std::move(found);
  return {};
}

CallResult Join(const sluice_join_options* given, std::unique_ptr<sluice_worker>* worker) {
  Access access;
  if (CallResult wrong = OpenAccess(given, &access); !wrong.ok()) return wrong;
  if (given->index >= kMaxReplicas) {
    return Invalid("options->index is ", given->index, ": it must be below ", kMaxReplicas);
  }
  absl::StatusOr<Logger> logger =
      Logger::Create({.level = given->log_level == nullptr ? "error" : given->log_level});
  if (!logger.ok()) return Invalid("options->log_level: ", logger.status().message());

  WorkerProcess::Options options;
  if (given->job != nullptr) {
    options.core.job = given->job;
  } else {
    v1::JobProgress progress;
    if (CallResult wrong = ProgressOf(access, &progress); !wrong.ok()) return wrong;
    options.core.job = progress.job();
  }
  options.coordinator = access.address;
  options.security = access.security;
  options.core.process.set_role(v1::WORKER);
  options.core.process.set_index(given->index);
  options.core.host = HostName();
  options.core.pid = static_cast<uint64_t>(getpid());
  // Whole milliseconds, because messages show it.
  options.connect_timeout = std::max(
      absl::Ceil(access.deadline - absl::Now(), absl::Milliseconds(1)), absl::Milliseconds(1));
  options.shared_memory = given->no_shared_memory == 0;
  if (given->advertised_host != nullptr) options.advertised_host = given->advertised_host;

  auto made = std::make_unique<sluice_worker>(
      std::move(options), logger->With({{"role", "worker"}, {"index", given->index}}));
  CallResult result = made->worker.caller().WaitForJob();
  if (result.ok()) {
    *worker = std::move(made);
  } else {
    made->worker.Stop();
  }
  return result;
}

}  // namespace
}  // namespace sluice::worker

using sluice::worker::Caller;
using sluice::worker::CallResult;
using sluice::worker::Guard;
using sluice::worker::Invalid;
using sluice::worker::View;
using sluice::worker::WithCaller;

extern "C" {

// ---- the library

uint32_t sluice_abi_version(void) { return SLUICE_WORKER_ABI; }

const char* sluice_version(void) { return sluice::Version().data(); }

const char* sluice_code_text(int code) {
  static constexpr const char* kTexts[] = {
      "OK",         "invalid argument", "wrong state",   "busy",      "forked",
      "not found",  "wire version",     "model differs", "duplicate", "ended",
      "job failed", "unavailable",      "timeout",       "internal",
  };
  const bool known = code >= 0 && code < static_cast<int>(std::size(kTexts));
  return known ? kTexts[code] : "unknown code";
}

const char* sluice_last_error(void) { return sluice::worker::last_error.c_str(); }

uint32_t sluice_crc32c(const void* data, size_t bytes) {
  return data == nullptr ? 0 : sluice::Crc32c(View(data, bytes));
}

// ---- joining

sluice_code sluice_worker_join(const sluice_join_options* options, sluice_worker** worker) {
  return Guard([&]() -> CallResult {
    if (worker == nullptr) return Invalid("the place for the worker is NULL");
    std::unique_ptr<sluice_worker> made;
    CallResult result = sluice::worker::Join(options, &made);
    if (result.ok()) *worker = made.release();
    return result;
  });
}

sluice_code sluice_worker_job(sluice_worker* worker, const char** name, const void** spec,
                              size_t* spec_bytes) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (name != nullptr) *name = caller.job_name().c_str();
    if (spec != nullptr) *spec = caller.job_spec().data();
    if (spec_bytes != nullptr) *spec_bytes = caller.job_spec().size();
    return {};
  });
}

// ---- the model

sluice_code sluice_worker_add_tensor(sluice_worker* worker, const sluice_tensor* tensor) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    sluice::v1::TensorSpec spec;
    if (CallResult wrong = sluice::worker::ReadTensor(tensor, &spec); !wrong.ok()) return wrong;
    return caller.AddTensor(std::move(spec),
                            std::string(View(tensor->initial, tensor->initial_bytes)),
                            tensor->rows != 0);
  });
}

sluice_code sluice_worker_describe(sluice_worker* worker, const sluice_model* model) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    sluice::v1::Ready traits;
    if (CallResult wrong = sluice::worker::ReadModel(model, &traits); !wrong.ok()) return wrong;
    return caller.Describe(std::move(traits));
  });
}

sluice_code sluice_worker_add_digest(sluice_worker* worker, const char* name, uint64_t hash) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (name == nullptr) return Invalid("the name of a digest is NULL");
    return caller.AddDigest(name, hash);
  });
}

sluice_code sluice_worker_add_metric(sluice_worker* worker, const char* name) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (name == nullptr) return Invalid("the name of the metric is NULL");
    return caller.AddMetric(name);
  });
}

sluice_code sluice_worker_open(sluice_worker* worker, uint64_t training_samples,
                               uint64_t evaluation_samples) {
  return WithCaller(
      worker, [&](Caller& caller) { return caller.Open(training_samples, evaluation_samples); });
}

// ---- the loop

sluice_code sluice_worker_next(sluice_worker* worker, double timeout_seconds, sluice_work* work) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (!sluice::worker::IsTime(timeout_seconds)) {
      return Invalid("timeout_seconds is ", timeout_seconds, ": it must be 0 or more");
    }
    if (CallResult wrong = sluice::worker::CheckStruct(work, "work"); !wrong.ok()) return wrong;
    return caller.Next(
        timeout_seconds > 0 ? absl::Seconds(timeout_seconds) : absl::InfiniteDuration(), work);
  });
}

sluice_code sluice_worker_parameter(sluice_worker* worker, uint32_t tensor, const void** data,
                                    size_t* bytes) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (data == nullptr) return Invalid("the place for the address is NULL");
    return caller.Parameter(tensor, data, bytes);
  });
}

sluice_code sluice_worker_weight(sluice_worker* worker, double weight) {
  return WithCaller(worker, [&](Caller& caller) { return caller.GiveWeight(weight); });
}

sluice_code sluice_worker_sum(sluice_worker* worker, const char* name, double* values, size_t count,
                              double timeout_seconds, int* abandoned) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (name == nullptr || values == nullptr || abandoned == nullptr) {
      return Invalid("name, values or abandoned is NULL");
    }

    if (!sluice::IsUtf8(name)) return Invalid("the name of a sum must be UTF-8");
    if (!sluice::worker::IsTime(timeout_seconds)) {
      return Invalid("timeout_seconds is ", timeout_seconds, ": it must be 0 or more");
    }

    bool is_abandoned = false;
    const CallResult result =
        caller.Sum(name, values, count,
                   timeout_seconds > 0 ? absl::Seconds(timeout_seconds) : absl::InfiniteDuration(),
                   &is_abandoned);

    *abandoned = is_abandoned ? 1 : 0;
    return result;
  });
}

sluice_code sluice_worker_gradient(sluice_worker* worker, uint32_t tensor, const void* data,
                                   size_t bytes, uint64_t token) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (data == nullptr) return Invalid("the gradient of tensor ", tensor, " is NULL");
    return caller.GiveGradient(tensor, View(data, bytes), token);
  });
}

sluice_code sluice_worker_row_gradient(sluice_worker* worker, uint32_t tensor, const uint64_t* rows,
                                       size_t count, const void* values, size_t bytes,
                                       uint64_t token) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (count > 0 && (rows == nullptr || values == nullptr)) {
      return Invalid("rows or values of the gradient of tensor ", tensor, " are NULL");
    }
    if (count == 0) rows = nullptr;
    return caller.GiveRowGradient(tensor, std::vector<uint64_t>(rows, rows + count),
                                  View(values, bytes), token);
  });
}

sluice_code sluice_worker_no_gradient(sluice_worker* worker, uint32_t tensor) {
  return WithCaller(worker, [&](Caller& caller) { return caller.GiveNoGradient(tensor); });
}

sluice_code sluice_worker_buffer_change(sluice_worker* worker, uint32_t tensor, const void* data,
                                        size_t bytes) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (data == nullptr) return Invalid("the change of tensor ", tensor, " is NULL");
    return caller.GiveBufferChange(tensor, View(data, bytes));
  });
}

sluice_code sluice_worker_rows(sluice_worker* worker, uint32_t tensor, const uint64_t* rows,
                               size_t count) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (count > 0 && rows == nullptr) return Invalid("the rows of tensor ", tensor, " are NULL");
    return caller.GiveRows(tensor, rows, count);
  });
}

sluice_code sluice_worker_metric_state(sluice_worker* worker, uint32_t metric, const void* state,
                                       size_t bytes) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (bytes > 0 && state == nullptr) return Invalid("the state of metric ", metric, " is NULL");
    return caller.GiveMetricState(metric, View(state, bytes));
  });
}

sluice_code sluice_worker_metric_parts(sluice_worker* worker, size_t* parts) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (parts == nullptr) return Invalid("the place for the number of parts is NULL");
    return caller.MetricParts(parts);
  });
}

sluice_code sluice_worker_metric_part(sluice_worker* worker, uint32_t metric, size_t part,
                                      const void** state, size_t* bytes) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (state == nullptr || bytes == nullptr) return Invalid("state or bytes is NULL");
    return caller.MetricPart(metric, part, state, bytes);
  });
}

sluice_code sluice_worker_metric_value(sluice_worker* worker, uint32_t metric, double value,
                                       const char* note) {
  return WithCaller(worker, [&](Caller& caller) {
    return caller.GiveMetricValue(metric, value, note == nullptr ? "" : note);
  });
}

sluice_code sluice_worker_released(sluice_worker* worker, uint64_t* tokens, size_t capacity,
                                   size_t* count) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (tokens == nullptr || count == nullptr) return Invalid("tokens or count is NULL");
    *count = caller.Released(tokens, capacity);
    return {};
  });
}

sluice_code sluice_worker_cancelled(sluice_worker* worker, int* cancelled) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (cancelled == nullptr) return Invalid("the place for the answer is NULL");
    *cancelled = caller.Cancelled() ? 1 : 0;
    return {};
  });
}

sluice_code sluice_worker_done(sluice_worker* worker, const sluice_result* result) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    sluice_result none{};
    none.struct_size = sizeof none;
    const sluice_result& given = result == nullptr ? none : *result;
    if (CallResult wrong = sluice::worker::CheckStruct(&given, "result"); !wrong.ok()) return wrong;

    if (!sluice::worker::IsTime(given.data_seconds) ||
        !sluice::worker::IsTime(given.compute_seconds)) {
      return Invalid("result: a time is negative or not a number");
    }

    return caller.Done(given);
  });
}

sluice_code sluice_worker_position(sluice_worker* worker, uint64_t* step) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (step == nullptr) return Invalid("the place for the step is NULL");
    *step = caller.Position();
    return {};
  });
}

sluice_code sluice_worker_indices(sluice_worker* worker, uint64_t first, size_t count,
                                  uint64_t* indices) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (indices == nullptr) return Invalid("the place for the indices is NULL");
    if (count > sluice::kMaxSamples || first > ~uint64_t{0} - count) {
      return Invalid("positions ", first, " and the ", count, " from there on: at most ",
                     sluice::kMaxSamples, " positions are possible, below 2^64");
    }
    return caller.Indices(first, count, indices);
  });
}

// ---- the end

sluice_code sluice_worker_ended(sluice_worker* worker) {
  return WithCaller(worker, [](Caller& caller) { return caller.Ended(); });
}

sluice_code sluice_worker_leave(sluice_worker* worker, const char* reason, double grace_seconds) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (!sluice::worker::IsTime(grace_seconds)) {
      return Invalid("grace_seconds is ", grace_seconds, ": it must be 0 or more");
    }
    caller.Leave(sluice::CleanUtf8(reason == nullptr ? "the program leaves" : reason,
                                   sluice::worker::kMaxReasonBytes),
                 absl::Seconds(grace_seconds));
    return {};
  });
}

sluice_code sluice_worker_fail(sluice_worker* worker, const char* reason) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (reason == nullptr) return Invalid("the reason is NULL");
    caller.Fail(reason);
    return {};
  });
}

sluice_code sluice_worker_stop_job(sluice_worker* worker, const char* reason) {
  return WithCaller(worker, [&](Caller& caller) -> CallResult {
    if (reason == nullptr) return Invalid("the reason is NULL");
    std::string text = sluice::CleanUtf8(reason, sluice::worker::kMaxReasonBytes);
    if (text.empty()) return Invalid("the reason is empty: it must say why training ends");
    caller.StopJob(std::move(text));
    return {};
  });
}

sluice_code sluice_worker_save_job(sluice_worker* worker) {
  return WithCaller(worker, [](Caller& caller) -> CallResult {
    caller.SaveJob();
    return {};
  });
}

sluice_code sluice_worker_close(sluice_worker* worker) {
  return WithCaller(worker, [&](Caller&) -> CallResult {
    if (worker->worker.Stop()) return {};
    return {SLUICE_BUSY, "another thread is in a call of this worker; the worker continues"};
  });
}

sluice_code sluice_worker_free(sluice_worker* worker) {
  if (worker == nullptr) return SLUICE_OK;
  const sluice_code code = sluice_worker_close(worker);
  if (code == SLUICE_OK) delete worker;
  return code;
}

// ---- a running job

sluice_code sluice_job_progress(const sluice_join_options* options, void** progress,
                                size_t* bytes) {
  return Guard([&]() -> CallResult {
    if (progress == nullptr || bytes == nullptr) return Invalid("progress or bytes is NULL");
    sluice::worker::Access access;
    if (CallResult wrong = sluice::worker::OpenAccess(options, &access); !wrong.ok()) return wrong;

    sluice::v1::JobProgress found;
    if (CallResult wrong = sluice::worker::ProgressOf(access, &found); !wrong.ok()) return wrong;

    const std::string content = found.SerializeAsString();
    void* memory = std::malloc(std::max<size_t>(1, content.size()));
    if (memory == nullptr) return {SLUICE_INTERNAL, "out of memory"};
    std::memcpy(memory, content.data(), content.size());

    *progress = memory;
    *bytes = content.size();
    return {};
  });
}

void sluice_free(void* memory) { std::free(memory); }

sluice_code sluice_snapshot_open(const sluice_join_options* options, sluice_snapshot** snapshot) {
  return Guard([&]() -> CallResult {
    if (snapshot == nullptr) return Invalid("the place for the snapshot is NULL");
    sluice::worker::Access access;
    if (CallResult wrong = sluice::worker::OpenAccess(options, &access); !wrong.ok()) return wrong;
    sluice::v1::JobProgress progress;
    if (CallResult wrong = sluice::worker::ProgressOf(access, &progress); !wrong.ok()) return wrong;

    sluice::SnapshotSource source;
    source.coordinator = access.address;
    source.credentials = sluice::security::ChannelCredentialsOf(access.security);
    source.shared_memory = options->no_shared_memory == 0;
    const absl::Duration timeout =
        std::min(access.deadline - absl::Now(), absl::Seconds(sluice::worker::kMaxSeconds));
    auto pulled = sluice::PullSnapshot(source, progress.job(), timeout);
    if (!pulled.ok()) return {SLUICE_UNAVAILABLE, std::string(pulled.status().message())};

    auto made = std::make_unique<sluice_snapshot>();
    for (sluice::SafetensorsArray& tensor : pulled->tensors) {
      made->bytes.push_back(std::string(std::exchange(tensor.bytes, {})));
    }
    made->content = *std::move(pulled);
    *snapshot = made.release();
    return {};
  });
}

sluice_code sluice_snapshot_info(const sluice_snapshot* snapshot, uint64_t* version,
                                 size_t* tensors) {
  return Guard([&]() -> CallResult {
    if (snapshot == nullptr) return Invalid("the snapshot is NULL");
    if (version != nullptr) *version = snapshot->content.version;
    if (tensors != nullptr) *tensors = snapshot->content.tensors.size();
    return {};
  });
}

sluice_code sluice_snapshot_tensor(const sluice_snapshot* snapshot, size_t place,
                                   sluice_tensor* tensor) {
  return Guard([&]() -> CallResult {
    if (snapshot == nullptr) return Invalid("the snapshot is NULL");
    if (CallResult wrong = sluice::worker::CheckStruct(tensor, "tensor"); !wrong.ok()) return wrong;

    if (place >= snapshot->content.tensors.size()) {
      return Invalid("there is no tensor ", place, " of ", snapshot->content.tensors.size());
    }

    const sluice::SafetensorsArray& found = snapshot->content.tensors[place];
    tensor->name = found.name.c_str();
    tensor->dtype = found.dtype;
    tensor->kind = SLUICE_PARAMETER;
    tensor->shape = found.shape.data();
    tensor->dimensions = found.shape.size();
    tensor->initial = snapshot->bytes[place].data();
    tensor->initial_bytes = snapshot->bytes[place].size();
    tensor->rows = 0;
    return {};
  });
}

void sluice_snapshot_free(sluice_snapshot* snapshot) { delete snapshot; }

}  // extern "C"
