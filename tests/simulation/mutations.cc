#include "tests/simulation/mutations.h"

#include "absl/strings/str_cat.h"

namespace sluice::simulation {
namespace {

// Applies the rules of a role without one of them.
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

// ---- faults that become more likely

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
void RunTwoCoordinators(Scenario& scenario) {
  scenario.faults = 10;
  scenario.two_coordinators = 30;
  scenario.kill_worker = 20;
}
// The worker that pushes version 0 is slow, so the coordinator asks another worker.
void DelayInitialization(Scenario& scenario) {
  scenario.faults = 10;
  scenario.fault_spacing = 20;
  scenario.freeze_worker = 60;
  scenario.kill_shard = 10;
  scenario.job.mutable_timeouts()->set_initialization(0.01);
  scenario.job.mutable_checkpoint()->set_interval_steps(0);
}
void ComeAndGo(Scenario& scenario) {
  scenario.faults = 10;
  scenario.leave = 20;
  scenario.join = 20;
  scenario.kill_worker = 20;
}

void KillShards(Scenario& scenario) {
  scenario.faults = 8;
  scenario.kill_shard = 30;
}

void ScaleShards(Scenario& scenario) {
  scenario.faults = 6;
  scenario.fault_spacing = 4;
  scenario.scale_shards = 10;
  scenario.kill_shard = 10;
}

void AddLiars(Scenario& scenario) {
  scenario.liars = 1;
  scenario.workers = 4;
  scenario.job.mutable_worker()->set_replicas(4);
}

void CutCoordinatorsOff(Scenario& scenario) {
  scenario.faults = 8;
  scenario.kill_worker = scenario.freeze_worker = scenario.cut_stream = scenario.cut_process = 0;
  scenario.kill_shard = scenario.freeze_shard = 0;
  scenario.kill_coordinator = scenario.freeze_coordinator = scenario.replace_coordinator = 0;
  scenario.cut_coordinator = 10;
}

// No view changes, which would repair what a broken rule forgets.
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
const ScenarioOptions kSync = {v1::SYNCHRONOUS, false, false, false, false,
                               false,           false, false, true};
const ScenarioOptions kBitExact = {v1::SYNCHRONOUS, true};
const ScenarioOptions kCopies = {v1::SYNCHRONOUS, false, false, false, false, false, true};
const ScenarioOptions kCopiesAsynchronous = {
    v1::ASYNCHRONOUS, false, false, false, false, false, true};
const ScenarioOptions kAsynchronous = {v1::ASYNCHRONOUS, false};
const ScenarioOptions kBounded = {v1::BOUNDED_STALENESS, false};

// Some rules have no mutation because their violation cannot show in a simulated job. Each of them
// has a unit test that fails without the rule. rules_test.py checks that every rule has either a
// mutation or a unit test.
//
// An attempt has one coordinator, and a shard has one stream to it, which delivers in order. So an
// Install always answers the last Pause that the shard has replied to: the coordinator sends the
// Install before the next Pause, and after a broken stream only the one that is current.
//   ShardRules::FenceInstalls: ViewsTest.LaterPauseIsAnsweredAgainAndOnlyItsInstallCounts
//
// A pin that outlives a rollback costs memory for one version of a partition until the partition
// closes the step again, which replaces the pin. A snapshot is reported and written only after its
// version is committed, that is, after every partition has closed the step again. No message and no
// file shows that the shard kept the block.
//   ShardRules::DropPinsAtRollBack:
//     SnapshotsTest.RollbackReleasesPinnedVersion
//
// A version that a worker has pulled whole is never rolled back, so it is the same in each later
// view. A version that a worker has pulled in part may be rolled back, but only if a step closes
// without this worker (stragglers dropped), in a view that the worker learned of neither from the
// coordinator nor from any shard, and the next view begins with this step. In that case the members
// close the next step before the worker has pulled the rest, and the worker skips to that step.
//   WorkerRules::DropAllIfSkipped: SynchronousTest.WorkerThatSkippedViewDropsEverything
//
// Two halves of a split cluster continue only if each has a coordinator, a whole copy of every
// partition and all members; in the simulator a member is connected to one coordinator.
//   CoordinatorRules::RecordLosses: LossRecords.AreDurableBeforeTheInstall
//
// An update that is answered before the copies have it is lost if its owner owns all partitions and
// dies in that moment. No sample is lost with it: its lease is given again.
//   ShardRules::AnswerAfterCopies:
//     AsynchronousCopiesTest.ApplyIsAnsweredOnceTheCopyHasAppliedTheUpdate
//
// A shard reports only whole copies, and such a copy can return to the first step of the next view,
// unless views and deaths follow each other in an order that the simulator rarely makes.
//   CoordinatorRules::KeepOnlyWholeCopies:
//     DecideWithCopies.CopyWithoutTheFirstStepIsNotKept
std::vector<Mutation> MakeMutations() {
  return {
      // Shards.
      {"PartitionsChooseParticipantsIndependently",
       {kStragglers},
       SLUICE_WITHOUT(ShardRules, AgreeOnSet)},
      {"ShardBreaksItsPromise",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(ShardRules, KeepPromise), KillWorkers)},
      {"ShardIgnoresNowDuringAfterStep",
       {kSynchronous},
       Both(SLUICE_WITHOUT(ShardRules, NowOverrides), ComeAndGo)},
      {"ShardAcceptsMessagesOfOlderViews",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(ShardRules, RefuseOlderViews), KillWorkers)},
      {"RepeatedBlocksCountAgain",
       {kSynchronous},
       Both(SLUICE_WITHOUT(ShardRules, IgnoreRepeatedBlocks), CutStreams)},
      {"StepsCloseByCount",
       {kSynchronous},
       Both(SLUICE_WITHOUT(ShardRules, CloseBySet), CutStreams)},
      {"AccumulatorsSurviveAnInstall",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(ShardRules, DropAccumulators), KillWorkers)},
      {"ShardIgnoresWeights",
       {kSynchronous, kAsynchronous, kBitExact, kBounded},
       SLUICE_WITHOUT(ShardRules, CountWeights)},
      {"NoUndo", {kSynchronous}, Both(SLUICE_WITHOUT(ShardRules, KeepUndo), KillWorkers)},
      {"OneMemberCommits",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(ShardRules, AwaitEveryHolder), AddLiars)},
      {"AppliedClocksAreAppliedAgain",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(ShardRules, IgnoreAppliedClocks), CutStreams)},
      {"StagedUpdatesSurviveAnInstall",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(ShardRules, DropStaged), KillWorkers)},
      {"WinnersAreNotApplied",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(ShardRules, ApplyWinners), KillWorkers)},
      {"LeasesAreNotRepeated",
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
      {"InitIdsAreNotCompared",
       {kSynchronous},
       Both(SLUICE_WITHOUT(ShardRules, CheckInitId), FreezeWorkers)},
      {"ShardObeysOlderCoordinators",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(ShardRules, FenceTerms), RunTwoCoordinators)},
      {"AfterStepStopsWithTheFirstPartition",
       {kSynchronous},
       Both(SLUICE_WITHOUT(ShardRules, WaitForEveryPartition), ComeAndGo)},
      {"StepsCloseWithoutTheirCopies",
       {kCopies},
       Both(SLUICE_WITHOUT(ShardRules, AwaitCopies), KillShards)},
      {"AfterStepIgnoresCopies",
       {kCopies},
       Both(SLUICE_WITHOUT(ShardRules, WaitForCopies), ComeAndGo)},
      {"UpdatesAreAckedWithoutTheirCopies",
       {kCopiesAsynchronous},
       Both(SLUICE_WITHOUT(ShardRules, AwaitCopies), KillShards)},
      {"NewCopiesLackWhatIsStaged",
       {kCopiesAsynchronous},
       Both(SLUICE_WITHOUT(ShardRules, SendStagedToNewCopies), KillShards)},
      {"LeasesAreGivenWithoutTheirCopies",
       {kCopiesAsynchronous},
       Both(SLUICE_WITHOUT(ShardRules, RecordLeasesAtCopies), KillShards)},
      // Coordinators.
      {"TermsAreNotRaised",
       {kSynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, TakeHigherTerm), ReplaceCoordinators)},
      {"RepliesToOtherPausesCount",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, MatchReplies), ComeAndGo)},
      {"ExpelledWorkersAreAdmitted",
       {kSynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, RefuseExpelled), FreezeWorkers)},
      {"StateReadyCountsForOtherInitIds",
       {kSynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, MatchInitIds), DelayInitialization)},
      {"IncompleteSnapshotsAreKept",
       {kBitExact, kSynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, AbandonIncompleteSnapshots), ComeAndGo)},
      {"CoordinatorWaitsForAfterStep",
       {kSynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, NowOverrides), ComeAndGo)},
      {"ViewsBeginAtTheHighestVersion",
       {kSynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, RollBackToLowest), KillWorkers)},
      {"LeasesKeepAppliedSamples",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(CoordinatorRules, KeepLeases), KillWorkers)},
      {"AttemptsAreNotClaimed",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, ClaimAttempts), ReplaceCoordinators)},
      {"EndIsNotClaimed",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, ClaimTheEnd), ReplaceCoordinators)},
      {"InstallsNameNoSnapshot",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, CarrySnapshots), ComeAndGo)},
      {"CoordinatorTrustsItsOwnNetwork",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, SuspectItself), CutCoordinatorsOff)},
      {"OlderRequestsOfTheParentCount",
       {kSynchronous},
       Both(SLUICE_WITHOUT(CoordinatorRules, IgnoreOlderRequests), ScaleShards)},
      {"EvaluationsAreWeighedBySamples",
       {kSynchronous},
       SLUICE_WITHOUT(CoordinatorRules, WeighEvaluations)},
      {"LastVersionIsNotCommitted",
       {kSynchronous},
       SLUICE_WITHOUT(CoordinatorRules, SendCommitted)},
      // Workers.
      {"WorkerAcceptsOlderViews",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(WorkerRules, CompareViews), ComeAndGo)},
      {"WorkerKeepsVersionsOfOlderViews",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, DropOlderVersions), KillWorkers)},
      {"WorkerAcceptsDataOfOlderViews",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, IgnoreDataOfOtherViews), KillWorkers)},
      {"OldGradientsOverlap",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, UseOnlyContainedGradients), ComeAndGo)},
      {"TreeRootsOverlap",
       {kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, UseOnlyContainedGradients), ComeAndGo)},
      {"WorkerKeepsGradientsOfOldSums",
       {kSync},
       Both(SLUICE_WITHOUT(WorkerRules, DropGradientsOfOldSums), KillWorkers)},
      {"WorkerForgetsItsGradient",
       {kSynchronous, kBitExact},
       Both(SLUICE_WITHOUT(WorkerRules, KeepGradient), CutStreams)},
      {"WorkerResendsNothing",
       {kSynchronous, kAsynchronous},
       Both(SLUICE_WITHOUT(WorkerRules, SendAgainAfterReconnect), CutStreams)},
      {"LastPushOmitsPartition", {kSynchronous}, SLUICE_WITHOUT(WorkerRules, NameEveryPartition)},
      {"WorkerSendsNoWeight",
       {kSynchronous, kAsynchronous, kBitExact, kBounded},
       SLUICE_WITHOUT(WorkerRules, SendWeights)},
      {"ApplyBeforeAllHaveStaged",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(WorkerRules, AwaitAllStaged), KillWorkers)},
      {"WorkerForgetsItsUpdate",
       {kAsynchronous, kBounded},
       Both(SLUICE_WITHOUT(WorkerRules, KeepUpdate), ComeAndGo)},
      {"UpdatesArePushedWithoutPermit", {kAsynchronous}, SLUICE_WITHOUT(WorkerRules, AwaitPermit)},
      {"WorkerPullsFromAllShardsAtOnce",
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
