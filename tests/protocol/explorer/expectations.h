// Expectations for a search, in the tests of the models.
#ifndef SLUICE_TESTS_PROTOCOL_EXPLORER_EXPECTATIONS_H_
#define SLUICE_TESTS_PROTOCOL_EXPLORER_EXPECTATIONS_H_

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/protocol/explorer/explorer.h"

namespace sluice::protocol_models {

inline std::string Describe(const Exploration& found) {
  return absl::StrCat("after ", found.trace.size(), " steps:\n  ",
                      absl::StrJoin(found.trace, "\n  "));
}

// The model holds, and has this many states: a change of a model that makes states unreachable
// would go unnoticed otherwise.
template <typename Model>
void ExpectHolds(const Model& model, size_t states,
                 Progress progress = Progress::kDoneStaysReachable) {
  Exploration found = Explore(model, progress);
  EXPECT_EQ(found.violation, "") << Describe(found);
  EXPECT_EQ(found.states, states);
}

// The search finds this violation, and its shortest trace has this many steps.
template <typename Model>
void ExpectViolation(const Model& model, std::string_view violation, size_t steps,
                     Progress progress = Progress::kDoneStaysReachable) {
  Exploration found = Explore(model, progress);
  EXPECT_EQ(found.violation, violation) << Describe(found);
  EXPECT_EQ(found.trace.size(), steps) << Describe(found);
}

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_EXPLORER_EXPECTATIONS_H_
