// Embedding tables that are sent by rows: the result is the same as with whole tables, whichever
// process dies, and far fewer bytes are sent.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/worker/models/testing/script_files.h"
#include "tests/testing/final_state.h"
#include "tests/testing/job_processes.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

// A row of the table is 96 bytes, so that block boundaries fall within rows.
v1::JobSpec LanguageJob(uint32_t workers, uint32_t shards, v1::ModelSpec::Embeddings embeddings) {
  v1::JobSpec job = BaseJob();
  job.mutable_model()->set_name("lstm-lm");
  job.mutable_model()->set_embeddings(embeddings);
  (*job.mutable_model()->mutable_dimensions())["embedding"] = 24;
  (*job.mutable_model()->mutable_dimensions())["hidden"] = 16;

  v1::DataSpec::Synthetic& data = *job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_format(v1::DataSpec::SYNTHETIC);
  data.set_samples(500);
  data.set_vocabulary(3000);
  data.add_shape(5);

  v1::OptimizerSpec& optimizer = *job.mutable_optimizer();
  optimizer.set_name(v1::OptimizerSpec::ADAM);
  optimizer.set_learning_rate(1e-2);
  optimizer.set_beta1(0.9);
  optimizer.set_beta2(0.999);
  optimizer.set_eps(1e-8);

  job.mutable_training()->set_global_batch_size(16);
  job.mutable_training()->set_microbatch_size(2);
  job.mutable_training()->set_steps(40);
  job.mutable_worker()->set_replicas(workers);
  job.mutable_parameter_server()->set_replicas(shards);
  return job;
}

void Finish(JobProcesses& processes) {
  const auto code = processes.WaitForExit("coordinator", absl::Seconds(120));
  ASSERT_TRUE(code.ok()) << code.status();
  ASSERT_EQ(*code, 0);
}

v1::JobProgress WaitForStep(JobProcesses& processes, uint64_t step) {
  const auto progress = processes.WaitFor(
      [&](const v1::JobProgress& p) { return p.step() >= step; }, absl::Seconds(60));
  EXPECT_TRUE(progress.ok()) << progress.status();
  return progress.value_or(v1::JobProgress());
}

// Kills a worker in the middle of training and starts it again.
void Disturb(JobProcesses& processes) {
  WaitForStep(processes, 8);
  ASSERT_TRUE(processes.Kill("worker-1", /*report=*/true).ok());
  WaitForStep(processes, 16);
  ASSERT_TRUE(processes.StartWorker(1).ok());
}

v1::JobSpec Slow(v1::JobSpec job) {
  job.mutable_training()->set_step_delay_seconds(0.05);
  return job;
}

std::vector<uint64_t> BitsAfter(v1::JobSpec job, const std::string& directory, bool disturbed) {
  job.mutable_training()->set_bit_exact(true);
  JobProcesses processes(
      {.job = disturbed ? Slow(job) : job, .directory = NewDirectory(directory)});
  const absl::Status started = processes.StartAll();
  EXPECT_TRUE(started.ok()) << started;
  if (disturbed) Disturb(processes);
  Finish(processes);
  const auto hashes = FinalStateHashes(processes.checkpoints());
  EXPECT_TRUE(hashes.ok()) << hashes.status();
  return hashes.value_or(std::vector<uint64_t>());
}

TEST(EmbeddingRowsTest, RowsMatchDenseTablesBitForBitWhenWorkerDies) {
  const std::vector<uint64_t> whole =
      BitsAfter(LanguageJob(2, 2, v1::ModelSpec::DENSE), "whole", /*disturbed=*/false);
  EXPECT_EQ(BitsAfter(LanguageJob(2, 2, v1::ModelSpec::ROWS), "rows", /*disturbed=*/false), whole);
  EXPECT_EQ(BitsAfter(LanguageJob(2, 2, v1::ModelSpec::ROWS), "rows-killed", /*disturbed=*/true),
            whole);
  EXPECT_EQ(BitsAfter(LanguageJob(1, 3, v1::ModelSpec::ROWS), "rows-1-3", /*disturbed=*/false),
            whole);
}

