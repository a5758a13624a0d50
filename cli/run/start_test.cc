#include "cli/run/start.h"

#include <optional>
#include <ostream>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::cli {

void PrintTo(const std::optional<Start>& start, std::ostream* out) {
  constexpr const char* kNames[] = {"First", "Resume", "Another", "Over", "Finished"};
  *out << (start.has_value() ? kNames[static_cast<int>(*start)] : "refused");
}

namespace {

using Kind = ExistingJob::Kind;

StartFacts Recorded() {
  StartFacts facts;
  facts.recorded = true;
  return facts;
}

StartFacts Trained() {
  StartFacts facts = Recorded();
  facts.trained = true;
  return facts;
}

StartFacts Finished() {
  StartFacts facts = Trained();
  facts.finished = true;
  return facts;
}

StartFacts With(StartFacts facts, std::vector<bool StartFacts::*> set,
                std::optional<Kind> existing = std::nullopt) {
  for (bool StartFacts::*fact : set) facts.*fact = true;
  facts.existing = existing;
  return facts;
}

constexpr auto kFixed = &StartFacts::fixed_changed;
constexpr auto kLength = &StartFacts::length_changed;
constexpr auto kTakes = &StartFacts::takes_existing;

TEST(StartTest, IsDecidedFromFacts) {
  const struct {
    const char* what;
    StartFacts facts;
    std::optional<Start> start;
  } kCases[] = {
      {"nothing", {}, Start::kFirst},
      {"untrained, same manifest", Recorded(), Start::kResume},
      {"untrained, another length", With(Recorded(), {kLength}), Start::kResume},
      {"untrained, another model", With(Recorded(), {kFixed}), Start::kOver},
      {"untrained, another model and Resume", With(Recorded(), {kFixed, kTakes}), Start::kOver},

      {"trained, same manifest", Trained(), Start::kResume},
      {"trained, another length", With(Trained(), {kLength}), Start::kResume},
      {"trained, same manifest and Replace", With(Trained(), {kTakes}), Start::kResume},
      {"trained, another model", With(Trained(), {kFixed}), std::nullopt},
      {"trained, another model and length", With(Trained(), {kFixed, kLength}), std::nullopt},
      {"trained, another model and Replace", With(Trained(), {kFixed, kTakes}), Start::kAnother},
      {"... which replaces", With(Trained(), {kFixed, kTakes}, Kind::kReplace), Start::kAnother},
      // Its own record of its end is missing: it does not know its result.
      {"... a finished job", With(Trained(), {kFixed, kTakes}, Kind::kFinished), Start::kAnother},

      {"finished, same manifest", Finished(), Start::kFinished},
      {"finished, same manifest and Replace", With(Finished(), {kTakes}), Start::kFinished},
      {"finished, another length", With(Finished(), {kLength}), Start::kAnother},
      {"... and continues", With(Finished(), {kLength}, Kind::kResume), Start::kAnother},
      {"... and is shorter", With(Finished(), {kLength}, Kind::kFinished), Start::kFinished},
      {"finished, another model", With(Finished(), {kFixed}), std::nullopt},
      {"finished, another model and length", With(Finished(), {kFixed, kLength}), std::nullopt},
      {"finished, another model and Replace", With(Finished(), {kFixed, kTakes}), Start::kAnother},
      {"... which replaces", With(Finished(), {kFixed, kTakes}, Kind::kReplace), Start::kAnother},
      {"... which asks for no more", With(Finished(), {kFixed, kTakes}, Kind::kFinished),
       Start::kFinished},
  };
  for (const auto& each : kCases) {
    EXPECT_EQ(DecideStart(each.facts), each.start) << each.what;
  }
}

// --fresh counts above everything that the directory has.
TEST(StartTest, FreshIsAlwaysFirst) {
  for (const StartFacts& facts : {StartFacts(), Recorded(), Trained(), Finished()}) {
    for (const std::vector<bool StartFacts::*>& set :
         {std::vector<bool StartFacts::*>{}, {kFixed}, {kLength}, {kFixed, kLength, kTakes}}) {
      StartFacts fresh = With(facts, set);
      fresh.fresh = true;
      EXPECT_EQ(DecideStart(fresh), Start::kFirst);
    }
  }
}

}  // namespace
}  // namespace sluice::cli
