// Tests which parts of a TorchScript file become a model's tensors, are refused, or are noted.
#include "services/worker/models/torch_script.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/version.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/data/testing/data_files.h"
#include "services/worker/models/model.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Parts {
  std::vector<std::pair<std::string, at::Tensor>> parameters = {{"w", at::ones({3, 2})}};
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::vector<std::pair<std::string, torch::jit::Module>> children;
  std::string source = "def forward(self, x):\n    return torch.linear(x, self.w)\n";
  bool training = true;
};

torch::jit::Module Build(const std::string& name, const Parts& parts) {
  torch::jit::Module module(name);
  for (auto [parameter, value] : parts.parameters) {
    if (value.is_floating_point() || value.is_complex()) value.requires_grad_(true);
    module.register_parameter(parameter, value, /*is_buffer=*/false);
  }
  for (const auto& [buffer, value] : parts.buffers) module.register_buffer(buffer, value);
  for (const auto& [child, part] : parts.children) module.register_module(child, part);
  module.register_attribute("training", c10::BoolType::get(), parts.training);
  module.define(parts.source);
  return module;
}

absl::StatusOr<std::unique_ptr<Model>> Load(const torch::jit::Module& module) {
  const std::string path = MakeTestDirectory() + "/model.pt";
  module.save(path);
  return LoadTorchScriptModel(path, at::kCPU);
}

std::unique_ptr<Model> Loaded(const Parts& parts) {
  auto model = Load(Build("m", parts));
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

void ExpectRefused(const Parts& parts, const std::string& message) {
  const auto model = Load(Build("m", parts));
  EXPECT_FALSE(model.ok());
  EXPECT_THAT(std::string(model.status().message()), HasSubstr(message));
}

std::string Forward(const std::string& body) {
  return absl::StrCat("def forward(self, x):\n", body);
}

std::vector<float> Numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kFloat).contiguous();
  return std::vector<float>(flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
}

// ---- modes

TEST(TorchScriptModelTest, EachSubmoduleKeepsItsOwnMode) {
  Parts frozen;
  frozen.source = Forward("    return x + 10 * int(self.training)\n");
  frozen.training = false;
  Parts head = frozen;
  head.source = Forward("    return x + 100 * int(self.training)\n");
  head.training = true;
  Parts root;
  root.children = {{"frozen", Build("frozen", frozen)}, {"head", Build("head", head)}};
  root.source =
      Forward("    return self.head.forward(self.frozen.forward(x)) + 1000 * int(self.training)\n");
  for (const bool root_trains : {true, false}) {
    root.training = root_trains;
    const auto model = Loaded(root);
    const float trained = root_trains ? 1100 : 100;
    EXPECT_THAT(Numbers(model->Forward(at::zeros({1}))), ElementsAre(trained));
    for (int round = 0; round < 2; ++round) {
      model->SetTraining(false);
      EXPECT_THAT(Numbers(model->Forward(at::zeros({1}))), ElementsAre(0));
      model->SetTraining(true);
      EXPECT_THAT(Numbers(model->Forward(at::zeros({1}))), ElementsAre(trained));
    }
  }
}

TEST(TorchScriptModelTest, OnlyNormThatCountsBatchesHasACounter) {
  const auto counters = [](const std::string& count, bool training) {
    Parts norm;
    norm.buffers = {{"num_batches_tracked", at::tensor(7, at::kLong)}};
    norm.training = training;
    norm.source = Forward(count + "    return torch.linear(x, self.w)\n");
    const auto model = Loaded(norm);
    EXPECT_EQ(model->tensors().size() + model->Extras().constants.size(), 2u);
    return model->tensors().size() - 1;
  };
  EXPECT_EQ(counters("    self.num_batches_tracked.add_(1)\n", true), 1u);
  EXPECT_EQ(counters("    if bool(self.training):\n"
                     "        self.num_batches_tracked = self.num_batches_tracked + 1\n",
                     true),
            1u);
  EXPECT_EQ(counters("    if bool(self.training):\n"
                     "        self.num_batches_tracked.add_(1)\n",
                     false),
            0u)
      << "a frozen batch norm";
  EXPECT_EQ(counters("", true), 0u) << "an instance norm";
}

// ---- types

