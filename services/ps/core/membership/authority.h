#ifndef SLUICE_SERVICES_PS_CORE_MEMBERSHIP_AUTHORITY_H_
#define SLUICE_SERVICES_PS_CORE_MEMBERSHIP_AUTHORITY_H_

#include <cstdint>

#include "proto/common.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// Which coordinators a shard obeys (R1): those of the highest attempt and term that it knows. It
// outlives attempts.
class Authority {
 public:
  // Both must outlive it.
  Authority(const ShardState* state, Outbox* out) : state_(*state), out_(*out) {}

  // Whether a coordinator's message is accepted: a coordinator of an older attempt or term is
  // dropped.
  bool IsCurrent(uint64_t attempt, const v1::Term& term);
  // The same, and the shard adopts an attempt and term that are not older.
  bool Accept(uint64_t attempt, const v1::Term& term);
  // The highest attempt and term that were adopted, with number 0; attempt 0: none.
  v1::ViewId Obeyed() const;

 private:
  bool IsOlder(uint64_t attempt, const v1::Term& term) const;

  const ShardState& state_;
  Outbox& out_;
  // In the order in which they are compared.
  uint64_t attempt_ = 0;
  v1::Term term_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_MEMBERSHIP_AUTHORITY_H_
