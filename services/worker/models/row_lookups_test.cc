#include "services/worker/models/row_lookups.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/data/testing/data_files.h"
#include "services/worker/models/testing/script_files.h"

namespace sluice {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr auto kParameter = ScriptTensor::kParameter;

ScriptTensor Table(const std::string& name, int64_t rows, ScriptTensor::Kind kind = kParameter) {
  return {name, kind, {rows, 2}, std::vector<double>(static_cast<size_t>(rows) * 2, 0.5), ""};
}

// Two tables, `users` of 10 rows and `items` of 20, and a matrix that is not a table; `body` is the
// body of forward(x).
ScriptModule Module(const std::string& body) {
  ScriptModule module;
  module.tensors = {Table("users", 10),
                    Table("items", 20),
                    Table("mix", 2),
                    {"shift", ScriptTensor::kIntegerBuffer, {}, {3}, ""}};
  module.source = absl::StrCat("def forward(self, x):\n", body);
  return module;
}

std::unique_ptr<Model> Load(const ScriptModule& module) {
  const std::string path = MakeTestDirectory() + "/model.pt";
  WriteScript(path, module);
  absl::StatusOr<std::unique_ptr<Model>> model = LoadTorchScriptModel(path, at::kCPU);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

std::vector<std::string> Tables(const Model& model) {
  std::vector<std::string> names;
  for (size_t table : model.RowTensors()) names.push_back(model.tensors()[table].name);
  return names;
}

std::vector<std::vector<int64_t>> Rows(const Model& model, const at::Tensor& input) {
  std::vector<std::vector<int64_t>> all;
  for (const at::Tensor& named : model.Rows(input)) {
    const at::Tensor rows = named.contiguous();
    all.emplace_back(rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + rows.numel());
  }
  return all;
}

at::Tensor Words() { return at::tensor({4, 1, 1, 7}, at::kLong).reshape({2, 2}); }

TEST(RowLookupsTest, WordsOfInputAreTheRows) {
  const auto model = Load(Module("    return torch.embedding(self.users, x, -1, False, False)\n"));
  EXPECT_THAT(Tables(*model), ElementsAre("users"));
  EXPECT_THAT(Rows(*model, Words()), ElementsAre(ElementsAre(4, 1, 1, 7)));
}

TEST(RowLookupsTest, RowsAreComputedFromTheInputAsTheModelComputesThem) {
  const auto model = Load(Module(R"(    u = torch.embedding(self.users, x[:, 0].long())
    i = torch.embedding(self.items, torch.remainder(x[:, 1].long() * 4 + self.shift, 20))
    return torch.matmul(torch.cat([u, i], 1)[:, 0:2], self.mix)
)"));
  EXPECT_THAT(Tables(*model), ElementsAre("users", "items"));
  const at::Tensor input = at::tensor({2.0, 1.0, 9.0, 5.0}, at::kFloat).reshape({2, 2});
  EXPECT_THAT(Rows(*model, input), ElementsAre(ElementsAre(2, 9), ElementsAre(7, 3)));
}

TEST(RowLookupsTest, SeveralLookupsOfATableNameTheRowsOfAll) {
  const auto model = Load(Module(R"(    a = torch.embedding(self.users, x[:, 0])
    return a + torch.embedding(self.users, x[:, 1])
)"));
  EXPECT_THAT(Rows(*model, Words()), ElementsAre(ElementsAre(4, 1, 1, 7)));
}

// Like a saved torch.nn.Embedding, with the check of its padding's place.
TEST(RowLookupsTest, LayerMayReadTheSizeOfItsTable) {
  ScriptModule layer;
  layer.tensors = {Table("weight", 10)};
  layer.source = R"(
def forward(self, x):
    assert self.weight.size(0) > 3, "Padding_idx must be within num_embeddings"
    return torch.embedding(self.weight, x, 3, False, False)
)";
  ScriptModule module;
  module.children = {{"words", layer}};
  module.source = "def forward(self, x):\n    return self.words.forward(x)\n";
  const auto model = Load(module);
  EXPECT_THAT(Tables(*model), ElementsAre("words.weight"));
  EXPECT_THAT(Rows(*model, Words()), ElementsAre(ElementsAre(4, 1, 1, 7)));
}

TEST(RowLookupsTest, TensorWithTwoNamesIsReadUnderBoth) {
  ScriptModule module = Module(R"(    a = torch.embedding(self.users, x)
    return torch.matmul(a, torch.transpose(self.same, 0, 1))
)");
  module.tensors.push_back({"same", kParameter, {10, 2}, {}, "users"});
  EXPECT_THAT(Tables(*Load(module)), IsEmpty());
}

TEST(RowLookupsTest, AnyOtherUseReadsTheWholeTable) {
  const std::map<std::string, std::string> bodies = {
      {"tied weights", R"(    y = torch.embedding(self.users, x)
    return torch.matmul(y, torch.transpose(self.users, 0, 1))
)"},
      {"a norm of all rows", R"(    return torch.embedding(self.users, x) + torch.norm(self.users)
)"},
      {"a norm of all rows in a branch", R"(    y = torch.embedding(self.users, x)
    if bool(self.training):
        y = y + torch.norm(self.users)
    return y
)"},
      {"a lookup that may not happen", R"(    y = torch.zeros([1])
    if bool(self.training):
        y = torch.embedding(self.users, x)
    return y
)"},
      {"lookups in a loop", R"(    y = torch.zeros([1])
    for i in range(x.size(1)):
        y = y + torch.embedding(self.users, x[:, i])
    return y
)"},
      {"it is given away", R"(    y = torch.embedding(self.users, x)
    return torch.cat([y, self.users.reshape([1, 10, 2])], 0)
)"},
  };
  for (const auto& [what, body] : bodies)
    EXPECT_THAT(Tables(*Load(Module(body))), IsEmpty()) << what;
}

TEST(RowLookupsTest, IndicesThatDependOnMoreThanTheInputNameNoRows) {
  const std::map<std::string, std::string> bodies = {
      {"drawn at random", R"(    return torch.embedding(self.users, torch.randint_like(x, 10))
)"},
      {"of a parameter", R"(    i = torch.argmax(torch.embedding(self.items, x), 2)
    return torch.embedding(self.users, i)
)"},
      {"of the mode", R"(    return torch.embedding(self.users, x * int(self.training))
)"},
      {"of an input that is changed before", R"(    x.add_(1)
    return torch.embedding(self.users, x)
)"},
      {"of an input that is changed behind it", R"(    y = torch.embedding(self.users, x)
    x.add_(1)
    return y
)"},
      {"of a branch", R"(    i = x
    if x.size(0) > 1:
        i = x + 1
    return torch.embedding(self.users, i)
)"},
      {"of a buffer that is no constant", R"(    self.shift = self.shift + 1
    return torch.embedding(self.users, x + self.shift)
)"},
  };
  for (const auto& [what, body] : bodies) {
    EXPECT_THAT(Tables(*Load(Module(body))), Not(Contains("users"))) << what;
  }
}

TEST(RowLookupsTest, LossOfModuleReadsTooAndMayLookUpNothing) {
  const std::string forward = "    return torch.embedding(self.users, x)\n";
  const auto with_loss = [&](const std::string& body) {
    ScriptModule module = Module(forward);
    module.source += "\ndef loss(self, output, target):\n" + body;
    return Tables(*Load(module));
  };
  EXPECT_THAT(with_loss("    return torch.mean(output)\n"), ElementsAre("users"));
  EXPECT_THAT(with_loss("    return torch.mean(output) + torch.norm(self.users)\n"), IsEmpty());
  EXPECT_THAT(with_loss("    return torch.mean(torch.embedding(self.users, target) * output)\n"),
              IsEmpty());
}

TEST(RowLookupsTest, OnlyTrainedMatricesAreTables) {
  ScriptModule module = Module(R"(    a = torch.embedding(self.frozen, x)
    return a + torch.embedding(self.cube, x)[:, :, 0]
)");
  module.tensors.push_back(Table("frozen", 10, ScriptTensor::kFrozenParameter));
  module.tensors.push_back({"cube", kParameter, {10, 2, 2}, std::vector<double>(40), ""});
  EXPECT_THAT(Tables(*Load(module)), IsEmpty());
}

TEST(RowLookupsTest, ModelWithoutTablesNamesNothing) {
  const auto model = Load(Module("    return torch.matmul(x, self.mix)\n"));
  EXPECT_THAT(Tables(*model), IsEmpty());
  EXPECT_THAT(model->Rows(at::arange(4, at::kFloat).reshape({2, 2})), IsEmpty());
}

}  // namespace
}  // namespace sluice