TEST(TorchScriptModelTest, RejectsTensorsThatCannotBeTrainedOrKept) {
  Parts complex;
  complex.parameters.emplace_back("c", at::ones({2}, at::kComplexFloat));
  ExpectRefused(complex, "tensor 'c' is complex64, which cannot be trained");
  complex.parameters.back().second = at::ones({2}, at::kComplexDouble);
  ExpectRefused(complex, "torch.view_as_real");
  Parts wide;
  wide.buffers = {{"roots", at::ones({2}, at::kComplexDouble)}};
  ExpectRefused(wide, "tensor 'roots' is complex128, which checkpoints cannot keep; use complex64");
  Parts sparse;
  sparse.buffers = {{"adjacency", at::ones({2, 2}).to_sparse()}};
  ExpectRefused(sparse, "tensor 'adjacency' is sparse");
}

TEST(TorchScriptModelTest, ComplexBufferIsAConstant) {
  Parts parts;
  parts.buffers = {{"roots", at::ones({2}, at::kComplexFloat)}};
  EXPECT_EQ(Loaded(parts)->Extras().constants.at(0).other_type, "C64");
}

// ---- shared memory

TEST(TorchScriptModelTest, RejectsTensorsThatOverlap) {
  const at::Tensor base = at::arange(6, at::kFloat);
  const std::map<std::string, std::pair<at::Tensor, at::Tensor>> pairs = {
      {"transposed", {base.view({3, 2}), base.view({3, 2}).t()}},
      {"slices", {base.narrow(0, 0, 4), base.narrow(0, 2, 4)}},
      {"a part", {base.view({3, 2}), base.narrow(0, 4, 2)}},
      {"another shape", {base.view({3, 2}), base.view({6})}},
  };
  for (const auto& [what, pair] : pairs) {
    Parts parts;
    parts.parameters = {{"w", pair.first.detach()}, {"v", pair.second.detach()}};
    SCOPED_TRACE(what);
    ExpectRefused(parts, "tensors 'w' and 'v' share memory");
    parts.parameters.pop_back();
    parts.buffers = {{"v", pair.second.detach()}};
    ExpectRefused(parts, "tensors 'w' and 'v' share memory");
  }
}

TEST(TorchScriptModelTest, TensorsOfOneStorageMayLieBesideEachOther) {
  const at::Tensor base = at::arange(8, at::kFloat);
  const at::Tensor matrix = at::arange(8, at::kFloat).view({2, 4});
  Parts parts;
  parts.parameters = {{"w", base.narrow(0, 0, 4).detach()},
                      {"v", base.narrow(0, 4, 4).detach()},
                      {"left", matrix.narrow(1, 0, 2).detach()},
                      {"right", matrix.narrow(1, 2, 2).detach()}};
  const auto model = Loaded(parts);
  EXPECT_EQ(model->tensors().size(), 4u);
  EXPECT_THAT(Numbers(model->Initial(3)), ElementsAre(2, 3, 6, 7));
}

TEST(TorchScriptModelTest, TwoParametersOverOneMemoryAreTied) {
  const at::Tensor base = at::ones({3, 2});
  Parts parts;
  parts.parameters = {{"w", base.detach()}, {"v", base.detach()}};
  const auto model = Loaded(parts);
  EXPECT_EQ(model->tensors().size(), 1u);
  EXPECT_EQ(model->Extras().aliases.at("v"), "w");
}

// ---- the type of the input

TEST(TorchScriptModelTest, InputIsFloat32UnlessOnlyLayersOfAnotherTypeTakeIt) {
  const struct {
    const char* what;
    at::ScalarType type;  // of `w`
    const char* body;
    at::ScalarType expected;
  } kCases[] = {
      {"a layer of float64", at::kDouble, "    return torch.linear(x, self.w)\n", at::kDouble},
      {"a layer of bfloat16", at::kBFloat16,
       "    return torch.linear(torch.flatten(x.view([-1, 2]), 1), self.w)\n", at::kBFloat16},
      {"a layer of float32", at::kFloat, "    return torch.linear(x, self.w)\n", at::kFloat},
      {"indices before a layer of bfloat16", at::kBFloat16,
       "    return torch.linear(torch.embedding(self.e, x.long()).to(15), self.w)\n", at::kFloat},
      {"numbers before a layer of float64", at::kDouble,
       "    return torch.linear((x / 3).double(), self.w)\n", at::kFloat},
      {"layers of two types", at::kDouble,
       "    return torch.linear(x, self.e.t()) + torch.linear(x.double(), self.w)\n", at::kFloat},
      {"a layer and the numbers", at::kDouble, "    return torch.linear(x, self.w) + x.sum()\n",
       at::kFloat},
      {"a product with the transpose", at::kDouble, "    return torch.matmul(x, self.w.t())\n",
       at::kDouble},
      {"one of two shapes", at::kDouble,
       "    if x.dim() == 1:\n        x = x.unsqueeze(0)\n    return torch.linear(x, self.w)\n",
       at::kDouble},
  };
  for (const auto& c : kCases) {
    Parts parts;
    parts.parameters = {{"e", at::ones({5, 2})}, {"w", at::ones({3, 2}, c.type)}};
    std::string body = c.body;
    parts.source = Forward(body);
    EXPECT_EQ(Loaded(parts)->InputType(), c.expected) << c.what;
  }
}

