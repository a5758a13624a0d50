#include "cli/plan/plan.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// 1,000,000 float32: 4 MB.
v1::TensorTable Table(v1::DataType dtype = v1::FLOAT32) {
  v1::TensorTable table;
  v1::TensorSpec& tensor = *table.add_tensors();
  tensor.set_name("w");
  tensor.add_shape(1'000'000);
  tensor.set_dtype(dtype);
  tensor.set_kind(v1::PARAMETER);
  return table;
}

v1::JobSpec Job() {
  v1::JobSpec job;
  job.mutable_training()->set_mode(v1::SYNCHRONOUS);
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  job.mutable_optimizer()->set_learning_rate(0.1);
  job.mutable_parameter_server()->set_replicas(2);
  job.mutable_parameter_server()->set_partitions(64);
  job.mutable_worker()->set_replicas(3);
  return job;
}

TEST(Plan, SynchronousWorkersPushAndPullAllParameters) {
  const auto plan = MakePlan(Job(), Table(), {}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameter_bytes, 4'000'000u);
  EXPECT_EQ(plan->worker.sent_bytes, 4'000'000u);
  EXPECT_EQ(plan->worker.received_bytes, 4'000'000u);
  uint64_t received = 0;
  uint64_t sent = 0;
  for (const Plan::Shard& shard : plan->shards) {
    received += shard.received_bytes;
    sent += shard.sent_bytes;
    EXPECT_NEAR(shard.parameter_bytes, 2e6, 1e5);
    // Two versions and one sum.
    EXPECT_EQ(shard.memory_bytes, 3 * shard.parameter_bytes);
  }
  EXPECT_EQ(received, 12'000'000u);
  EXPECT_EQ(sent, 12'000'000u);
}

TEST(Plan, SecondCopiesDoubleTheStateAndReceiveEachSum) {
  v1::JobSpec job = Job();
  const auto once = MakePlan(job, Table(), {}, {});
  job.mutable_parameter_server()->set_copies(2);
  const auto twice = MakePlan(job, Table(), {}, {});
  ASSERT_TRUE(once.ok() && twice.ok());
  EXPECT_EQ(twice->worker.sent_bytes, once->worker.sent_bytes);
  for (int one : {0, 1}) {
    const Plan::Shard& shard = twice->shards[one];
    const Plan::Shard& other = twice->shards[1 - one];
    EXPECT_EQ(shard.sent_bytes, once->shards[one].sent_bytes + shard.parameter_bytes);
    EXPECT_EQ(shard.received_bytes, once->shards[one].received_bytes + other.parameter_bytes);
    EXPECT_EQ(shard.memory_bytes, once->shards[one].memory_bytes + 3 * other.parameter_bytes);
  }
  job.mutable_parameter_server()->set_replicas(1);
  const auto alone = MakePlan(job, Table(), {}, {});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->shards[0].received_bytes, 12'000'000u) << "there is no other shard";
}

TEST(Plan, AsynchronousUpdateComesFromOneWorker) {
  v1::JobSpec job = Job();
  job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  job.mutable_parameter_server()->set_replicas(1);
  const auto plan = MakePlan(job, Table(), {}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shards[0].received_bytes, 4'000'000u);
  // One version, and one staged update of each worker.
  EXPECT_EQ(plan->shards[0].memory_bytes, 16'000'000u);
}

