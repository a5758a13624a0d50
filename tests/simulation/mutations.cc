#include "tests/simulation/mutations.h"

#include "absl/strings/str_cat.h"

namespace sluice::simulation {
namespace {

// Rules of a role of which one is not kept.
#define SLUICE_WITHOUT(Rules, rule)                  \
  [](Scenario& scenario) {                           \
    class Without : public Rules {                   \
      bool rule() const override { return false; }   \
    };                                               \
    static const Without* const rules = new Without; \
    Set(scenario, rules);                            \
  }

void Set(Scenario& scenario, const coordinator::CoordinatorRules* rules) {
  scenario.coordinator_rules = rules;
}
void Set(Scenario& scenario, const ps::ShardRules* rules) { scenario.shard_rules = rules; }
void Set(Scenario& scenario, const worker::WorkerRules* rules) { scenario.worker_rules = rules; }

using coordinator::CoordinatorRules;
using ps::ShardRules;
using worker::WorkerRules;

using Apply = std::function<void(Scenario&)>;

Apply Both(Apply first, Apply second) {
  return [first = std::move(first), second = std::move(second)](Scenario& scenario) {
    first(scenario);
    second(scenario);
  };
}

// ---- what happens more often

void KillWorkers(Scenario& scenario) {
  scenario.faults = 8;
  scenario.kill_worker = 30;
}
void FreezeWorkers(Scenario& scenario) {
  scenario.faults = 8;
  scenario.freeze_worker = 30;
}
void CutStreams(Scenario& scenario) {
  scenario.faults = 12;
  scenario.cut_stream = 40;
}
void ReplaceCoordinators(Scenario& scenario) {
  scenario.faults = 8;
  scenario.kill_coordinator = 10;
  scenario.replace_coordinator = 30;
}
void ComeAndGo(Scenario& scenario) {
  scenario.faults = 10;
  scenario.leave = 20;
  scenario.join = 20;
  scenario.kill_worker = 20;
}

// No view changes: what is forgotten stays forgotten.
void Undisturbed(Scenario& scenario) {
  scenario.faults = 0;
  scenario.workers = 4;
  scenario.job.mutable_worker()->set_replicas(4);
  scenario.job.mutable_training()->set_max_staleness(0);
  scenario.job.mutable_checkpoint()->set_interval_steps(0);
  scenario.job.mutable_data()->mutable_evaluation()->set_interval_steps(0);
}

const ScenarioOptions kSynchronous = {v1::SYNCHRONOUS, false};
const ScenarioOptions kStragglers = {v1::SYNCHRONOUS, false, true};
const ScenarioOptions kBitExact = {v1::SYNCHRONOUS, true};
const ScenarioOptions kAsynchronous = {v1::ASYNCHRONOUS, false};
const ScenarioOptions kBounded = {v1::BOUNDED_STALENESS, false};

// Left out is what cannot show in a simulated job. Each such rule has a unit test that fails
// without it; rules_test.py sees that a rule has the one or the other.
//
// An attempt has one coordinator, which sends a shard one thing after the other:
//   ShardRules::FenceTerms: ViewsTest.ACoordinatorOfALowerTermOrTheSameOneOfAnotherIsDropped
//   ShardRules::FenceInstalls: ViewsTest.ALaterPauseIsAnsweredAnewAndOnlyItsInstallCounts
//   CoordinatorRules::TakeHigherTerm:
//     CoordinatorRestoration.ANewCoordinatorClaimsTheNextAttemptWithAHigherTerm
//   CoordinatorRules::MatchReplies: ViewChange.AReplyCountsOnlyForItsOwnPause
//
// It costs time or memory alone (a step that is made again; a block that is held for longer):
//   ShardRules::WaitForEveryPartition: ViewsTest.AfterStepStopsOnceEveryPartitionIsOnePastTheStep
//   ShardRules::DropPinsAtFallBack:
//     CutsTest.AFallBackLetsGoOfWhatWasPinnedOfTheVersionThatItTakesBack
//
// Another rule makes up for it: the view tells an expelled worker that it is out; a version is the
// same in each view, and its partitions are pulled again (with stragglers dropped, by SkipTo); a
// shard that is whole for another ask refuses the Install; a cut that is never complete makes room
// for the next one that is due; pushes without a permit wait in the shard.
//   CoordinatorRules::RefuseExpelled:
//     CoordinatorViews.AFrozenWorkerIsExpelledAfterItsSilenceAndNeverAdmittedAgain
//   WorkerRules::DropAllIfSkipped: SynchronousTest.WhoSkippedAViewDropsEverything
//   CoordinatorRules::MatchAsks: Birth.WholeCountsForItsOwnAskOnly
//   CoordinatorRules::AbandonIncompleteCuts:
//     CoordinatorCheckpoints.ACutWithAMissingPinIsGivenUpAndALaterStepIsNamed
//   WorkerRules::AwaitPermit: AsynchronousTest.NothingIsPushedBeforeThePermit
std::vector<Mutation> MakeMutations() {
  return {
      // Shards.
      {"EveryPartitionTakesWhoeverIsFirst", {kStragglers}, SLUICE_WITHOUT(ShardRules, AgreeOnSet)},
      {"ShardBreaksItsPromise",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(ShardRules, KeepPromise), KillWorkers)},
      {"ShardLetsAfterStepOverrideNow",
       {kSynchronous},
       Both(SLUICE_WITHOUT(ShardRules, NowOverrides), ComeAndGo)},
      {"ShardTakesMessagesOfOlderViews",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(ShardRules, RefuseOlderViews), KillWorkers)},
      {"RepeatedBlocksCountAgain",
       {kSynchronous},
       Both(SLUICE_WITHOUT(ShardRules, IgnoreRepeatedBlocks), CutStreams)},
      {"ClosesByCount", {kSynchronous}, Both(SLUICE_WITHOUT(ShardRules, CloseBySet), CutStreams)},
      {"AccumulatorsSurviveAnInstall",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(ShardRules, DropAccumulators), KillWorkers)},
      {"NoUndo", {kSynchronous}, Both(SLUICE_WITHOUT(ShardRules, KeepUndo), KillWorkers)},
      {"AppliedClocksAreAppliedAgain",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(ShardRules, IgnoreAppliedClocks), CutStreams)},
      {"StagedUpdatesSurviveAnInstall",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(ShardRules, DropStaged), KillWorkers)},
      {"WinnersAreNotApplied",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(ShardRules, ApplyWinners), KillWorkers)},
      {"LeasesAreNotGivenAgain",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(ShardRules, RepeatLeases), CutStreams)},
      {"ClocksAreNotRaised", {kBounded}, Both(SLUICE_WITHOUT(ShardRules, RaiseClocks), ComeAndGo)},
      {"OtherShardsDoNotWait",
       {kBounded},
       Both(SLUICE_WITHOUT(ShardRules, WaitForCounted), KillWorkers)},
      {"ParkedPullsAreForgotten",
       {kBounded},
       Both(SLUICE_WITHOUT(ShardRules, WakeParkedPulls), Undisturbed)},
      {"UncommittedVersionsAreWritten",
       {kSynchronous},
       Both(SLUICE_WITHOUT(ShardRules, WriteOnlyCommitted), KillWorkers)},
      {"AsksAreNotCompared",
       {kSynchronous},
       Both(SLUICE_WITHOUT(ShardRules, CheckAsk), FreezeWorkers)},
      // Coordinators.
      {"CoordinatorWaitsForAfterStep",
       {kSynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, NowOverrides), ComeAndGo)},
      {"TheHighestVersionWins",
       {kSynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, FallBackToLowest), KillWorkers)},
      {"LeasesKeepWhatWasApplied",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(CoordinatorRules, KeepLeases), KillWorkers)},
      {"AttemptsAreNotClaimed",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, ClaimAttempts), ReplaceCoordinators)},
      {"TheEndIsNotClaimed",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, ClaimTheEnd), ReplaceCoordinators)},
      {"InstallsNameNoCut",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, CarryCuts), ComeAndGo)},
      {"TheLastVersionIsNotCommitted",
       {kSynchronous},
       SLUICE_WITHOUT(CoordinatorRules, TellCommitted)},
      // Workers.
      {"WorkerTakesOlderViews",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(WorkerRules, CompareViews), ComeAndGo)},
      {"WorkerKeepsVersionsOfOlderViews",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, DropOlderVersions), KillWorkers)},
      {"WorkerTakesDataOfOlderViews",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, IgnoreDataOfOtherViews), KillWorkers)},
      {"OldGradientsOverlap",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, UseOnlyContainedGradients), ComeAndGo)},
      {"TreeRootsOverlap",
       {kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, UseOnlyContainedGradients), ComeAndGo)},
      {"WorkerForgetsItsGradient",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, KeepGradient), CutStreams)},
      {"NothingIsSentAgain",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(WorkerRules, SendAgainAfterReconnect), CutStreams)},
      {"APartitionIsNotNamed", {kSynchronous}, SLUICE_WITHOUT(WorkerRules, NameEveryPartition)},
      {"ApplyBeforeAllHaveStaged",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(WorkerRules, AwaitAllStaged), KillWorkers)},
      {"UpdatesAreForgotten",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(WorkerRules, KeepUpdate), ComeAndGo)},
      {"OtherShardsAreAskedAtOnce",
       {kBounded},
       Both(SLUICE_WITHOUT(WorkerRules, AskArbiterFirst), KillWorkers)},
  };
}

}  // namespace

const std::vector<Mutation>& Mutations() {
  static const std::vector<Mutation>* const mutations = new std::vector<Mutation>(MakeMutations());
  return *mutations;
}

std::string Find(const Mutation& mutation, uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    for (const ScenarioOptions& mode : mutation.modes) {
      Scenario scenario = MakeScenario(seed, mode);
      mutation.apply(scenario);
      const Outcome outcome = Cluster(scenario, Cluster::Tracing::kNone).Run();
      if (!outcome.failure.empty()) {
        return absl::StrCat(Describe(scenario), ": ", outcome.failure);
      }
    }
  }
  return "";
}

}  // namespace sluice::simulation