// ---- changes that would be lost

TEST(TorchScriptModelTest, RejectsForwardThatChangesAParameter) {
  const std::map<std::string, std::string> bodies = {
      {"clamp_", "    w = self.w.detach()\n    w.clamp_(-1, 1)\n"},
      {"clamp_ of data", "    self.w.data.clamp_(-1, 1)\n"},
      {"a row", "    self.w.detach()[0].copy_(self.w[1])\n"},
      {"in training only",
       "    if bool(self.training):\n        w = self.w.detach()\n        w.mul_(0.5)\n"},
      {"a view of two",
       "    w = self.w.detach()\n    if x.size(0) > 1:\n        w = w.t()\n"
       "    w.mul_(0.5)\n"},
      {"max_norm",
       "    torch.embedding_renorm_(self.w.detach(), torch.zeros([1]).long(), 1.0, 2.0)\n"},
      {"assignment", "    self.w = self.w * 0.5\n"},
  };
  for (const auto& [what, body] : bodies) {
    SCOPED_TRACE(what);
    Parts parts;
    parts.source = Forward(body + "    return torch.linear(x, self.w)\n");
    ExpectRefused(parts, "parameter 'w' is changed by ");
  }
}

TEST(TorchScriptModelTest, ChangeThatTheCodeDoesNotShowIsFoundAfterIt) {
  Parts parts;
  parts.source = Forward(R"(    parts = [self.w.detach()]
    if x.size(0) > 1:
        parts[0].mul_(0.5)
    return torch.linear(x, self.w)
)");
  const auto model = Loaded(parts);
  model->Forward(at::ones({1, 2}));
  EXPECT_EQ(model->CheckUnchanged(), absl::OkStatus());
  model->Forward(at::ones({2, 2}));
  EXPECT_THAT(std::string(model->CheckUnchanged().message()),
              HasSubstr("parameter 'w' is changed by forward"));
}

TEST(TorchScriptModelTest, ChangedCopyOfAParameterIsNoChange) {
  Parts parts;
  parts.source = Forward(
      "    w = self.w.clone()\n    w.mul_(0.5)\n"
      "    return torch.linear(x, self.w.clamp(-1, 1) + w).relu_()\n");
  const auto model = Loaded(parts);
  model->Forward(at::ones({2, 2}));
  EXPECT_EQ(model->CheckUnchanged(), absl::OkStatus());
}

// Finds a function `embedding`, as the file of a scripted torch.nn.Embedding has it.
struct LookupResolver final : torch::jit::Resolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(
      const std::string& name, torch::jit::GraphFunction& method,
      const torch::jit::SourceRange& place) override {
    if (name == "embedding") return std::make_shared<torch::jit::FunctionValue>(function);
    return torch::jit::nativeResolver()->resolveValue(name, method, place);
  }
  torch::jit::Function* function = nullptr;
};

TEST(TorchScriptModelTest, RejectsMaxNormThatScriptingHasDropped) {
  for (const std::string limit : {"0.5", "None"}) {
    Parts parts;
    parts.source = "def unused(self):\n    return 0\n";
    torch::jit::Module module = Build("m", parts);
    auto resolver = std::make_shared<LookupResolver>();
    resolver->function =
        module._ivalue()->compilation_unit()->define(c10::QualifiedName("__torch__.functional"), R"(
def embedding(x, weight, max_norm: Optional[float]):
    return torch.embedding(weight, x.long())
)",
                                                     torch::jit::nativeResolver(), nullptr)[0];
    module.define(Forward(absl::StrCat("    return embedding(x, self.w, ", limit, ")\n")),
                  resolver);
    const auto model = Load(module);
    EXPECT_EQ(model.ok(), limit == "None") << model.status();
    if (limit == "None") continue;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr("has max_norm"));
  }
}

