#include "tests/testing/counting_engine.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {

CountingEngine::CountingEngine(const v1::JobSpec& job, uint64_t samples, std::string slow_while)
    : slow_while_(std::move(slow_while)) {
  const auto it = job.model().dimensions().find("microseconds");
  if (it != job.model().dimensions().end()) time_per_batch_ = absl::Microseconds(it->second);
  v1::TensorSpec& tensor = *table_.add_tensors();
  tensor.set_name("counts");
  tensor.add_shape(static_cast<int64_t>(samples));
  tensor.set_dtype(v1::FLOAT64);
  for (std::vector<double>* buffer : {&current_, &incoming_, &evaluation_}) {
    buffer->resize(samples, 0.0);
  }
}

absl::StatusOr<absl::Cord> CountingEngine::InitialTensor(uint32_t) const {
  return absl::Cord(std::string(current_.size() * sizeof(double), '\0'));
}

absl::Status CountingEngine::SetTensorRange(Buffer buffer, uint32_t, uint64_t offset,
                                            const absl::Cord& bytes) {
  std::vector<double>& to = buffer == Buffer::kEvaluation ? evaluation_ : incoming_;
  if (offset + bytes.size() / sizeof(double) > to.size()) {
    return absl::OutOfRangeError("the block is outside the tensor");
  }
  char* at = reinterpret_cast<char*>(to.data() + offset);
  for (absl::string_view chunk : bytes.Chunks()) {
    std::memcpy(at, chunk.data(), chunk.size());
    at += chunk.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Cord> CountingEngine::GetTensor(Buffer, uint32_t) const {
  return absl::UnimplementedError("a counting engine returns no tensors");
}

absl::Status CountingEngine::Adopt() {
  current_.swap(incoming_);
  return absl::OkStatus();
}

absl::StatusOr<BatchMetrics> CountingEngine::ComputeGradients(const GradientRequest& request,
                                                              GradientSink& sink) {
  if (time_per_batch_ > absl::ZeroDuration() &&
      (slow_while_.empty() || access(slow_while_.c_str(), F_OK) == 0)) {
    absl::SleepFor(time_per_batch_);
  }
  auto gradient = std::make_shared<std::vector<double>>(current_.size(), 0.0);
  for (const float sample : request.batch->features) {
    (*gradient)[static_cast<size_t>(std::lround(sample))] += 1;
  }
  const absl::string_view bytes(reinterpret_cast<const char*>(gradient->data()),
                                gradient->size() * sizeof(double));
  sink.OnGradient(0, absl::MakeCordFromExternal(bytes, [gradient] {}));
  BatchMetrics metrics;
  metrics.samples = request.batch->samples;
  return metrics;
}

absl::StatusOr<BatchMetrics> CountingEngine::Evaluate(Buffer, const Batch& batch) {
  BatchMetrics metrics;
  metrics.samples = batch.samples;
  return metrics;
}

v1::JobSpec CountingJob(const std::string& directory, uint64_t samples, uint64_t epochs) {
  const std::string path = absl::StrCat(directory, "/samples.csv");
  std::ofstream csv(path);
  csv << "sample,label\n";
  for (uint64_t i = 0; i < samples; ++i) csv << i << "," << i % 2 << "\n";

  v1::JobSpec job = BaseJob();
  v1::DataSpec& data = *job.mutable_data();
  data.set_format(v1::DataSpec::CSV);
  data.mutable_source()->set_path(path);
  data.mutable_csv()->set_label_column("label");
  data.mutable_csv()->add_numeric_columns("sample");
  (*job.mutable_model()->mutable_dimensions())["microseconds"] = 5000;
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADD);
  job.mutable_optimizer()->set_learning_rate(1);

  v1::TrainingSpec& training = *job.mutable_training();
  training.set_aggregation(v1::TrainingSpec::SUM);
  training.set_epochs(epochs);
  training.set_global_batch_size(30);
  training.set_microbatch_size(4);
  return job;
}

}  // namespace sluice::testing
