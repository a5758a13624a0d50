#include "services/ps/core/membership/authority.h"

#include "absl/strings/str_cat.h"

namespace sluice::ps {

bool Authority::IsOlder(uint64_t attempt, const v1::Term& term) const {
  const v1::Term& known = term_;
  if (attempt != attempt_) return attempt < attempt_;
  if (term.counter() != known.counter()) return term.counter() < known.counter();
  return known.counter() > 0 && term.coordinator() != known.coordinator();
}

bool Authority::IsCurrent(uint64_t attempt, const v1::Term& term) {
  if (!IsOlder(attempt, term) || !state_.rules().FenceTerms()) return true;
  out_.Add(DropCoordinator{absl::StrCat("attempt ", attempt, ", term ", term.counter(),
                                        " of this coordinator is over: this shard knows attempt ",
                                        attempt_, ", term ", term_.counter())});
  return false;
}

bool Authority::Accept(uint64_t attempt, const v1::Term& term) {
  if (!IsCurrent(attempt, term)) return false;
  if (!IsOlder(attempt, term)) {
    attempt_ = attempt;
    term_ = term;
  }
  return true;
}

v1::ViewId Authority::Obeyed() const {
  v1::ViewId obeyed;
  obeyed.set_attempt(attempt_);
  *obeyed.mutable_term() = term_;
  return obeyed;
}

}  // namespace sluice::ps