TEST(TorchScriptModelTest, NamesAConstantThatForwardChanges) {
  const std::map<std::string, std::string> bodies = {
      {"in place", "    self.count.add_(1)\n"},
      {"by another tensor", "    self.count = self.count + 1\n"},
      {"in shape", "    self.count = torch.cat([self.count, self.count])\n"},
  };
  for (const auto& [what, body] : bodies) {
    Parts parts;
    parts.buffers = {{"count", at::zeros({1}, at::kLong)}};
    parts.source = Forward(body + "    return torch.linear(x, self.w)\n");
    const auto model = Loaded(parts);
    EXPECT_EQ(model->CheckUnchanged(), absl::OkStatus()) << what;
    model->Forward(at::ones({1, 2}));
    const absl::Status changed = model->CheckUnchanged();
    EXPECT_EQ(changed.code(), absl::StatusCode::kFailedPrecondition) << what;
    EXPECT_THAT(std::string(changed.message()),
                HasSubstr("buffer 'count' is changed by forward, and it is int64"));
  }
}

// The operator of quantization-aware training changes its arguments uncounted.
TEST(TorchScriptModelTest, NamesAConstantThatAnObserverChanges) {
  Parts parts;
  for (const char* name : {"low", "high", "scale"}) parts.buffers.emplace_back(name, at::ones({1}));
  parts.buffers.emplace_back("on", at::ones({1}, at::kLong));
  parts.buffers.emplace_back("zero_point", at::full({1}, 99, at::kInt));
  parts.source = Forward(R"(    y = torch.linear(x, self.w)
    return torch.fused_moving_avg_obs_fake_quant(y, self.on, self.on, self.low, self.high, self.scale, self.zero_point, 0.5, 0, 255, 0)
)");
  const auto model = Loaded(parts);
  model->Forward(at::ones({1, 2}));
  EXPECT_THAT(std::string(model->CheckUnchanged().message()),
              HasSubstr("buffer 'zero_point' is changed by forward, and it is int32"));
}

TEST(TorchScriptModelTest, ConstantMayBeReplacedByItsOwnValue) {
  Parts parts;
  parts.buffers = {{"count", at::zeros({1}, at::kLong)}};
  parts.source = Forward("    self.count = self.count + 0\n    return torch.linear(x, self.w)\n");
  const auto model = Loaded(parts);
  for (int i = 0; i < 2; ++i) {
    model->Forward(at::ones({1, 2}));
    EXPECT_EQ(model->CheckUnchanged(), absl::OkStatus());
  }
}

// ---- operators that compute other numbers

TEST(TorchScriptModelTest, RejectsKernelsThatComputeSomethingElse) {
  if (TORCH_VERSION_MAJOR >= 2) GTEST_SKIP() << "LibTorch here computes them";
  Parts layer;
  layer.parameters = {{"weight", at::ones({1, 1, 3}, at::kBFloat16)}};
  const char* const kConvolutions[] = {
      "    return torch.conv_transpose1d(x, self.weight)\n",
      "    return torch._convolution(x, self.weight, None, [1], [0], [1], True, [0], 1, False, "
      "False, True, True)\n"};
  for (const char* body : kConvolutions) {
    layer.source = Forward(body);
    Parts root;
    root.children = {{"up", Build("up", layer)}};
    root.source = Forward("    return self.up.forward(x)\n");
    ExpectRefused(root, "layer 'up' is a transposed convolution in bfloat16");
  }
  layer.source = Forward("    return torch.conv1d(x, self.weight)\n");
  EXPECT_NE(Loaded(layer), nullptr);
  layer.parameters = {{"weight", at::ones({1, 1, 3})}};
  layer.source = Forward(kConvolutions[0]);
  EXPECT_NE(Loaded(layer), nullptr);

  Parts norm;
  norm.parameters = {{"weight", at::ones({2}, at::kBFloat16)}};
  norm.source = Forward("    return torch.layer_norm(x, [2], self.weight)\n");
  ExpectRefused(norm, "normalizes one or two numbers in bfloat16");
  norm.source = Forward("    return torch.layer_norm(x, [8], self.weight)\n");
  EXPECT_NE(Loaded(norm), nullptr);
}

