#include "services/worker/trainer.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/elements.h"

namespace sluice::worker {
namespace {

// Samples evaluated at a time: enough to keep the processor busy, few enough to stay in its caches
// and out of the way of training.
constexpr uint64_t kEvaluationBatch = 256;

}  // namespace

Trainer::Trainer(const v1::JobSpec& job, std::unique_ptr<Dataset> training,
                 std::unique_ptr<Dataset> evaluation, SampleOrder order,
                 std::unique_ptr<ComputeEngine> engine)
    : reduction_(job.training().aggregation() == v1::TrainingSpec::SUM
                     ? Reduction::kSumOfMicrobatchMeans
                     : Reduction::kSumOfSamples),
      training_(std::move(training)),
      evaluation_(std::move(evaluation)),
      order_(std::move(order)),
      engine_(std::move(engine)) {}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Open(const v1::JobSpec& job, int threads,
                                                       const EngineFactory& make_engine) {
  absl::StatusOr<std::unique_ptr<Dataset>> training = OpenDataset(job.data(), Split::kTraining);
  if (!training.ok()) return training.status();
  std::unique_ptr<Dataset> evaluation;
  // Without a source of its own, the format knows where held-out data is, or says that it is
  // missing.
  if (job.data().has_evaluation()) {
    absl::StatusOr<std::unique_ptr<Dataset>> opened = OpenDataset(job.data(), Split::kEvaluation);
    if (!opened.ok()) return opened.status();
    evaluation = *std::move(opened);
  }
  absl::StatusOr<SampleOrder> order = SampleOrder::Create({.samples = (*training)->info().samples,
                                                           .seed = job.training().seed(),
                                                           .shuffle = !job.data().no_shuffle()});
  if (!order.ok()) return order.status();
  absl::StatusOr<std::unique_ptr<ComputeEngine>> engine =
      make_engine(job, (*training)->info(), threads);
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<Trainer>(new Trainer(job, *std::move(training), std::move(evaluation),
                                              *std::move(order), *std::move(engine)));
}

uint64_t Trainer::evaluation_samples() const {
  return evaluation_ == nullptr ? 0 : evaluation_->info().samples;
}

ComputeResult Trainer::ComputeGradients(const Compute& request, GradientSink& sink) {
  ComputeResult result;
  const absl::Time begin = absl::Now();
  absl::StatusOr<Batch> batch = training_->Read(order_.IndicesOf(request.positions));
  const absl::Time read = absl::Now();
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
  result.compute_time = absl::Now() - read;
  result.status = metrics.status();
  if (!metrics.ok()) return result;
  result.samples = metrics->samples;
  result.loss_sum = metrics->loss_sum;
  result.correct = static_cast<double>(metrics->correct);
  return result;
}

ComputeResult Trainer::Evaluate(const EvaluateSamples& request) {
  ComputeResult result;
  if (evaluation_ == nullptr || request.samples.end > evaluation_->info().samples) {
    result.status =
        absl::OutOfRangeError(absl::StrCat("held-out samples up to ", request.samples.end,
                                           " are wanted, there are ", evaluation_samples()));
    return result;
  }
  for (uint64_t begin = request.samples.begin; begin < request.samples.end;
       begin += kEvaluationBatch) {
    std::vector<uint64_t> indices(std::min(kEvaluationBatch, request.samples.end - begin));
    std::iota(indices.begin(), indices.end(), begin);
    const absl::Time start = absl::Now();
    absl::StatusOr<Batch> batch = evaluation_->Read(indices);
    const absl::Time read = absl::Now();
    result.data_time += read - start;
    if (!batch.ok()) {
      result.status = batch.status();
      return result;
    }
    const absl::StatusOr<BatchMetrics> metrics = engine_->Evaluate(request.buffer, *batch);
    result.compute_time += absl::Now() - read;
    if (!metrics.ok()) {
      result.status = metrics.status();
      return result;
    }
    result.samples += metrics->samples;
    result.loss_sum += metrics->loss_sum;
    result.correct += static_cast<double>(metrics->correct);
  }
  return result;
}

absl::Status Trainer::Store(const StoreBlock& block) {
  if (block.codec == v1::CODEC_RAW) {
    return engine_->SetTensorRange(block.buffer, block.tensor, block.offset, block.payload);
  }
  const absl::StatusOr<const Codec*> codec = FindCodec(block.codec);
  if (!codec.ok()) return codec.status();
  const v1::TensorTable& table = engine_->Describe();
  if (block.tensor >= static_cast<uint32_t>(table.tensors_size())) {
    return absl::OutOfRangeError(absl::StrCat("there is no tensor ", block.tensor));
  }
  const v1::DataType dtype = table.tensors(block.tensor).dtype();
  std::string raw(block.count * ElementBytes(dtype), '\0');
  absl::Status status = (*codec)->Decode(block.payload, {dtype, raw.data(), block.count});
  if (!status.ok()) return status;
  return engine_->SetTensorRange(block.buffer, block.tensor, block.offset,
                                 absl::Cord(std::move(raw)));
}

}  // namespace sluice::worker
