// Rows of the table: loss, optimizer, training, the sizes of the job, checkpoints, limits.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "operator/api/field_builder.h"

namespace sluice::api {
namespace {

std::string WithOptimizer(const std::string& name) {
  return R"({"spec":{"optimizer":{"name":")" + name + R"("}}})";
}
constexpr char kStepSchedule[] =
    R"({"spec":{"optimizer":{"schedule":{"type":"Step","stepSize":100}}}})";
constexpr char kCosineSchedule[] =
    R"({"spec":{"optimizer":{"schedule":{"type":"Cosine","totalSteps":1000}}}})";
constexpr char kCustom[] =
    R"({"spec":{"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null}}})";
constexpr char kTarget[] =
    R"({"spec":{"data":{"evaluation":{"source":{"path":"/data/test"},"intervalSteps":100}},
                "training":{"target":{"metric":"loss","goal":"AtMost","value":1}}}})";

bool IsLibraryName(absl::string_view text) {
  if (text.empty() || text[0] == '.' || text[0] == '-') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

void AddLossAndOptimizer(std::vector<Field>* fields) {
  fields->push_back(String("spec.loss",
                           "What is minimised. Unset: the model's own loss; a TorchScript module "
                           "that returns its loss itself needs none.")
                        .Fixed()
                        .OneOf({"nll", "crossEntropy", "mse", "binaryCrossEntropyWithLogits"})
                        .Example("crossEntropy")
                        .Invalid("cross_entropy", "did you mean `crossEntropy`?"));
  fields->push_back(Object("spec.optimizer",
                           "How gradients change parameters. Options have the names, meanings and "
                           "defaults of PyTorch; those of another optimizer are refused.")
                        .Fixed()
                        .Required());
  fields->push_back(
      String("spec.optimizer.name",
             "The optimizer, as in `torch.optim`. `Add`: parameters <- parameters + "
             "update, for exact sums. `Plugin`: that of a shared library.")
          .Required()
          .Alias("type")
          .OneOf({"SGD", "Adagrad", "Adam", "AdamW", "Add", "Plugin"})
          .Example("Adam")
          .Invalid("adam", "did you mean `Adam`?")
          .Invalid("RMSprop", "must be one of SGD, Adagrad, Adam, AdamW, Add, Plugin"));
  fields->push_back(Number("spec.optimizer.learningRate", "Step size. Not for Add.")
                        .DefaultBy("name", {{{"Adagrad"}, "0.01"}, {{}, "0.001"}})
                        .Alias("lr")
                        .Min(0)
                        .Example("0.05")
                        .Invalid("-0.1", "at least 0")
                        .Invalid("fast", "must be a number"));
  fields->push_back(Number("spec.optimizer.momentum", "SGD: factor on the previous step.")
                        .DefaultWhereAllowed("0")
                        .Min(0)
                        .Example("0.9")
                        .Invalid("-1", "at least 0"));
  fields->push_back(
      Number("spec.optimizer.dampening", "SGD: takes this part of the gradient off the momentum.")
          .DefaultWhereAllowed("0")
          .Example("0.1"));
  fields->push_back(Boolean("spec.optimizer.nesterov", "SGD: Nesterov momentum.")
                        .DefaultWhereAllowed("false")
                        .Context(R"({"spec":{"optimizer":{"momentum":0.9}}})")
                        .Example("true"));
  fields->push_back(Number("spec.optimizer.weightDecay",
                           "Pull towards 0: added to the gradient (L2), by AdamW taken off the "
                           "parameter itself. Not for Add.")
                        .DefaultBy("name", {{{"AdamW"}, "0.01"}, {{}, "0"}})
                        .Min(0)
                        .Example("1e-4")
                        .Invalid("-1e-4", "at least 0"));
  fields->push_back(
      List("spec.optimizer.betas",
           "Adam, AdamW: decay rates of the mean and of the mean square of gradients.")
          .DefaultWhereAllowed("[0.9, 0.999]")
          .Proto("beta1 beta2")
          .Size(2, 2)
          .Context(WithOptimizer("Adam"))
          .Example("[0.9, 0.99]")
          .Invalid("[0.9]", "must have at least 2 items")
          .Invalid("[0.9, 1]", "must be less than 1"));
  fields->push_back(Number("spec.optimizer.betas[]", "One rate.").Min(0).Below(1));
  fields->push_back(Number("spec.optimizer.eps", "Adagrad, Adam, AdamW: added to the divisor.")
                        .DefaultBy("name", {{{"Adagrad"}, "1e-10"}, {{}, "1e-8"}})
                        .Min(0)
                        .Context(WithOptimizer("Adam"))
                        .Example("1e-7"));
  fields->push_back(Number("spec.optimizer.lrDecay", "Adagrad: decay of the learning rate.")
                        .DefaultWhereAllowed("0")
                        .Min(0)
                        .Context(WithOptimizer("Adagrad"))
                        .Example("1e-4"));
  fields->push_back(
      Number("spec.optimizer.initialAccumulatorValue", "Adagrad: where the sum of squares begins.")
          .DefaultWhereAllowed("0")
          .Min(0)
          .Context(WithOptimizer("Adagrad"))
          .Example("0.1"));
  fields->push_back(
      Boolean("spec.optimizer.amsgrad", "Adam, AdamW: divide by the largest mean square so far.")
          .DefaultWhereAllowed("false")
          .Context(WithOptimizer("AdamW"))
          .Example("true"));
  fields->push_back(
      String("spec.optimizer.library",
             "Plugin: the shared library `lib<library>.so` on the shards' machines, in a directory "
             "of $SLUICE_PLUGIN_PATH, /usr/local/lib/sluice or /usr/lib/sluice.")
          .Size(1, 64)
          .Pattern("^[A-Za-z0-9_][A-Za-z0-9_.-]*$", IsLibraryName,
                   "must be a name of letters, digits, `-`, `_` and `.`, without `lib` and `.so`")
          .Context(R"({"spec":{"optimizer":{"name":"Plugin"}}})")
          .Example("lion")
          .Invalid("plugins/liblion.so", "must be a name"));
  fields->push_back(Map("spec.optimizer.parameters", "Plugin: what the library takes, by name.")
                        .Size(0, 32)
                        .Context(R"({"spec":{"optimizer":{"name":"Plugin","library":"lion"}}})")
                        .Example("{beta1: 0.9, beta2: 0.99}")
                        .Invalid("{beta1: high}", "must be a number"));
  fields->push_back(Number("spec.optimizer.parameters{}", "One number."));
  fields->push_back(Number("spec.optimizer.clipNorm",
                           "Gradients whose 2-norm over all parameters is larger are scaled down "
                           "to it. Unset: they are left alone.")
                        .Above(0)
                        .Example("1.0")
                        .Invalid("0", "must be more than 0"));
}

void AddScheduleAndGroups(std::vector<Field>* fields) {
  fields->push_back(
      Object("spec.optimizer.schedule",
             "How the learning rate changes with the steps. Unset: it does not. Not for Add."));
  fields->push_back(
      String("spec.optimizer.schedule.type",
             "`Constant`. `Step`: times `gamma` every `stepSize` steps. `Cosine`: half a cosine "
             "from 1 to `minFactor` over `totalSteps` steps, then constant.")
          .Default(R"("Constant")")
          .OneOf({"Constant", "Step", "Cosine"})
          .Example("Constant")
          .Invalid("Linear", "must be one of Constant, Step, Cosine"));
  fields->push_back(
      Integer("spec.optimizer.schedule.warmupSteps",
              "Steps over which the learning rate rises to its full value, in front of every type.")
          .Default("0")
          .Min(0)
          .Example("500")
          .Invalid("-5", "at least 0"));
  fields->push_back(Integer("spec.optimizer.schedule.stepSize", "Step: steps between two changes.")
                        .Min(1)
                        .Context(kStepSchedule)
                        .Example("1000"));
  fields->push_back(Number("spec.optimizer.schedule.gamma", "Step: factor of each change.")
                        .DefaultWhereAllowed("0.1")
                        .Above(0)
                        .Context(kStepSchedule)
                        .Example("0.5")
                        .Invalid("0", "must be more than 0"));
  fields->push_back(Integer("spec.optimizer.schedule.totalSteps",
                            "Cosine: steps until the lowest rate, those of the warm-up included.")
                        .Min(1)
                        .Context(kCosineSchedule)
                        .Example("10000"));
  fields->push_back(Number("spec.optimizer.schedule.minFactor",
                           "Cosine: the lowest rate, as a multiple of the learning rate.")
                        .DefaultWhereAllowed("0")
                        .Min(0)
                        .Max(1)
                        .Context(kCosineSchedule)
                        .Example("0.01")
                        .Invalid("2", "at most 1"));
  fields->push_back(
      List("spec.optimizer.groups",
           "Other options for some parameters. A parameter belongs to the first group of which a "
           "pattern matches its name; what the group leaves unset is the optimizer's. Not for Add "
           "and Plugin.")
          .Size(0, 64)
          .Example("[{patterns: [\"*.bias\"], weightDecay: 0}]")
          .Invalid("{patterns: [a]}", "must be a list"));
  fields->push_back(Object("spec.optimizer.groups[]", "One group."));
  fields->push_back(List("spec.optimizer.groups[].patterns",
                         "Names of parameters, as in PyTorch's state_dict; `*` stands for any "
                         "characters, `?` for one.")
                        .Required()
                        .Size(1, 64));
  fields->push_back(String("spec.optimizer.groups[].patterns[]", "One pattern.").Size(1, 253));
  fields->push_back(Number("spec.optimizer.groups[].learningRate", "Step size of these parameters.")
                        .Min(0)
                        .Alias("lr"));
  fields->push_back(
      Number("spec.optimizer.groups[].weightDecay", "Weight decay of these parameters.").Min(0));
  fields->push_back(
      Number("spec.optimizer.groups[].momentum", "SGD: momentum of these parameters.").Min(0));
}

void AddTrainingBasics(std::vector<Field>* fields) {
  fields->push_back(Object("spec.training", "How to train, and until when.").Required());
  fields->push_back(
      String(
          "spec.training.mode",
          "`Synchronous`: each step applies the gradient of one global batch, whichever workers "
          "computed it; the result is the same for any number of workers, up to rounding, and "
          "to the bit with `determinism: BitExact`. `Asynchronous`: each worker applies updates "
          "at its own pace. `BoundedStaleness`: as Asynchronous, but no worker runs far ahead. A "
          "change takes effect through a checkpoint.")
          .Default(R"("Synchronous")")
          .OneOf({"Synchronous", "Asynchronous", "BoundedStaleness"})
          .Example("Asynchronous")
          .Invalid("Async", "must be one of Synchronous, Asynchronous, BoundedStaleness"));
  fields->push_back(
      Object("spec.training.boundedStaleness", "Bounds of mode BoundedStaleness; only there.")
          .Proto("."));
  fields->push_back(
      Integer("spec.training.boundedStaleness.maxStaleness",
              "A worker waits when it is more than so many updates ahead of the slowest.")
          .Required()
          .Min(0)
          .Max(1e6)
          .Context(
              R"({"spec":{"training":{"mode":"BoundedStaleness","boundedStaleness":{"maxStaleness":1}}}})")
          .Example("4")
          .Invalid("-1", "at least 0"));
  fields->push_back(Integer("spec.training.globalBatchSize",
                            "Samples of one step, over all workers; of one update of one worker "
                            "where the mode is not Synchronous.")
                        .Fixed()
                        .Default("64")
                        .Min(1)
                        .Max(1 << 24)
                        .Alias("batchSize")
                        .Alias("batch")
                        .Example("256")
                        .Invalid("0", "at least 1")
                        .Invalid("64.5", "must be an integer"));
  fields->push_back(Integer("spec.training.microbatchSize",
                            "A global batch is cut into microbatches of so many samples (the last "
                            "may be smaller), which are given to workers in proportion to their "
                            "speed. Normally a worker computes all of its microbatches as one "
                            "batch; with BitExact each by itself, so larger ones are faster.")
                        .Fixed()
                        .Implied("globalBatchSize / 16, rounded up")
                        .Min(1)
                        .Max(1 << 24)
                        .Alias("microBatchSize")
                        .Example("16")
                        .Invalid("0", "at least 1"));
  constexpr char kBalanced[] =
      R"({"spec":{"training":{"mode":"Asynchronous","maxBatchSize":128}}})";
  fields->push_back(
      Integer("spec.training.maxBatchSize",
              "Where the mode is not Synchronous: a worker's updates have as many samples as fit "
              "its measured speed, so that those of all take as long as each other; "
              "`globalBatchSize` at the mean speed, at most so many. Unset: always "
              "`globalBatchSize`.")
          .Min(1)
          .Max(1 << 24)
          .Context(R"({"spec":{"training":{"mode":"Asynchronous"}}})")
          .Example("128")
          .Invalid("0", "at least 1"));
  fields->push_back(
      Integer("spec.training.minBatchSize", "With `maxBatchSize`: at least so many. Unset: 1.")
          .Min(1)
          .Max(1 << 24)
          .Context(kBalanced)
          .Example("8")
          .Invalid("0", "at least 1"));
  fields->push_back(
      Integer(
          "spec.training.steps",
          "Train for so many steps (updates, where the mode is not Synchronous). This or `epochs`.")
          .Min(1)
          .Alias("maxSteps")
          .Example("10000")
          .Invalid("0", "at least 1")
          .Invalid("many", "must be an integer, not the string \"many\""));
  fields->push_back(
      Integer("spec.training.epochs", "Go over the data so many times. This or `steps`.")
          .Min(1)
          .Context(R"({"spec":{"training":{"steps":null}}})")
          .Example("5")
          .Invalid("1.5", "must be an integer"));
  fields->push_back(
      Integer("spec.training.seed",
              "What initial parameters, the order of samples and dropout are drawn from.")
          .Fixed()
          .Default("0")
          .Min(0)
          .Example("42")
          .Invalid("-1", "at least 0"));
}

void AddCompression(std::vector<Field>* fields) {
  fields->push_back(
      Object("spec.training.compression", "How numbers are sent. None sends them as they are.")
          .Proto(".")
          .Default("{}"));
  fields->push_back(
      String("spec.training.compression.push",
             "Of gradients, from workers to shards. `Float16`, `BFloat16`: rounded to 16 bits. "
             "`Int8`: to 8 bits and a scale. `TopK`: the largest elements only. `OneBit`: signs "
             "and two means. `SignThreshold`: signs of what is beyond a threshold; a "
             "demonstration. Not with BitExact.")
          .Proto("push_codec")
          .Default(R"("None")")
          .OneOf({"None", "Float16", "BFloat16", "TopK", "Int8", "OneBit", "SignThreshold"})
          .Example("Int8")
          .Invalid("fp16", "must be one of None, Float16, BFloat16, TopK, Int8"));
  fields->push_back(
      String("spec.training.compression.pull", "Of parameters, from shards to workers.")
          .Proto("pull_codec")
          .Default(R"("None")")
          .OneOf({"None", "Float16", "BFloat16"})
          .Example("BFloat16")
          .Invalid("Int8", "must be one of None, Float16, BFloat16"));
  fields->push_back(Number("spec.training.compression.fraction",
                           "TopK: of each block's elements, how many are sent, rounded up.")
                        .Proto("compression.fraction")
                        .DefaultBy("push", {{{"TopK"}, "0.01"}})
                        .Above(0)
                        .Max(0.5)
                        .Context(R"({"spec":{"training":{"compression":{"push":"TopK"}}}})")
                        .Example("0.05")
                        .Invalid("0", "must be more than 0")
                        .Invalid("0.6", "at most 0.5"));
  fields->push_back(
      Number("spec.training.compression.threshold",
             "SignThreshold: what is sent for elements beyond it; compared with gradients as they "
             "are pushed, the sum over a worker's samples.")
          .Proto("compression.threshold")
          .Above(0)
          .Max(1e30)
          .Context(
              R"({"spec":{"training":{"compression":{"push":"SignThreshold","threshold":1}}}})")
          .Example("0.5")
          .Invalid("0", "must be more than 0"));
  fields->push_back(
      Boolean("spec.training.compression.errorFeedback",
              "What an encoding leaves out is added to the next gradient before that is encoded. "
              "Costs a worker 4 bytes for each parameter, 8 while it pushes.")
          .Proto("compression.error_feedback")
          .DefaultBy("push", {{{"TopK", "Int8", "OneBit"}, "true"}, {{}, "false"}})
          .Context(R"({"spec":{"training":{"compression":{"push":"Int8"}}}})")
          .Example("false"));
}

void AddStalenessRule(std::vector<Field>* fields) {
  constexpr char kAsynchronous[] = R"({"spec":{"training":{"mode":"Asynchronous"}}})";
  fields->push_back(Object("spec.training.stalenessRule",
                           "What the staleness of an update (the updates applied since its "
                           "parameters were pulled) does to it; not in mode Synchronous.")
                        .Proto("staleness"));
  fields->push_back(
      String("spec.training.stalenessRule.name",
             "`Damped`: the learning rate is divided by 1 + `factor` times the staleness. "
             "`Inverse`: by the staleness, where that is more than 1. `DelayCompensation`: the "
             "gradient g becomes g + `lambda` g^2 (parameters now - those that it was computed "
             "on). `MomentumCorrection`: SGD's momentum is lowered by what staleness s adds by "
             "itself, s / (1 + s), to 0 at least.")
          .Required()
          .Proto("rule")
          .OneOf({"None", "Damped", "Inverse", "DelayCompensation", "MomentumCorrection"})
          .Context(kAsynchronous)
          .Example("Inverse")
          .Invalid("DCASGD", "must be one of None, Damped, Inverse, DelayCompensation"));
  fields->push_back(
      Number("spec.training.stalenessRule.factor",
             "Damped: how much each update of staleness counts.")
          .DefaultBy("name", {{{"Damped"}, "0.1"}})
          .Min(0)
          .Max(1e6)
          .Context(
              R"({"spec":{"training":{"mode":"Asynchronous","stalenessRule":{"name":"Damped"}}}})")
          .Example("0.5")
          .Invalid("-1", "at least 0"));
  fields->push_back(
      Number("spec.training.stalenessRule.lambda", "DelayCompensation: how much is compensated.")
          .DefaultBy("name", {{{"DelayCompensation"}, "0.04"}})
          .Min(0)
          .Max(1e6)
          .Context(
              R"({"spec":{"training":{"mode":"Asynchronous","stalenessRule":{"name":"DelayCompensation"}}}})")
          .Example("0.1")
          .Invalid("-1", "at least 0"));
}

void AddTrainingDetails(std::vector<Field>* fields) {
  fields->push_back(
      String("spec.training.determinism",
             "`BitExact`: gradients are added in a fixed order, so that the parameters have the "
             "same bits for every number of workers and shards and any crashes; costs speed. "
             "`Default`: the same up to rounding.")
          .Fixed()
          .Proto("bit_exact")
          .Default(R"("Default")")
          .OneOf({"Default", "BitExact"})
          .Example("BitExact")
          .Invalid("Bitexact", "did you mean `BitExact`?"));
  fields->push_back(String("spec.training.aggregation",
                           "`Mean`: the mean gradient over the samples of a step. `Sum`: the sum "
                           "over microbatches of each one's mean gradient.")
                        .Fixed()
                        .Default(R"("Mean")")
                        .OneOf({"Mean", "Sum"})
                        .Example("Sum"));
  fields->push_back(String("spec.training.nonFinite",
                           "What a gradient with NaN or infinity does. `Fail`: the job fails and "
                           "names the tensor. `Skip`: the step is skipped, for all parameters.")
                        .Fixed()
                        .Default(R"("Fail")")
                        .OneOf({"Fail", "Skip"})
                        .Example("Skip"));
  AddExecution(fields);
  AddCompression(fields);
  AddStalenessRule(fields);
  AddStragglers(fields);
  AddDense(fields);
  fields->push_back(Integer("spec.training.threads",
                            "Threads with which a worker computes. With more than one, BitExact "
                            "holds only among runs of the same number.")
                        .Implied("under `sluice run` cores / workers of the job, on a cluster the "
                                 "CPUs of its container, by hand all cores; 1 with BitExact")
                        .Min(1)
                        .Max(1024)
                        .Example("2")
                        .Invalid("0", "at least 1"));
  fields->push_back(Number("spec.training.stepDelaySeconds",
                           "Waits so long in each step: slows a job down for demonstrations.")
                        .Default("0")
                        .Min(0)
                        .Max(60)
                        .Example("0.1")
                        .Invalid("61", "at most 60"));
  fields->push_back(Object("spec.training.target", "Stop early, when an evaluation reaches this."));
  fields->push_back(String("spec.training.target.metric",
                           "`accuracy` in percent, `loss`, or `perplexity` of a "
                           "language model, e ^ loss.")
                        .Required()
                        .OneOf({"accuracy", "loss", "perplexity"})
                        .Context(kTarget)
                        .Example("loss")
                        .Invalid("auc", "must be one of accuracy, loss, perplexity"));
  fields->push_back(String("spec.training.target.goal", "On which side of `value` the goal lies.")
                        .Required()
                        .OneOf({"AtLeast", "AtMost"})
                        .Context(kTarget)
                        .Example("AtMost")
                        .Invalid("\">=\"", "must be one of AtLeast, AtMost"));
  fields->push_back(Number("spec.training.target.value", "The value to reach.")
                        .Required()
                        .Context(kTarget)
                        .Example("0.25")
                        .Invalid("high", "must be a number"));
}

void AddSizesAndCheckpoint(std::vector<Field>* fields) {
  AddCoordinator(fields);
  fields->push_back(
      Object("spec.parameterServer", "The shards that hold the parameters.").Default("{}"));
  fields->push_back(Integer("spec.parameterServer.replicas", "How many shards.")
                        .Default("1")
                        .Min(1)
                        .Max(1024)
                        .Example("2")
                        .Invalid("0", "at least 1")
                        .Invalid("two", "must be an integer"));
  AddReplicaBounds("spec.parameterServer", "shards", fields);
  fields->push_back(
      Integer("spec.parameterServer.partitions",
              "Parameters are cut into so many partitions, the units of ownership. Fixed for the "
              "life of the job, so it bounds the number of shards that it can grow to.")
          .Fixed()
          .Default("64")
          .Min(1)
          .Max(1024)
          .Example("256")
          .Invalid("2048", "at most 1024"));
  AddPodTemplate("spec.parameterServer", "ps", fields);
  fields->push_back(Object("spec.worker", "The workers that compute gradients.").Default("{}"));
  fields->push_back(Integer("spec.worker.replicas", "How many workers.")
                        .Default("1")
                        .Min(1)
                        .Max(1024)
                        .Example("4")
                        .Invalid("0", "at least 1"));
  AddReplicaBounds("spec.worker", "workers", fields);
  fields->push_back(
      List("spec.worker.command",
           "The program that is started as a worker, and its arguments; for a Custom model. It "
           "finds the job by its environment (SLUICE_COORDINATOR, SLUICE_JOB, "
           "SLUICE_WORKER_INDEX), in Python by `sluice.join()`.")
          .Size(1, 256)
          .Context(kCustom)
          .Example("[python3, train.py]")
          .Invalid("[]", "must have at least 1 item")
          .Invalid("python3 train.py", "must be a list"));
  fields->push_back(String("spec.worker.command[]", "The program, or one argument.").Size(1, 4096));
  AddPodTemplate("spec.worker", "worker", fields);
  fields->push_back(
      Object("spec.checkpoint", "Checkpoints, from which the job goes on after a loss.")
          .Default("{}"));
  fields->push_back(
      Object("spec.checkpoint.storage",
             "Where checkpoints are kept. A cluster needs a claim, or a `path`: where neither is "
             "set, it may be given later; then it stays.")
          .FixedUnless("oldSelf.storage.type == 'Local' && !has(oldSelf.storage.path)")
          .Proto(".")
          .Default("{}"));
  fields->push_back(
      String(
          "spec.checkpoint.storage.type",
          "`Local`: a directory of the file system. `PersistentVolumeClaim`: a claim of the job's "
          "namespace, which all of its pods mount; on one machine the job's own directory.")
          .Default(R"("Local")")
          .OneOf({"Local", "PersistentVolumeClaim"})
          .Example("Local")
          .Invalid("S3", "must be one of Local, PersistentVolumeClaim"));
  fields->push_back(
      String(
          "spec.checkpoint.storage.path",
          "Local: the directory, which is made where it is missing. All processes of the job must "
          "reach it.")
          .Proto("directory")
          .Implied("in the job's own directory, `.sluice/<name>/checkpoints`")
          .Path()
          .Example("/var/lib/checkpoints/fashion-mnist")
          .Invalid("~/checkpoints", "are not expanded"));
  AddCheckpointClaim(fields);
  fields->push_back(Integer("spec.checkpoint.intervalSteps",
                            "A checkpoint every so many steps. This or `intervalSeconds`.")
                        .Min(1)
                        .Example("1000")
                        .Invalid("0", "at least 1"));
  fields->push_back(Number("spec.checkpoint.intervalSeconds",
                           "A checkpoint every so many seconds. This or `intervalSteps`.")
                        .DefaultWhereAllowed("300")
                        .Implied("where `intervalSteps` is unset")
                        .Above(0)
                        .Max(1e6)
                        .Example("60")
                        .Invalid("0", "must be more than 0"));
  fields->push_back(Integer("spec.checkpoint.maxToKeep", "The newest so many checkpoints are kept.")
                        .Default("3")
                        .Min(1)
                        .Max(1000)
                        .Example("5")
                        .Invalid("0", "at least 1"));
  fields->push_back(String("spec.checkpoint.restoreFrom",
                           "Begin with the newest checkpoint in this directory of another job, in "
                           "place of random parameters.")
                        .Fixed()
                        .Path()
                        .Example("/var/lib/checkpoints/pretrained"));
  fields->push_back(
      String("spec.checkpoint.onExisting",
             "What the job does with the checkpoints of an earlier job of its name (an object that "
             "was deleted and made again, or a finished job that is run again with more steps). "
             "`Resume`: continue from them, also from the end of a finished job; the settings that "
             "a checkpoint depends on must be the same. `Fail`: fail, and change nothing. "
             "`Replace`: train from the beginning; the earlier job's checkpoints are removed when "
             "the first new one is complete.")
          .Implied("continue from an unfinished job with the same settings, else as `Fail`")
          .OneOf({"Resume", "Fail", "Replace"})
          .Example("Resume")
          .Invalid("resume", "did you mean `Resume`?")
          .Invalid("Overwrite", "must be one of Resume, Fail, Replace"));
}

void AddLimits(std::vector<Field>* fields) {
  fields->push_back(
      Integer("spec.backoffLimit",
              "How many times the job may be restored from a checkpoint, after the loss "
              "of a shard or of the coordinator, before it fails.")
          .Default("6")
          .Min(0)
          .Max(1000)
          .Example("0")
          .Invalid("-1", "at least 0"));
  fields->push_back(
      Object("spec.timeouts", "When a process counts as lost. The defaults suit most jobs.")
          .Default("{}"));
  const auto timeout = [&](const char* name, const char* description, const char* value) {
    fields->push_back(Number(std::string("spec.timeouts.") + name, description)
                          .Default(value)
                          .Above(0)
                          .Max(86400)
                          .Example(value)
                          .Invalid("0", "must be more than 0")
                          .Invalid("1s", "must be a number"));
  };
  timeout("heartbeatSeconds", "Time between two signs of life of a process.", "0.5");
  timeout("suspectSeconds", "A worker whose connection broke has so long to return.", "1");
  timeout("heartbeatTimeoutSeconds", "A process that gives no sign of life for so long is lost.",
          "5");
  timeout("pauseSeconds", "A shard that does not answer a pause for so long is lost.", "5");
  timeout("initializationSeconds",
          "A worker that does not bring the initial parameters in so long is replaced.", "120");
  timeout("evaluationSeconds",
          "What a worker does not evaluate in so long is given to another one.", "600");
  timeout("suspendCheckpointSeconds",
          "A job that is suspended has so long for its last checkpoint.", "60");
  fields->push_back(
      Number("spec.timeouts.weightsSeconds",
             "Synchronous: a shard that owes a worker a version for so long, while it has it or "
             "says nothing, is lost. Unset: no limit.")
          .Above(0)
          .Max(86400)
          .Example("35")
          .Invalid("0", "must be more than 0"));
  fields->push_back(
      Number(
          "spec.timeouts.gradientsSeconds",
          "A member that contributes nothing for so long is lost: a step waits for its gradients, "
          "or it holds samples and applies none. It must be longer than a step takes the slowest "
          "worker. Unset: 600 (with aggregation AllReduce: no limit).")
          .Above(0)
          .Max(86400)
          .Example("15")
          .Invalid("0", "must be more than 0"));
  fields->push_back(
      Number("spec.timeouts.startSeconds",
             "A process that has not registered with the coordinator so long after its start is "
             "killed and started again. Unset: 60, and 600 for a worker that is a command of the "
             "job's own.")
          .Above(0)
          .Max(86400)
          .Example("60")
          .Invalid("0", "must be more than 0"));
  fields->push_back(Boolean("spec.suspend",
                            "Save a checkpoint and stop all processes, until this is false again; "
                            "the job then goes on at the same sample.")
                        .Default("false")
                        .Example("true"));
  fields->push_back(
      Integer("spec.activeDeadlineSeconds", "A job that runs for longer fails. Unset: no limit.")
          .Min(1)
          .Max(1e9)
          .Example("86400")
          .Invalid("0", "at least 1"));
  AddClusterLimits(fields);
}

}  // namespace

std::vector<Field> TrainingFields() {
  std::vector<Field> fields;
  AddLossAndOptimizer(&fields);
  AddScheduleAndGroups(&fields);
  AddTrainingBasics(&fields);
  AddTrainingDetails(&fields);
  AddSizesAndCheckpoint(&fields);
  AddLimits(&fields);
  return fields;
}

}  // namespace sluice::api
