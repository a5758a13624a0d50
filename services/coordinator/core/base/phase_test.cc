#include "services/coordinator/core/base/phase.h"

#include <cstddef>
#include <iterator>

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

constexpr Phase kPhases[] = {Phase::kReading,        Phase::kGathering,     Phase::kTakingOver,
                             Phase::kClaiming,       Phase::kPreparing,     Phase::kRunning,
                             Phase::kLeavingWorkers, Phase::kLeavingShards, Phase::kExited};

TEST(PhaseTest, AnAttemptBeginsInOrder) {
  const Phase order[] = {Phase::kReading,   Phase::kGathering, Phase::kClaiming,
                         Phase::kGathering, Phase::kPreparing, Phase::kRunning};
  for (size_t i = 1; i < std::size(order); ++i) EXPECT_TRUE(IsLegalMove(order[i - 1], order[i]));
  EXPECT_FALSE(IsLegalMove(Phase::kReading, Phase::kClaiming));
  EXPECT_FALSE(IsLegalMove(Phase::kClaiming, Phase::kPreparing));
  EXPECT_FALSE(IsLegalMove(Phase::kGathering, Phase::kRunning));
}

TEST(PhaseTest, AnAttemptIsTakenOverOrTheNextOneBegins) {
  EXPECT_TRUE(IsLegalMove(Phase::kGathering, Phase::kTakingOver));
  EXPECT_TRUE(IsLegalMove(Phase::kTakingOver, Phase::kRunning));
  EXPECT_TRUE(IsLegalMove(Phase::kTakingOver, Phase::kReading));
  EXPECT_FALSE(IsLegalMove(Phase::kTakingOver, Phase::kClaiming)) << "the storage is read first";
  EXPECT_FALSE(IsLegalMove(Phase::kRunning, Phase::kTakingOver));
}

TEST(PhaseTest, AJobThatIsEndingNeverTrainsAgain) {
  for (Phase from : {Phase::kLeavingWorkers, Phase::kLeavingShards, Phase::kExited}) {
    for (Phase to : {Phase::kReading, Phase::kGathering, Phase::kClaiming, Phase::kPreparing,
                     Phase::kRunning, Phase::kLeavingWorkers}) {
      EXPECT_FALSE(IsLegalMove(from, to));
    }
  }
  EXPECT_TRUE(IsLegalMove(Phase::kLeavingWorkers, Phase::kLeavingShards));
}

TEST(PhaseTest, AnotherCoordinatorMayTakeOverInEveryPhase) {
  for (Phase from : kPhases) {
    EXPECT_EQ(IsLegalMove(from, Phase::kExited), from != Phase::kExited);
  }
}

TEST(PhaseTest, OnlyPreparingMayBeginAgain) {
  for (Phase phase : kPhases) EXPECT_EQ(IsLegalMove(phase, phase), phase == Phase::kPreparing);
}

}  // namespace
}  // namespace sluice::coordinator
