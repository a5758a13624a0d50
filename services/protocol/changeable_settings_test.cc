#include "services/protocol/changeable_settings.h"

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(ChangeableSettings, AreTheRatesDecaysAndSchedulesOfTheOptimizerAndItsGroups) {
  for (const char* path :
       {"spec.optimizer.learningRate", "spec.optimizer.schedule", "spec.optimizer.schedule.gamma",
        "spec.optimizer.schedule.milestones[]", "spec.optimizer.groups[].weightDecay",
        "spec.optimizer.groups[12].schedule.type", "spec.optimizer.plateau.factor"}) {
    EXPECT_TRUE(IsChangeableSetting(path)) << path;
  }
  for (const char* path :
       {"spec.optimizer", "spec.optimizer.name", "spec.optimizer.betas", "spec.optimizer.groups",
        "spec.optimizer.groups[]", "spec.optimizer.groups[0].patterns[1]",
        "spec.optimizer.groups[0", "spec.optimizer.learningRateOfAnother",
        "spec.training.learningRate", "learningRate", ""}) {
    EXPECT_FALSE(IsChangeableSetting(path)) << path;
  }
}

TEST(ChangeableSettings, ModelAndKindOfOptimizerShapeTheCheckpoint) {
  for (const char* path : {"spec.model.name", "spec.optimizer.name", "spec.optimizer.momentum",
                           "spec.optimizer.groups", "spec.optimizer.groups[1].momentum"}) {
    EXPECT_TRUE(ShapesCheckpoint(path)) << path;
  }
  for (const char* path : {"spec.optimizer.betas", "spec.optimizer.eps", "spec.loss",
                           "spec.training.seed", "spec.training.globalBatchSize"}) {
    EXPECT_FALSE(ShapesCheckpoint(path)) << path;
  }
}

}  // namespace
}  // namespace sluice
