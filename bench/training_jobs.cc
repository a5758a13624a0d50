#include "bench/training_jobs.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sluice::bench {
namespace {

struct ModelJob {
  const char* name;
  uint64_t batch;  // samples of one gradient
  bool images;     // else a table of `columns` numbers, or no data
  int64_t columns;
  uint32_t classes;    // 0: regression
  uint32_t words = 0;  // not 0: `columns` words of a vocabulary of so many, trained by Adam
};

constexpr ModelJob kModels[] = {
    {"convnet", 128, true, 0, 10},
    {"mnist-net", 32, true, 0, 10},
    {"mlp", 32, true, 0, 10},
    {"linear", 32, false, 14, 0},
    {"logistic", 32, false, 14, 2},
    {"additive", 32, false, 0, 0},
    {"lstm-lm", 20, false, 35, 0, 10000},
};
// additive has 4 MB, between mlp and mnist-net.
constexpr int64_t kAdditiveElements = 1'000'000;
constexpr uint64_t kSyntheticSamples = 100'000;

const ModelJob* Find(const std::string& name) {
  for (const ModelJob& model : kModels) {
    if (name == model.name) return &model;
  }
  return nullptr;
}

void FillData(const ModelJob& model, const std::string& directory, v1::DataSpec* data) {
  if (model.images) {
    data->set_format(v1::DataSpec::IDX);
    data->mutable_source()->set_path(directory);
    return;
  }
  data->set_format(v1::DataSpec::SYNTHETIC);
  data->mutable_synthetic()->set_samples(kSyntheticSamples);
  if (model.columns > 0) data->mutable_synthetic()->add_shape(model.columns);
  data->mutable_synthetic()->set_classes(model.classes);
  data->mutable_synthetic()->set_vocabulary(model.words);
}

void FillTimeouts(v1::TimeoutSpec* timeouts) {
  timeouts->set_heartbeat(1);
  timeouts->set_suspect(1);
  timeouts->set_heartbeat_timeout(30);
  timeouts->set_pause(30);
  timeouts->set_initialization(60);
  timeouts->set_suspend_checkpoint(60);
}

}  // namespace

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const ModelJob& model : kModels) names.emplace_back(model.name);
  return names;
}

absl::StatusOr<v1::JobSpec> MakeTrainingJob(const TrainingJobOptions& options) {
  const ModelJob* const model = Find(options.model);
  if (model == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no model '", options.model, "': should be ",
                                                   absl::StrJoin(ModelNames(), ", ")));
  }
  const bool additive = options.model == "additive";
  v1::JobSpec job;
  job.set_name("training");
  job.mutable_model()->set_name(options.model);
  if (additive) (*job.mutable_model()->mutable_dimensions())["dim"] = kAdditiveElements;
  FillData(*model, options.data, job.mutable_data());
  v1::TrainingSpec& training = *job.mutable_training();
  training.set_mode(v1::SYNCHRONOUS);
  training.set_global_batch_size(model->batch * options.workers);
  training.set_microbatch_size(model->batch);
  training.set_steps(options.steps);
  training.set_threads(1);
  training.set_seed(1);
  job.mutable_optimizer()->set_name(additive ? v1::OptimizerSpec::ADD : v1::OptimizerSpec::SGD);
  job.mutable_optimizer()->set_learning_rate(0.01);
  if (model->words > 0) {
    job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAM);
    job.mutable_optimizer()->set_learning_rate(1e-3);
    job.mutable_optimizer()->set_beta1(0.9);
    job.mutable_optimizer()->set_beta2(0.999);
    job.mutable_optimizer()->set_eps(1e-8);
  }
  job.mutable_parameter_server()->set_replicas(options.shards);
  job.mutable_parameter_server()->set_partitions(options.partitions);
  job.mutable_worker()->set_replicas(options.workers);
  FillTimeouts(job.mutable_timeouts());
  return job;
}

std::string RateAsJson(const TrainingJobOptions& options, const std::string& benchmark,
                       std::vector<double> seconds,
                       const std::vector<std::pair<std::string, double>>& more) {
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  std::sort(seconds.begin(), seconds.end());
  const auto steps = static_cast<double>(seconds.size());
  std::string json = absl::StrFormat(
      R"({"benchmark": "%s", "model": "%s", "workers": %d, "shards": %d, "steps": %d, )"
      R"("gradients_per_second": %.6g, "median_step_seconds": %.9f, "fastest_step_seconds": %.9f)",
      benchmark, options.model, options.workers, options.shards, seconds.size(),
      steps * static_cast<double>(options.workers) / total, seconds[seconds.size() / 2],
      seconds.front());
  for (const auto& [name, value] : more)
    absl::StrAppendFormat(&json, R"(, "%s": %.9f)", name, value);
  return json + "}";
}

}  // namespace sluice::bench