// The module computes the rows that it looks up from the six numbers of a sample.
v1::JobSpec ScriptJob(uint32_t workers, uint32_t shards, v1::ModelSpec::Embeddings embeddings) {
  constexpr int64_t kRows = 3000, kWidth = 24;
  ScriptModule module;
  std::vector<double> table(kRows * kWidth), out(2 * kWidth);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<double>(i % 89) / 89 - 0.5;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(i % 7) / 7 - 0.4;
  module.tensors = {{"table", ScriptTensor::kParameter, {kRows, kWidth}, table, ""},
                    {"out", ScriptTensor::kParameter, {2, kWidth}, out, ""}};
  module.source = R"(
def forward(self, x):
    rows = torch.remainder((x * 1000).long(), 3000)
    return torch.linear(torch.embedding(self.table, rows, -1, False, False).sum(1), self.out)
)";

  const std::string path = absl::StrCat(NewDirectory("script"), "/model.pt");
  WriteScript(path, module);

  v1::JobSpec job = LanguageJob(workers, shards, embeddings);
  job.mutable_model()->Clear();
  job.mutable_model()->set_type(v1::ModelSpec::TORCH_SCRIPT);
  job.mutable_model()->set_path(path);
  job.mutable_model()->set_embeddings(embeddings);
  job.set_loss("crossEntropy");
  v1::DataSpec::Synthetic& data = *job.mutable_data()->mutable_synthetic();
  data.Clear();
  data.set_samples(500);
  data.add_shape(6);
  data.set_classes(2);
  return job;
}

TEST(EmbeddingRowsTest, TorchScriptTablesAreSentByRows) {
  const std::vector<uint64_t> whole =
      BitsAfter(ScriptJob(1, 1, v1::ModelSpec::DENSE), "script-whole", /*disturbed=*/false);
  EXPECT_EQ(BitsAfter(ScriptJob(2, 2, v1::ModelSpec::ROWS), "script-rows", /*disturbed=*/true),
            whole);
  JobProcesses processes({.job = Slow(ScriptJob(2, 2, v1::ModelSpec::ROWS)),
                          .directory = NewDirectory("script-bytes")});
  ASSERT_TRUE(processes.StartAll().ok());
  const v1::JobProgress progress = WaitForStep(processes, 20);
  // The eight samples of a worker look up at most 48 of 3,000 rows.
  EXPECT_LT(progress.pulled_bytes(), progress.parameter_bytes() / 10);
  EXPECT_LT(progress.pushed_bytes(), progress.gradient_bytes() / 10);
  Finish(processes);
}

// Under Adagrad, rows that no worker touches do not change, and the shards skip them.
TEST(EmbeddingRowsTest, UpdatingOnlyTouchedRowsMatchesDenseTablesBitForBit) {
  const auto job = [](uint32_t workers, uint32_t shards, v1::ModelSpec::Embeddings embeddings) {
    v1::JobSpec made = LanguageJob(workers, shards, embeddings);
    made.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAGRAD);
    made.mutable_checkpoint()->set_interval_steps(7);
    return made;
  };
  const std::vector<uint64_t> whole =
      BitsAfter(job(1, 1, v1::ModelSpec::DENSE), "adagrad-whole", /*disturbed=*/false);
  EXPECT_EQ(BitsAfter(job(2, 2, v1::ModelSpec::ROWS), "adagrad-rows", /*disturbed=*/true), whole);
}

TEST(EmbeddingRowsTest, WithoutBitExactRowsDifferOnlyByOrderOfAdditions) {
  std::vector<std::vector<double>> results;
  for (const auto embeddings : {v1::ModelSpec::DENSE, v1::ModelSpec::ROWS}) {
    v1::JobSpec job = LanguageJob(2, 2, embeddings);
    job.mutable_model()->set_dtype(v1::FLOAT64);
    JobProcesses processes(
        {.job = Slow(job), .directory = NewDirectory(absl::StrCat("f", embeddings))});
    ASSERT_TRUE(processes.StartAll().ok());
    if (embeddings == v1::ModelSpec::ROWS) Disturb(processes);
    Finish(processes);
    const auto table = FinalTensor(processes.checkpoints(), "embedding.weight");
    ASSERT_TRUE(table.ok()) << table.status();
    results.push_back(*table);
  }

  ASSERT_EQ(results[0].size(), 3000u * 24);
  ASSERT_EQ(results[0].size(), results[1].size());
  double largest = 0;
  for (size_t i = 0; i < results[0].size(); ++i) {
    largest = std::max(largest, std::abs(results[0][i] - results[1][i]));
  }
  EXPECT_LT(largest, 1e-6);
}