TEST(TorchScriptModelTest, NotesOperatorsWithAnotherGradient) {
  const int linked = 100 * TORCH_VERSION_MAJOR + TORCH_VERSION_MINOR;
  const std::map<std::string, int> same_since = {
      {"torch.clamp(y, -1, 1)", 214}, {"torch.clip(y, -1, 1)", 214},
      {"torch.clamp_min(y, 0)", 214}, {"y.clamp_max_(1)", 214},
      {"torch.fmax(y, y)", 215},      {"torch.hardswish(y)", 212},
      {"torch.trace(y)", 215},        {"torch.clamp(self.w, -1, 1)", 214},
      {"torch.relu(y)", 0},           {"torch.hardtanh(y)", 0},
      {"torch.clamp(x, -1, 1)", 0},   {"torch.clamp(y.detach(), -1, 1)", 0}};
  for (const auto& [expression, release] : same_since) {
    Parts parts;
    parts.source = Forward("    y = x * self.w\n    if x.size(0) > 1:\n        y = " + expression +
                           "\n    return y\n");
    EXPECT_EQ(Loaded(parts)->Notes().size(), linked < release ? 1u : 0u) << expression;
  }
}

TEST(TorchScriptModelTest, GradientThatALoopGivesBackIsNoted) {
  if (TORCH_VERSION_MAJOR >= 2) GTEST_SKIP() << "LibTorch here may have the new gradient";
  Parts parts;
  parts.source = Forward(
      "    y = x\n    for i in range(x.size(0)):\n"
      "        z = torch.clamp(y, -1, 1)\n        y = z * self.w\n"
      "    return y\n");
  EXPECT_THAT(Loaded(parts)->Notes(), ElementsAre(HasSubstr("aten::clamp")));
}

TEST(TorchScriptModelTest, RejectsOperatorsWithoutAGradient) {
  if (TORCH_VERSION_MAJOR >= 2) GTEST_SKIP() << "LibTorch here may have the gradient";
  Parts parts;
  parts.source = Forward("    return torch.special_bessel_j0(x * self.w)\n");
  ExpectRefused(parts, "uses the operator aten::special_bessel_j0 on what depends on parameters");
  parts.source = Forward("    return torch.special_bessel_j0(x) * self.w\n");
  EXPECT_NE(Loaded(parts), nullptr);
}

TEST(TorchScriptModelTest, NotesWhatAPassKeepsOutsideOfTheStateDict) {
  Parts parts;
  parts.source = "def unused(self):\n    return 0\n";
  torch::jit::Module module = Build("m", parts);
  module.register_attribute("passes", c10::IntType::get(), 0);
  module.register_attribute("cache", c10::TensorType::get(), at::zeros({2}));
  module.define(
      Forward("    self.passes = self.passes + 1\n    self.cache.copy_(x[0])\n"
              "    return torch.linear(x, self.w)\n"));
  const auto model = Load(module);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT((*model)->Notes(), ElementsAre(HasSubstr("forward keeps 'cache' and 1 other")));
}

// ---- modes that are constants

std::string NormBody(const std::string& training) {
  return absl::StrCat(
      "    return torch.batch_norm(x, None, None, self.running_mean, "
      "self.running_var, ",
      training, ", 0.1, 1e-5, False) * self.w\n");
}

Parts Norm(const std::string& training) {
  Parts norm;
  norm.parameters = {{"w", at::ones({2})}};
  norm.buffers = {{"running_mean", at::zeros({2})}, {"running_var", at::ones({2})}};
  norm.source = Forward(NormBody(training));
  return norm;
}

