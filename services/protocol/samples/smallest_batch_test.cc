#include "services/protocol/samples/smallest_batch.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class SmallestBatchTest : public ::testing::Test {
 protected:
  SmallestBatchTest() {
    job_.mutable_training()->set_mode(v1::SYNCHRONOUS);
    job_.mutable_training()->set_epochs(2);
    job_.mutable_training()->set_global_batch_size(64);
    job_.mutable_training()->set_microbatch_size(4);
    ready_.set_smallest_batch(2);
    ready_.set_smallest_batch_module("bn1");
  }

  // The error for data of this size; empty: none.
  std::string Check(uint64_t samples) {
    ready_.set_training_samples(samples);
    return std::string(CheckSmallestBatch(job_, ready_).message());
  }

  v1::JobSpec job_;
  v1::Ready ready_;
};

TEST_F(SmallestBatchTest, NamesModuleAndStepAndRemedyOfASingleSampleThatRemains) {
  EXPECT_EQ(Check(65),
            "the model cannot be trained on fewer than 2 samples at once, because of its module "
            "'bn1', and step 1, the last of each epoch, would have 1 sample (65 samples, "
            "globalBatchSize 64): set training.lastBatch: Drop, or another "
            "training.globalBatchSize");
  EXPECT_EQ(Check(64), "");
  EXPECT_EQ(Check(66), "");
  EXPECT_EQ(Check(97), "") << "no worker gets a single one of 33 samples";
}

TEST_F(SmallestBatchTest, LastBatchThatIsDroppedDoesNotMatter) {
  job_.mutable_training()->set_last_batch(v1::TrainingSpec::DROP);
  EXPECT_EQ(Check(65), "");
  EXPECT_THAT(Check(63), HasSubstr("training.lastBatch is Drop"));
}

TEST_F(SmallestBatchTest, StepThatTheJobDoesNotReachDoesNotMatter) {
  job_.mutable_training()->clear_epochs();
  job_.mutable_training()->set_steps(1);
  EXPECT_EQ(Check(65), "");
  job_.mutable_training()->set_steps(2);
  EXPECT_THAT(Check(65), HasSubstr("step 1"));
}

TEST_F(SmallestBatchTest, ModelWithoutSuchAModuleTakesAnyNumber) {
  ready_.set_smallest_batch(1);
  EXPECT_EQ(Check(65), "");
  ready_.clear_smallest_batch();
  EXPECT_EQ(Check(65), "");
}

TEST_F(SmallestBatchTest, BatchOfOneIsRefused) {
  job_.mutable_training()->set_global_batch_size(1);
  job_.mutable_training()->set_microbatch_size(1);
  EXPECT_THAT(Check(65), HasSubstr("each step would have 1 sample (65 samples, globalBatchSize 1): "
                                   "set training.globalBatchSize to at least 2"));
}

TEST_F(SmallestBatchTest, OneSampleInAllIsRefused) {
  EXPECT_THAT(Check(1), HasSubstr("would have 1 sample (1 sample, globalBatchSize 64)"));
}

TEST_F(SmallestBatchTest, BitExactComputesEachMicrobatchByItself) {
  job_.mutable_training()->set_bit_exact(true);
  EXPECT_EQ(Check(98), "");
  EXPECT_THAT(Check(97),
              HasSubstr("with `determinism: BitExact`, which computes each microbatch by "
                        "itself, the last microbatch of step 1, the last of each epoch, "
                        "would have 1 sample: set training.lastBatch: Drop, or another "
                        "training.globalBatchSize or training.microbatchSize"));
  job_.mutable_training()->set_microbatch_size(1);
  EXPECT_THAT(Check(64), HasSubstr("each microbatch of each step would have 1 sample: set "
                                   "training.microbatchSize to at least 2"));
}

TEST_F(SmallestBatchTest, ProgramsComputeTheMeansThatAreSummedOneByOne) {
  job_.mutable_training()->set_aggregation(v1::TrainingSpec::SUM);
  EXPECT_EQ(Check(97), "");
  job_.mutable_model()->set_type(v1::ModelSpec::CUSTOM);
  EXPECT_THAT(Check(97), HasSubstr("with `aggregation: Sum`"));
}

TEST_F(SmallestBatchTest, AsynchronousUpdatesAreJoined) {
  job_.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  EXPECT_EQ(Check(65), "");
}

}  // namespace
}  // namespace sluice