// 100,000 rows of 10 float32.
v1::TensorTable Embedding() {
  v1::TensorTable table = Table();
  table.mutable_tensors(0)->set_shape(0, 100'000);
  table.mutable_tensors(0)->add_shape(10);
  return table;
}

TEST(Plan, CountsRowsInsteadOfTheTable) {
  for (const bool pulled : {true, false}) {
    const auto plan = MakePlan(Job(), Embedding(), {}, {{0, pulled, {1000}, 0}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    // A row has 4 bytes of number and 40 of elements; each block has a header; a request has 8
    // bytes a row.
    EXPECT_NEAR(plan->worker.received_bytes, pulled ? 44e3 : 4e6, 2e3);
    EXPECT_NEAR(plan->worker.sent_bytes, 44e3 + (pulled ? 2 * 8e3 : 0), 2e3);
    EXPECT_NEAR(plan->shards[0].received_bytes, 3 * (22e3 + (pulled ? 8e3 : 0)), 6e3);
    EXPECT_THAT(PlanLines(*plan, 1e9),
                Contains(HasSubstr("about 1,000 of 100,000 per worker a step, as")));
  }
}

TEST(Plan, WorkersThatSumAmongThemselvesPushOneGradient) {
  v1::JobSpec job = Job();
  const auto before = MakePlan(job, Table(), {}, {});
  job.mutable_training()->mutable_dense()->set_aggregation(v1::TrainingSpec::Dense::ALL_REDUCE);
  const auto plan = MakePlan(job, Table(), {}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shards[0].received_bytes + plan->shards[1].received_bytes, 4'000'000u);
  EXPECT_EQ(plan->shards[0].sent_bytes + plan->shards[1].sent_bytes, 12'000'000u);
  // Two thirds of its gradient go to the other workers, one third of the sum to the shards.
  EXPECT_EQ(plan->worker.sent_bytes, 4'000'000u);
  EXPECT_NEAR(plan->worker.received_bytes, 4e6 + 4e6 * 2 / 3, 100);
  EXPECT_NEAR(plan->worker.memory_bytes, before->worker.memory_bytes + 2 * 4e6 * 2 / 3, 200);
}

TEST(Plan, AllReduceWorkersStillPushRowsThemselves) {
  v1::JobSpec job = Job();
  const auto before = MakePlan(job, Embedding(), {}, {{0, true, {1000}, 0}});
  job.mutable_training()->mutable_dense()->set_aggregation(v1::TrainingSpec::Dense::ALL_REDUCE);
  const auto plan = MakePlan(job, Embedding(), {}, {{0, true, {1000}, 0}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shards[0].received_bytes, before->shards[0].received_bytes);
  EXPECT_EQ(plan->worker.received_bytes, before->worker.received_bytes);
}

TEST(Plan, UsesTheRangesOfRowsInTheData) {
  v1::JobSpec job = Job();
  job.mutable_parameter_server()->set_partitions(2);
  const auto plan = MakePlan(job, Embedding(), {}, {{0, true, {1000, 0}, 16}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NEAR(plan->worker.received_bytes, 44e3, 2e3);
  EXPECT_THAT(PlanLines(*plan, 1e9), Contains(HasSubstr("the mean of 16 read")));
}

TEST(Plan, TableWithNearlyAllRowsIsSentWhole) {
  const auto plan = MakePlan(Job(), Embedding(), {}, {{0, true, {99'000}, 0}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->worker.received_bytes, 4'000'000u);
}

TEST(Plan, RandomTokensSometimesNameTheSameRow) {
  EXPECT_EQ(ExpectedRows(100, 0), 0);
  EXPECT_NEAR(ExpectedRows(100, 1), 1, 1e-12);
  EXPECT_NEAR(ExpectedRows(2, 2), 1.5, 1e-12);
  EXPECT_NEAR(ExpectedRows(10'000, 160), 158.74, 0.01);
  EXPECT_NEAR(ExpectedRows(100, 1e6), 100, 1e-9);
  EXPECT_EQ(ExpectedRows(1, 3), 1);
}

TEST(Plan, EachVersionIncludesOptimizerState) {
  v1::JobSpec job = Job();
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAM);
  job.mutable_parameter_server()->set_replicas(1);
  const auto plan = MakePlan(job, Table(), {}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shards[0].memory_bytes, 2 * 12'000'000u + 4'000'000u);
}

TEST(Plan, CountsTheStateOfEachTensorsOptimizer) {
  v1::JobSpec job = Job();
  job.mutable_parameter_server()->set_replicas(1);
  auto* group = job.mutable_optimizer()->add_groups();
  group->add_patterns("table");
  group->set_name(v1::OptimizerSpec::ADAM);
  group->set_learning_rate(0.1);
  v1::TensorTable table = Table();
  *table.add_tensors() = table.tensors(0);
  table.mutable_tensors(1)->set_name("table");
  const auto plan = MakePlan(job, table, {}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  // SGD without momentum has no state, Adam two arrays; two versions, and one sum of both.
  EXPECT_EQ(plan->shards[0].memory_bytes, 2 * (4'000'000u + 12'000'000u) + 8'000'000u);
}

TEST(Plan, CountsCompressedGradients) {
  v1::JobSpec job = Job();
  job.mutable_training()->set_push_codec(v1::CODEC_FLOAT16);
  const auto plan = MakePlan(job, Table(), {}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->worker.sent_bytes, 2'000'000u);
  EXPECT_EQ(plan->worker.received_bytes, 4'000'000u);
}

TEST(Plan, ReportsCodecThatCannotEncodeTheModel) {
  v1::JobSpec job = Job();
  job.mutable_training()->set_push_codec(v1::CODEC_INT8);
  const auto plan = MakePlan(job, Table(v1::BFLOAT16), {}, {});
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.status().message(), HasSubstr("w"));
}

TEST(Plan, DroppingStragglersStoresAGradientPerWorker) {
  v1::JobSpec job = Job();
  job.mutable_parameter_server()->set_replicas(1);
  job.mutable_training()->mutable_stragglers()->set_policy(v1::TrainingSpec::Stragglers::DROP);
  const auto plan = MakePlan(job, Table(), {}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shards[0].memory_bytes, (2 + 3) * 4'000'000u);
}

TEST(Plan, NetworkTimeIsThatOfTheBusiestLink) {
  v1::JobSpec job = Job();
  job.mutable_parameter_server()->set_replicas(1);
  const auto plan = MakePlan(job, Table(), {}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->NetworkTime(12e6), absl::Seconds(1));
}

// Two layers of 1,000 numbers, each a stage.
v1::TensorTable TwoLayers() {
  v1::TensorTable table;
  for (const char* name : {"fc1.weight", "fc2.weight"}) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(name);
    tensor.add_shape(1000);
    tensor.set_dtype(v1::FLOAT32);
    tensor.set_kind(v1::PARAMETER);
  }
  return table;
}

v1::JobSpec StagedJob() {
  v1::JobSpec job = Job();
  job.mutable_training()->set_execution(v1::TrainingSpec::SERVER);
  job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  job.mutable_training()->set_global_batch_size(32);
  for (const char* layer : {"fc1", "fc2"}) job.mutable_model()->add_stages()->add_layers(layer);
  return job;
}

TEST(Plan, ComputingShardsExchangeInputsAndOutputsOnly) {
  const auto plan = MakePlan(StagedJob(), TwoLayers(), {{100, 40}, {40, 8}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->shards.size(), 2u);
  uint64_t received = 0;
  uint64_t sent = 0;
  for (const Plan::Shard& shard : plan->shards) {
    EXPECT_EQ(shard.parameter_bytes, 4000u) << "a stage each";
    received += shard.received_bytes;
    sent += shard.sent_bytes;
  }
  EXPECT_EQ(received, 32u * (100 + 40 + 40 + 8)) << "inputs, and gradients with respect to outputs";
  EXPECT_EQ(sent, 32u * (40 + 8 + 40))
      << "outputs, and the gradient with respect to the second stage's input";
  EXPECT_EQ(plan->worker.sent_bytes, received);
  EXPECT_EQ(plan->worker.received_bytes, sent);
}

TEST(Plan, VerifiedGradientsAreFetched) {
  v1::JobSpec job = StagedJob();
  job.mutable_debug()->set_verify_gradients(true);
  const auto plan = MakePlan(job, TwoLayers(), {{100, 40}, {40, 8}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->worker.received_bytes, 32u * (40 + 8 + 40) + 8000);
}

TEST(Plan, WorkersShareTheSynchronousBatch) {
  v1::JobSpec job = StagedJob();
  job.mutable_training()->set_mode(v1::SYNCHRONOUS);
  job.mutable_worker()->set_replicas(2);
  const auto plan = MakePlan(job, TwoLayers(), {{100, 40}, {40, 8}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->worker.sent_bytes, 16u * (100 + 40 + 40 + 8));
}

TEST(Plan, PrintsJson) {
  v1::JobSpec job = Job();
  job.mutable_parameter_server()->set_replicas(1);
  const auto plan = MakePlan(job, Table(), {}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(PlanJson(*plan, 12e6),
            R"({"parameters":1000000,"parameterBytes":4000000,"per":"step","shards":[)"
            R"({"parameterBytes":4000000,"memoryBytes":32971520,"receivedBytes":12000000,)"
            R"("sentBytes":12000000}],"workers":3,"worker":{"memoryBytes":200743680,)"
            R"("receivedBytes":4000000,"sentBytes":4000000},"rowTables":[],"networkSeconds":1.0})");
  const auto with_table = MakePlan(job, Embedding(), {}, {{0, true, {1000}, 0}});
  EXPECT_THAT(PlanJson(*with_table, 12e6),
              HasSubstr(R"("rowTables":[{"tensor":"w","rows":100000,"touchedRows":1000.0,)"
                        R"("basis":"RandomTokens"}])"));
}

TEST(Bandwidth, AcceptsCommonSpellings) {
  EXPECT_EQ(ParseBandwidth("10Gbit").value(), 1.25e9);
  EXPECT_EQ(ParseBandwidth("1.25 GB/s").value(), 1.25e9);
  EXPECT_EQ(ParseBandwidth("400 Mbit").value(), 5e7);
  EXPECT_EQ(ParseBandwidth("1Gbps").value(), 1.25e8);
  for (const char* wrong : {"", "fast", "10", "-1Gbit", "0Gbit", "10Gfoo"}) {
    EXPECT_FALSE(ParseBandwidth(wrong).ok()) << wrong;
  }
}

TEST(ParseBandwidth, RejectsInfiniteNumbers) {
  EXPECT_FALSE(ParseBandwidth(std::string(400, '9') + "Gbit").ok());
}

v1::Description DescriptionOfRows(uint32_t tensor) {
  v1::Description description;
  *description.mutable_ready()->mutable_table() = Table();
  v1::Description::RowTable& table = *description.add_row_tables();
  table.set_tensor(tensor);
  table.add_rows(10);
  return description;
}

TEST(RowTrafficOf, AcceptsTheDescribedTables) {
  const auto rows = RowTrafficOf(Job(), DescriptionOfRows(0));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ(rows->front().rows, std::vector<double>{10});
}

TEST(RowTrafficOf, RejectsTableThatIsNotATensor) {
  EXPECT_THAT(std::string(RowTrafficOf(Job(), DescriptionOfRows(1)).status().message()),
              HasSubstr("tensor 1 of 1"));
  v1::Description tokens = DescriptionOfRows(7);
  tokens.mutable_row_tables(0)->set_random_tokens(5);
  EXPECT_FALSE(RowTrafficOf(Job(), tokens).ok());
}

TEST(RowTrafficOf, RejectsTableWithoutRows) {
  v1::Description scalar = DescriptionOfRows(0);
  scalar.mutable_ready()->mutable_table()->mutable_tensors(0)->clear_shape();
  EXPECT_THAT(std::string(RowTrafficOf(Job(), scalar).status().message()),
              HasSubstr("has no rows"));
}

TEST(RowTrafficOf, RejectsMoreRowsThanTheTableHas) {
  for (double named : {1e9, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    v1::Description many = DescriptionOfRows(0);
    many.mutable_row_tables(0)->set_rows(0, named);
    EXPECT_FALSE(RowTrafficOf(Job(), many).ok()) << named;
  }
}

}  // namespace
}  // namespace sluice::cli
