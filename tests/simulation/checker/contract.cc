#include "tests/simulation/checker/contract.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/protocol/ids.h"

namespace sluice::simulation {

// ---- messages of coordinators

void Contract::OnCoordinatorSays(const v1::CoordinatorMessage& message) {
  if (message.has_prepare_state())
    prepares_[message.prepare_state().init_id().attempt()] = message.prepare_state();
  if (message.has_pause()) OnPause(message.pause());
  if (message.has_install()) OnInstall(message.install());
  if (message.has_barrier())
    barriers_[Order(message.barrier().view())].insert(message.barrier().version());
}

void Contract::OnPause(const v1::Pause& pause) {
  const uint64_t attempt = pause.id().attempt();
  pauses_[Order(pause.id())] = pause;
  const auto prepare = prepares_.find(attempt);
  const auto view = coordinators_.lower_bound({attempt, 0});
  const bool has_view = view != coordinators_.end() && view->first.first == attempt;
  if (has_view || prepare == prepares_.end()) return;
  const std::set<uint64_t>& ready = ready_[Order(prepare->second.init_id())];
  for (const v1::View::Shard& shard : prepare->second.shards()) {
    if (ready.count(shard.process().incarnation()) > 0) continue;
    checker_.Fail(absl::StrCat("the first Pause of attempt ", attempt, " is sent before ",
                               shard.address(), " has sent StateReady (R12)"));
  }
}

void Contract::OnInstall(const v1::Install& install) {
  const v1::View& view = install.view();
  CheckTerm(view.id());
  barriers_[Order(view.id())].insert(install.barrier());
  const std::set<uint64_t>& replied = replied_[Order(install.pause())];
  const std::set<uint64_t>& pinned =
      pinned_[{view.id().attempt(), install.snapshot().snapshot_id()}];

  const bool late = view.mode() == v1::SYNCHRONOUS && install.snapshot().snapshot_id() != 0 &&
                    install.snapshot().step() < view.first_step();

  for (int position = 0; position < view.shards_size(); ++position) {
    const v1::View::Shard& shard = view.shards(position);
    const uint64_t incarnation = shard.process().incarnation();
    // A shard without blocks has nothing to pin. One that joins has not reported that yet, and may
    // already own empty partitions.
    bool owns = false;
    for (int p = 0; p < view.owner_size(); ++p) {
      owns = owns || (view.owner(p) == static_cast<uint32_t>(position) &&
                      !checker_.IsEmpty(static_cast<uint32_t>(p)));
    }
    if (replied.count(incarnation) == 0) {
      checker_.Fail(absl::StrCat("the Install of view ", ShortName(view.id()), " is sent before ",
                                 shard.address(), " has answered the Pause (R1)"));
    }
    if (late && owns && pinned.count(incarnation) == 0) {
      checker_.Fail(absl::StrCat("view ", ShortName(view.id()), ", which begins at step ",
                                 view.first_step(), ", names the snapshot of step ",
                                 install.snapshot().step(), ", which ", shard.address(),
                                 " has not pinned (R14)"));
    }
  }
}

void Contract::CheckTerm(const v1::ViewId& view) {
  const v1::Term& term = view.term();
  const uint64_t first =
      coordinators_.try_emplace({view.attempt(), term.counter()}, term.coordinator()).first->second;
  if (first == term.coordinator()) return;
  checker_.Fail(absl::StrCat("two coordinators make views of attempt ", view.attempt(),
                             " with term ", term.counter(), " (R1)"));
}

// ---- messages to and from shards

bool Contract::IsOlder(const Shard& shard, uint64_t attempt, const v1::Term& term) {
  if (attempt != shard.attempt) return attempt < shard.attempt;
  if (term.counter() != shard.term.counter()) return term.counter() < shard.term.counter();
  return shard.term.counter() > 0 && term.coordinator() != shard.term.coordinator();
}

void Contract::NoteSender(Shard* shard, uint64_t attempt, const v1::Term& term) {
  shard->drops = IsOlder(*shard, attempt, term);
  if (shard->drops) return;
  shard->attempt = attempt;
  shard->term = term;
}

void Contract::OnShardReceives(uint64_t shard, const v1::CoordinatorMessage& message) {
  Shard& state = shards_[shard];
  if (message.has_registered()) {
    // The attempt may still be that of an older coordinator.
    state.drops = IsOlder(state, message.registered().attempt(), message.registered().term());
  } else if (message.has_prepare_state()) {
    NoteSender(&state, message.prepare_state().init_id().attempt(),
               message.prepare_state().init_id().term());
    state.promised = false;
  } else if (message.has_pause()) {
    NoteSender(&state, message.pause().id().attempt(), message.pause().id().term());
  } else if (message.has_install()) {
    NoteSender(&state, message.install().view().id().attempt(),
               message.install().view().id().term());
    state.promised = false;
  }
}

void Contract::OnShardSays(uint64_t shard, const v1::MemberMessage& message) {
  Shard& state = shards_[shard];
  if (message.has_register_()) {
    state.drops = false;
  } else if (state.drops) {
    checker_.Fail(
        absl::StrCat("shard ", shard % 1000,
                     " sends a message to a coordinator that is older than that of attempt ",
                     state.attempt, ", term ", state.term.counter(), " (R1)"));
  }

  if (message.has_pause_reply()) OnReply(shard, message.pause_reply());
  if (message.has_state_ready() && message.state_ready().error().empty()) {
    ready_[Order(message.state_ready().init_id())].insert(shard);
  }
  if (message.has_snapshot_pinned()) {
    pinned_[{message.snapshot_pinned().view().attempt(), message.snapshot_pinned().snapshot_id()}]
        .insert(shard);
  }
  if (message.has_snapshot_written()) {
    pinned_[{message.snapshot_written().view().attempt(), message.snapshot_written().snapshot_id()}]
        .insert(shard);
  }
}

void Contract::OnReply(uint64_t shard, const v1::PauseReply& reply) {
  Shard& state = shards_[shard];
  const v1::PauseId& id = reply.pause();
  replied_[Order(id)].insert(shard);
  const auto pause = pauses_.find(Order(id));
  if (pause != pauses_.end() && !state.promised) CheckAfterStep(pause->second, reply);
  state.promised = true;
}

void Contract::CheckAfterStep(const v1::Pause& pause, const v1::PauseReply& reply) {
  if (pause.now() || reply.partitions_size() == 0 || reply.newest().mode() != v1::SYNCHRONOUS) {
    return;
  }
  const auto lowest =
      std::min_element(reply.partitions().begin(), reply.partitions().end(),
                       [](const auto& a, const auto& b) { return a.version() < b.version(); });
  const bool held = barriers_[Order(reply.view())].count(lowest->version()) > 0;
  if (lowest->version() > pause.after_step() || held) return;
  checker_.Fail(absl::StrCat("a shard answers AfterStep ", pause.after_step(),
                             " while its partition ", lowest->partition(), " is at version ",
                             lowest->version(), " (R5)"));
}

}  // namespace sluice::simulation
