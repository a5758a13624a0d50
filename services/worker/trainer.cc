#include "services/worker/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/checkpoint/state_dict_extras.h"
#include "services/checkpoint/storage.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/io/file_util.h"
#include "services/common/status_macros.h"
#include "services/worker/data/csv_dataset.h"
#include "services/worker/data/text_dataset.h"
#include "services/worker/store_block.h"

namespace sluice::worker {
namespace {

// Samples evaluated at a time: enough to keep the processor busy, few enough to stay in its caches
// and not to disturb training. For sequences, fewer samples, so that there are about as many
// outputs as in a large batch; a language model has thousands of numbers for each output.
constexpr uint64_t kEvaluationBatch = 256;
constexpr uint64_t kEvaluationTokens = 1024;

uint64_t EvaluationBatchOf(const DatasetInfo& info) {
  if (!info.tokens) return kEvaluationBatch;
  uint64_t tokens = 1;
  for (int64_t dimension : info.sample_shape) tokens *= static_cast<uint64_t>(dimension);
  return std::clamp<uint64_t>(kEvaluationTokens / tokens, 1, kEvaluationBatch);
}

// Stores what the training data determines (a text's vocabulary, a table's encoding) next to the
// checkpoints, so that it can be found with them. A worker that does not see the checkpoints'
// directory takes it from the training data. The words are then named in `data`; returned is the
// file of the table's encoding, or empty.
absl::StatusOr<std::string> KeepEncoding(const v1::CheckpointSpec& checkpoint, v1::DataSpec* data) {
  const char* const name =
      data->format() == v1::DataSpec::CSV ? kTableEncodingFile : kVocabularyFile;
  std::string encoding_file;
  const auto keep = [&](const std::string& path) -> absl::Status {
    RETURN_IF_ERROR(KeepVocabulary(path, data));
    return KeepTableEncoding(path, *data, &encoding_file);
  };

  const std::filesystem::path directory = checkpoint.directory();
  const std::filesystem::path origin = checkpoint.restore_from();
  std::error_code error;
  // The other job's directory, or one checkpoint in it.
  for (const std::filesystem::path& candidate : {origin, origin.parent_path()}) {
    if (origin.empty() || !std::filesystem::exists(candidate / name, error)) continue;
    RETURN_IF_ERROR(keep(candidate / name));
    break;
  }
  if (!directory.empty() && std::filesystem::is_directory(directory, error)) {
    RETURN_IF_ERROR(keep(directory / name));
  }
  return encoding_file;
}

// Stores the extras next to the checkpoints, for `sluice export` and sluice.load. A worker that
// cannot write there trains anyway: the checkpoints have all trained tensors, under their first
// names.
void KeepExtras(const v1::JobSpec& job, uint32_t index, const StateDictExtras& extras) {
  std::error_code error;
  const std::string& directory = job.checkpoint().directory();
  if (directory.empty() || !std::filesystem::is_directory(directory, error)) return;
  const std::string path = JoinPath(directory, kStateDictExtrasFile);
  // Empty extras are written too if the file exists: it may be an earlier model's.
  if (extras.empty() && !std::filesystem::exists(path, error)) return;
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const absl::Cord content = WriteStateDictExtras(extras);
  const absl::StatusOr<std::string> before = files->Read(path, content.size() + 1);
  if (before.ok() && *before == content) return;
  (void)AtomicWriteFile(files.get(), path, content, absl::StrCat(index, "-", getpid()));
}

// Built-in models that classify; their last tensor is the bias of the classes.
constexpr absl::string_view kClassifiers[] = {"convnet", "mnist-net", "mlp", "lstm-lm"};

// The number of classes that the model distinguishes; 0: not known, as that of a TorchScript model
// is before it has run.
int64_t ClassesOf(const v1::JobSpec& job, const v1::TensorTable& table) {
  const bool builtin = job.model().type() == v1::ModelSpec::BUILTIN;
  const std::string& loss = job.loss();
  if (loss == "binaryCrossEntropyWithLogits" ||
      (loss.empty() && builtin && job.model().name() == "logistic")) {
    return 2;
  }
  if (!builtin || !absl::c_linear_search(kClassifiers, job.model().name()) ||
      table.tensors().empty()) {
    return 0;
  }
  const v1::TensorSpec& bias = *table.tensors().rbegin();
  return bias.shape_size() == 1 ? bias.shape(0) : 0;
}

// Finds a label that the model cannot output before training, and names its place; otherwise the
// step that draws it would fail.
absl::Status CheckClasses(const v1::JobSpec& job, const v1::TensorTable& table,
                          const DatasetInfo& data) {
  const int64_t classes = ClassesOf(job, table);
  const DatasetInfo::Label& largest = data.largest;
  if (data.label_kind != LabelKind::kClass || classes == 0 || largest.value < classes) {
    return absl::OkStatus();
  }

  const std::string label = largest.name.empty()
                                ? absl::StrCat(largest.value)
                                : absl::StrCat("'", largest.name, "' (class ", largest.value, ")");
  const std::string model =
      job.model().name().empty() ? std::string("the model") : job.model().name();

  if (classes == 2) {
    return absl::InvalidArgumentError(absl::StrCat(largest.place, ": label ", label, ": ", model,
                                                   " distinguishes two classes, 0 and 1, which "
                                                   "labels should be"));
  }
  return absl::InvalidArgumentError(absl::StrCat(largest.place, ": label ", label,
                                                 " is not in [0, ", classes, "), the classes that ",
                                                 model, " distinguishes"));
}

// An engine knows where in the batch a label is that the model cannot output. Adds a place in the
// data.
absl::Status WithPlace(const absl::Status& status, const DatasetInfo& data) {
  const bool of_label = absl::IsInvalidArgument(status) &&
                        absl::StrContains(status.message(), "the classes that the model");
  if (!of_label || data.largest.value < 0) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(status.message(), "; the largest label of the training data, ",
                   data.largest.value, ", is in ", data.largest.place));
}

}  // namespace

