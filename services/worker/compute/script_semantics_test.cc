// TorchScript modules whose training differs from PyTorch's unless the engine takes care: modes,
// types, losses without a gradient, and buffers whose changes cannot be kept.
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/compute/compute_engine.h"
#include "services/worker/compute/testing/recording_sink.h"
#include "services/worker/compute/testing/script_engines.h"
#include "services/worker/data/batch.h"
#include "services/worker/models/testing/script_files.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(ScriptSemanticsTest, FrozenBatchNormKeepsItsStatisticsAcrossEvaluations) {
  ScriptModule module = NormedModule();
  module.children[0].second.training = false;
  const auto engine = CreateInitialized(Options(Save(module)));
  const Batch batch = Pairs({1, 10, 3, 14, 5, 12, 7, 16}, {0, 0, 0, 0});
  for (int run = 0; run < 2; ++run) {
    RecordingSink sink;
    Gradients(*engine, Request(batch), sink);
    EXPECT_THAT(sink.changes, SizeIs(0));
    EXPECT_TRUE(engine->Evaluate(Buffer::kCurrent, batch).ok());
  }
}

// Rows of a table whose numbers do not exist in bfloat16, the type of the last parameter.
TEST(ScriptSemanticsTest, IndicesAreNotRoundedToTheTypeOfALaterLayer) {
  ScriptModule module;
  module.tensors = {{"table", kParameter, {700, 1}, std::vector<double>(700, 1), ""},
                    {"weight", kParameter, {1, 1}, {1}, "", "bfloat16"}};
  module.source = R"(
def forward(self, x):
    rows = torch.embedding(self.table, x[:, 0:1].long()).sum(1)
    return torch.linear(rows.to(15), self.weight).float()
)";
  const auto engine = CreateInitialized(Options(Save(module)));
  const Batch batch = Pairs({561, 0, 699, 0}, {0, 0});
  EXPECT_THAT(engine->RowsOf(batch)->at(0), ElementsAre(561, 699));
  RecordingSink sink;
  Gradients(*engine, Request(batch), sink);
  EXPECT_THAT(sink.row_gradients[0].first, ElementsAre(561, 699));
}

TEST(ScriptSemanticsTest, ModuleInFloat64TakesItsOwnType) {
  ScriptModule module = LinearModule();
  for (ScriptTensor& tensor : module.tensors) tensor.type = "float64";
  const auto engine = CreateInitialized(Options(Save(module)));
  RecordingSink sink;
  Gradients(*engine, Request(Pairs({1, 1, 2, 0}, {3, 4})), sink);
  EXPECT_THAT(Elements<double>(sink.gradients[0]), ElementsAre(-5, 1));
}

TEST(ScriptSemanticsTest, TraitsHaveTheBatchNormAndTheNotes) {
  TorchEngineOptions options = Options(Save(NormedModule()));
  options.sample_shape = {2};
  const ModelTraits traits = CreateInitialized(options)->Traits();
  EXPECT_EQ(traits.smallest_batch, 2u);
  EXPECT_EQ(traits.smallest_batch_module, "norm");
  EXPECT_THAT(traits.notes, SizeIs(0));

  ScriptModule module = LinearModule();
  module.tensors.push_back({"scale", ScriptTensor::kBuffer, {}, {1}, ""});
  const ModelTraits others = CreateInitialized(Options(Save(module)))->Traits();
  EXPECT_EQ(others.smallest_batch, 1u);
  EXPECT_THAT(others.notes, ElementsAre(::testing::HasSubstr("'scale'")));
}

TEST(ScriptSemanticsTest, RejectsALossThatDependsOnNoParameter) {
  ScriptModule module = LinearModule();
  for (const std::string output :
       {"torch.linear(x, self.weight, self.bias).detach()",
        "torch.linear(x, self.weight.detach(), self.bias.detach())",
        "torch.ge(torch.linear(x, self.weight, self.bias), 0).float()"}) {
    module.source = absl::StrCat("def forward(self, x):\n    return ", output, "\n");
    const auto engine = CreateInitialized(Options(Save(module)));
    RecordingSink sink;
    ExpectRefused(engine->ComputeGradients(Request(Pairs({1, 1}, {0})), sink).status(),
                  absl::StatusCode::kFailedPrecondition, "the loss depends on no parameter");
    EXPECT_TRUE(engine->Evaluate(Buffer::kCurrent, Pairs({1, 1}, {0})).ok());
  }
}

TEST(ScriptSemanticsTest, NamesABufferWhoseChangeIsLost) {
  const struct {
    ScriptTensor buffer;
    const char* body;
    const char* message;
  } kCases[] = {
      {{"seen", ScriptTensor::kBuffer, {1}, {0}, ""},
       "    self.seen = torch.cat([self.seen, self.seen])\n",
       "buffer 'seen' is Float [1], and forward makes it Float [2]"},
      {{"low", ScriptTensor::kBuffer, {}, {INFINITY}, ""},
       "    self.low = torch.minimum(self.low, x.min())\n",
       "buffer 'low' has infinity"},
      {{"count", ScriptTensor::kIntegerBuffer, {}, {0}, ""},
       "    self.count.add_(1)\n",
       "buffer 'count' is changed by forward"},
  };
  for (const auto& c : kCases) {
    ScriptModule module = LinearModule();
    module.tensors.push_back(c.buffer);
    module.source = absl::StrCat("def forward(self, x):\n", c.body,
                                 "    return torch.linear(x, self.weight, self.bias)\n");
    const auto engine = CreateInitialized(Options(Save(module)));
    RecordingSink sink;
    ExpectRefused(engine->ComputeGradients(Request(Pairs({1, 1}, {0})), sink).status(),
                  absl::StatusCode::kFailedPrecondition, c.message);
  }
}

TEST(ScriptSemanticsTest, ConstantNaNOfABufferIsNoChange) {
  ScriptModule module = LinearModule();
  module.tensors.push_back({"limits", ScriptTensor::kBuffer, {2}, {NAN, -INFINITY}, ""});
  const auto engine = CreateInitialized(Options(Save(module)));
  RecordingSink sink;
  Gradients(*engine, Request(Pairs({1, 1}, {0})), sink);
  EXPECT_THAT(sink.changes, SizeIs(0));
}

}  // namespace
}  // namespace sluice
