#include "services/manifest/suggest.h"

#include <gtest/gtest.h>

namespace sluice::api {
namespace {

TEST(Suggest, FindsTheClosestName) {
  EXPECT_EQ(ClosestName("stpes", {"epochs", "steps", "seed"}), 1);
  EXPECT_EQ(ClosestName("replica", {"partitions", "replicas"}), 1);
}

TEST(Suggest, IgnoresCaseAndSeparators) {
  EXPECT_EQ(ClosestName("global_batch_size", {"microbatchSize", "globalBatchSize"}), 1);
  EXPECT_EQ(ClosestName("ADAM-W", {"Adam", "AdamW"}), 1);
}

TEST(Suggest, FindsNothingForANameUnlikeAllOthers) {
  EXPECT_EQ(ClosestName("resnet50", {"convnet", "mlp"}), -1);
  EXPECT_EQ(ClosestName("x", {"lr"}), -1);
  EXPECT_EQ(ClosestName("", {"lr"}), -1);
  EXPECT_EQ(ClosestName(std::string(10000, 'a'), {"a"}), -1);
}

}  // namespace
}  // namespace sluice::api