Trainer::Trainer(const v1::JobSpec& job, std::unique_ptr<Dataset> training,
                 std::unique_ptr<Dataset> evaluation, SampleOrder order,
                 std::unique_ptr<ComputeEngine> engine)
    : reduction_(job.training().aggregation() == v1::TrainingSpec::SUM
                     ? Reduction::kSumOfMicrobatchMeans
                     : Reduction::kSumOfSamples),
      training_(std::move(training)),
      evaluation_(std::move(evaluation)),
      order_(order),
      own_walk_(job.data().partitioning() == v1::DataSpec::PER_WORKER),
      engine_(std::move(engine)),
      ahead_(training_.get(), &order_) {}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Open(const v1::JobSpec& given, uint32_t index,
                                                       int threads,
                                                       const EngineFactory& make_engine) {
  v1::JobSpec job = given;
  ASSIGN_OR_RETURN(const std::string encoding, KeepEncoding(job.checkpoint(), job.mutable_data()));
  ASSIGN_OR_RETURN(std::unique_ptr<Dataset> training,
                   OpenDataset(job.data(), Split::kTraining, encoding));

  std::unique_ptr<Dataset> evaluation;
  // Without an evaluation source, the format finds the held-out data or reports that it is missing.
  if (job.data().has_evaluation()) {
    ASSIGN_OR_RETURN(evaluation, OpenDataset(job.data(), Split::kEvaluation, encoding));
  }

  const bool own_walk = job.data().partitioning() == v1::DataSpec::PER_WORKER;
  const uint64_t seed = job.training().seed();
  ASSIGN_OR_RETURN(SampleOrder order,
                   SampleOrder::Create({.samples = training->info().samples,
                                        .seed = own_walk ? SplitMix64At(seed, index) : seed,
                                        .shuffle = !job.data().no_shuffle()}));

  ASSIGN_OR_RETURN(std::unique_ptr<ComputeEngine> engine,
                   make_engine(job, training->info(), threads));

  RETURN_IF_ERROR(CheckClasses(job, engine->Describe(), training->info()));
  KeepExtras(job, index, engine->Extras());

  return std::unique_ptr<Trainer>(
      new Trainer(job, std::move(training), std::move(evaluation), order, std::move(engine)));
}

uint64_t Trainer::evaluation_samples() const {
  return evaluation_ == nullptr ? 0 : evaluation_->info().samples;
}