TEST(EmbeddingRowsTest, AsynchronousRowsMatchDenseTablesBitForBit) {
  std::vector<std::vector<uint64_t>> results;
  for (const auto embeddings : {v1::ModelSpec::DENSE, v1::ModelSpec::ROWS}) {
    v1::JobSpec job = LanguageJob(1, 2, embeddings);
    job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
    JobProcesses processes({.job = job, .directory = NewDirectory(absl::StrCat("a", embeddings))});
    ASSERT_TRUE(processes.StartAll().ok());
    Finish(processes);
    const auto hashes = FinalStateHashes(processes.checkpoints());
    ASSERT_TRUE(hashes.ok()) << hashes.status();
    results.push_back(*hashes);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(EmbeddingRowsTest, BoundedStalenessAppliesEachSampleOnceWhenWorkerDies) {
  v1::JobSpec job = Slow(LanguageJob(2, 2, v1::ModelSpec::ROWS));
  job.mutable_training()->set_mode(v1::BOUNDED_STALENESS);
  job.mutable_training()->set_max_staleness(1);
  JobProcesses processes({.job = job, .directory = NewDirectory("bounded")});
  ASSERT_TRUE(processes.StartAll().ok());
  Disturb(processes);
  Finish(processes);
  const auto manifest = FinalCheckpointIndex(processes.checkpoints());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  uint64_t samples = 0;
  for (const v1::Range& range : manifest->ledger().applied())
    samples += range.end() - range.begin();
  EXPECT_EQ(samples, 40u * 16);
}

TEST(EmbeddingRowsTest, RowsSendFewerBytesAndEvaluationReadsWholeTables) {
  v1::JobSpec job = Slow(LanguageJob(2, 2, v1::ModelSpec::ROWS));
  job.mutable_data()->mutable_evaluation()->set_interval_steps(10);
  JobProcesses processes({.job = job, .directory = NewDirectory("bytes")});
  ASSERT_TRUE(processes.StartAll().ok());
  const auto evaluated = processes.WaitFor(
      [&](const v1::JobProgress& p) { return p.has_last_evaluation() && p.step() >= 20; },
      absl::Seconds(60));
  ASSERT_TRUE(evaluated.ok()) << evaluated.status();
  // The words are random, so the model learns no more than how often each of the 3,000 occurs.
  EXPECT_GT(evaluated->last_evaluation().loss(), 1);
  EXPECT_LT(evaluated->last_evaluation().loss(), 30);
  // The table is three fifths of the parameters, and a batch looks up at most 40 of its rows.
  EXPECT_GT(evaluated->parameter_bytes(), 0u);
  EXPECT_LT(evaluated->pulled_bytes(), evaluated->parameter_bytes() / 2);
  EXPECT_LT(evaluated->pushed_bytes(), evaluated->gradient_bytes() / 2);
  Finish(processes);
}

TEST(EmbeddingRowsTest, DenseTablesAreSentWhole) {
  JobProcesses processes({.job = Slow(LanguageJob(2, 2, v1::ModelSpec::DENSE)),
                          .directory = NewDirectory("dense-bytes")});
  ASSERT_TRUE(processes.StartAll().ok());
  const v1::JobProgress progress = WaitForStep(processes, 20);
  EXPECT_GT(progress.parameter_bytes(), 0u);
  EXPECT_EQ(progress.pulled_bytes(), progress.parameter_bytes());
  EXPECT_EQ(progress.pushed_bytes(), progress.gradient_bytes());
  Finish(processes);
}

}  // namespace
}  // namespace sluice::testing