TEST(TorchScriptModelTest, NotesModesThatAreConstants) {
  const char kOn[] = "Dropout stays on in evaluations";
  const char kSaved[] = "saved in evaluation mode";
  Parts dropout;
  dropout.source = Forward("    return torch.linear(torch.dropout(x, 0.5, True), self.w)\n");
  EXPECT_THAT(Loaded(dropout)->Notes(), ElementsAre(HasSubstr(kOn)));
  dropout.source = Forward("    return torch.linear(torch.dropout(x, 0.0, True), self.w)\n");
  EXPECT_THAT(Loaded(dropout)->Notes(), IsEmpty());
  dropout.source =
      Forward("    return torch.linear(torch.dropout(x, 0.5, bool(self.training)), self.w)\n");
  EXPECT_THAT(Loaded(dropout)->Notes(), IsEmpty());
  dropout.training = false;
  EXPECT_THAT(Loaded(dropout)->Notes(), ElementsAre(HasSubstr(kSaved)));
  dropout.source = Forward("    return torch.linear(torch.dropout(x, 0.5, False), self.w)\n");
  EXPECT_THAT(Loaded(dropout)->Notes(), ElementsAre(HasSubstr(kSaved)));
  dropout.source = Forward("    return torch.linear(x, self.w)\n");
  EXPECT_THAT(Loaded(dropout)->Notes(), IsEmpty());

  Parts root;
  root.parameters.clear();
  root.children = {{"norm", Build("norm", Norm("True"))}};
  root.source = Forward("    return self.norm.forward(x)\n");
  EXPECT_THAT(Loaded(root)->Notes(),
              ElementsAre(HasSubstr("Batch norm 'norm' uses the statistics of the batch")));
}

TEST(TorchScriptModelTest, NamesTheBatchNormThatNeedsTwoSamples) {
  const at::Tensor one = at::ones({1, 2});
  const auto name = [&](const std::string& training, bool mode) {
    Parts norm = Norm(training);
    norm.training = mode;
    Parts root;
    root.parameters.clear();
    root.children = {{"norm", Build("norm", norm)}};
    root.source = Forward("    return self.norm.forward(x)\n");
    return Loaded(root)->NeedsTwoSamples(one);
  };
  EXPECT_EQ(name("bool(self.training)", true), "norm");
  EXPECT_EQ(name("bool(self.training)", false), "");
  EXPECT_EQ(name("True", false), "norm");
  EXPECT_EQ(name("False", true), "");
  Parts branches = Norm("on");
  branches.source = Forward(
      "    if bool(self.training):\n        on = True\n    else:\n"
      "        on = False\n" +
      NormBody("on"));
  const auto model = Loaded(branches);
  EXPECT_EQ(model->NeedsTwoSamples(one), "batch_norm");
  EXPECT_EQ(model->NeedsTwoSamples(at::ones({1, 2, 2})), "") << "two numbers of each channel";
  EXPECT_THAT(Numbers(model->TakeBuffer(1)), ElementsAre(0, 0)) << "a copy computes";
  EXPECT_EQ(Loaded(Parts())->NeedsTwoSamples(one), "");
}

TEST(TorchScriptModelTest, NotesBuffersThatMayNotBePersistent) {
  Parts parts;
  parts.buffers = {{"scale", at::ones({2})}, {"mask", at::ones({2}, at::kBool)}};
  EXPECT_THAT(Loaded(parts)->Notes(),
              ElementsAre(AllOf(HasSubstr("results contain 'scale' and 1 other"),
                                HasSubstr("strict=False"))));
  EXPECT_THAT(Loaded(Norm("bool(self.training)"))->Notes(), IsEmpty());
}

// ---- files that do not load

TEST(TorchScriptLoadErrorTest, NamesTheRemedy) {
  const auto message = [](const std::string& what) {
    return std::string(TorchScriptLoadError("m.pt", what).message());
  };
  EXPECT_THAT(message("Unknown builtin op: aten::_upsample_lanczos2d_aa.\n"),
              AllOf(HasSubstr("save the model with torch.jit.trace"),
                    Not(HasSubstr("write the model without it"))));
  EXPECT_THAT(message("Unknown builtin op: aten::of_tomorrow.\n"),
              HasSubstr("write the model without it"));
  EXPECT_THAT(message("Unpickler found unknown torch global, 'torch.UInt16Storage'\n"),
              AllOf(HasSubstr("m.pt: has a tensor of type UInt16, "), HasSubstr("another type")));
  const auto call = [&](const std::string& op) {
    return message(
        "\nArguments for call are not valid.\nThe following variants are available:"
        "\n  \n  " +
        op + "(Tensor self) -> Tensor:\n");
  };
  EXPECT_THAT(call("aten::any.dim"), HasSubstr("one dimension at a time"));
  EXPECT_THAT(call("aten::std"), HasSubstr("correction as an integer"));
}

}  // namespace
}  // namespace sluice