v1::Ready Trainer::Ready() const {
  v1::Ready ready;
  *ready.mutable_table() = engine_->Describe();
  ready.set_training_samples(training_samples());
  ready.set_evaluation_samples(evaluation_samples());

  ModelTraits traits = engine_->Traits();
  ready.set_smallest_batch(traits.smallest_batch);
  ready.set_smallest_batch_module(std::move(traits.smallest_batch_module));
  for (std::string& note : traits.notes) ready.add_notes(std::move(note));
  *ready.mutable_environment() = std::move(traits.environment);

  const v1::DataDigest& digest = training_->info().digest;
  if (!digest.name().empty()) *ready.add_digests() = digest;
  return ready;
}

PositionRange Trainer::PositionsOf(const Compute& request) {
  if (!own_walk_) return request.positions;
  const uint64_t begin = walked_;
  walked_ += request.positions.size();
  return {begin, walked_};
}

ComputeResult Trainer::ComputeGradients(const Compute& request, GradientSink& sink) {
  ComputeResult result;
  const absl::Time begin = clock_.Now();
  absl::StatusOr<Batch> batch = ahead_.Read(PositionsOf(request));
  const absl::Time read = clock_.Now();
  result.data_time = read - begin;
  if (!batch.ok()) {
    result.status = batch.status();
    return result;
  }

  const absl::StatusOr<BatchMetrics> metrics =
      engine_->ComputeGradients({.step = request.step,
                                 .first_microbatch = request.first_microbatch,
                                 .microbatch_size = request.microbatch_size,
                                 .batch = &*batch,
                                 .reduction = reduction_},
                                sink);
  result.compute_time = clock_.Now() - read;
  result.status = WithPlace(metrics.status(), training_->info());
  if (!metrics.ok()) return result;

  result.samples = metrics->samples;
  result.loss_sum = metrics->loss_sum;
  result.correct = static_cast<double>(metrics->correct);
  return result;
}

std::vector<uint32_t> Trainer::RowTensors() const {
  return own_walk_ ? std::vector<uint32_t>() : engine_->RowTensors();
}

absl::StatusOr<RowSelections> Trainer::FindRows(const std::vector<PositionRange>& positions) {
  RowSelections all;
  for (const PositionRange& range : positions) {
    ASSIGN_OR_RETURN(const Batch* const batch, ahead_.Peek(range));
    ASSIGN_OR_RETURN(RowSelections rows, engine_->RowsOf(*batch));

    for (auto& [tensor, selected] : rows) {
      std::vector<uint64_t>& of_tensor = all[tensor];
      of_tensor.insert(of_tensor.end(), selected.begin(), selected.end());
    }
  }

  for (auto& [tensor, selected] : all) SortRows(&selected);
  return all;
}

ComputeResult Trainer::Evaluate(const EvaluateSamples& request) {
  ComputeResult result;
  if (evaluation_ == nullptr || request.samples.end > evaluation_->info().samples) {
    result.status = absl::OutOfRangeError(
        absl::StrCat("held-out samples up to ", request.samples.end,
                     " were requested, but there are only ", evaluation_samples()));
    return result;
  }
  const uint64_t evaluation_batch = EvaluationBatchOf(evaluation_->info());
  for (uint64_t begin = request.samples.begin; begin < request.samples.end;
       begin += evaluation_batch) {
    std::vector<uint64_t> indices(std::min(evaluation_batch, request.samples.end - begin));
    std::iota(indices.begin(), indices.end(), begin);

    const absl::Time start = clock_.Now();
    absl::StatusOr<Batch> batch = evaluation_->Read(indices);
    const absl::Time read = clock_.Now();
    result.data_time += read - start;
    if (!batch.ok()) {
      result.status = batch.status();
      return result;
    }

    const absl::StatusOr<BatchMetrics> metrics = engine_->Evaluate(request.buffer, *batch);
    result.compute_time += clock_.Now() - read;
    if (!metrics.ok()) {
      result.status = metrics.status();
      return result;
    }

    result.samples += metrics->samples;
    result.loss_sum += metrics->loss_sum;
    result.correct += static_cast<double>(metrics->correct);
    result.counted = metrics->has_correct;
  }
  return result;
}

absl::Status Trainer::Store(const StoreBlock& block) {
  return StoreInto(engine_->Describe(), block,
                   [this](ComputeEngine::Buffer buffer, uint32_t tensor, uint64_t offset,
                          const absl::Cord& bytes) {
                     return engine_->SetTensorRange(buffer, tensor, offset, bytes);
                   });
}

}  // namespace sluice::worker
