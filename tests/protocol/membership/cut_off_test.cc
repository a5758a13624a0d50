#include "tests/protocol/membership/cut_off.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

TEST(CutOffTest, Holds) { ExpectHolds(CutOff(CutOff::Options()), 162'190); }

TEST(CutOffTest, CoordinatorThatTrustsItsOwnNetworkExpelsAllProcesses) {
  CutOff::Options options;
  options.suspects_itself = false;
  ExpectViolation(CutOff(options), "a living process is expelled", 4);
}

TEST(CutOffTest, CoordinatorThatCountsTheCutExpelsTheSecondProcessItHears) {
  CutOff::Options options;
  options.forgives = false;
  ExpectViolation(CutOff(options), "a living process is expelled", 6);
}

TEST(CutOffTest, WithoutTheParentProcessesThatFreezeTogetherStay) {
  CutOff::Options options;
  options.trusts_calls = false;
  ExpectViolation(CutOff(options), "the job can no longer be done", 2);
}

TEST(CutOffTest, CallsAfterALongCutSayNothingAboutTheTimeBefore) {
  CutOff::Options options;
  options.restarts_calls = false;
  ExpectViolation(CutOff(options), "a living process is expelled", 17);
}

}  // namespace
}  // namespace sluice::protocol_models
