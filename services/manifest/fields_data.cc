// Rows of the table: the object itself, the model, the data.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/training_job.h"

namespace sluice::api {
namespace {

constexpr char kCsvData[] =
    R"({"spec":{"data":{"format":"CSV","source":{"path":"/data/adult.csv"},"csv":{"labelColumn":"income"}}}})";
// Bounds the cost of the rule that no column is in both lists (validations.cc): an API server
// refuses a definition whose rule could cost 10 million, a unit for each comparison.
constexpr size_t kMaxNumericColumns = 4096;
constexpr size_t kMaxCategoricalColumns = 1024;

constexpr char kSyntheticData[] =
    R"({"spec":{"data":{"format":"Synthetic","source":null,"synthetic":{"shape":[784]}}}})";
constexpr char kTextData[] =
    R"({"spec":{"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/data/train.txt"}}}})";
constexpr char kSyntheticTokens[] =
    R"({"spec":{"model":{"name":"lstm-lm"},"data":{"format":"Synthetic","source":null,"synthetic":{"shape":[20]}}}})";
constexpr char kNormalized[] =
    R"({"spec":{"data":{"normalize":{"mean":[0.1307],"std":[0.3081]}}}})";
constexpr char kEvaluated[] =
    R"({"spec":{"data":{"evaluation":{"source":{"path":"/data/test"},"intervalSteps":100}}}})";

bool IsDnsLabel(absl::string_view text) {
  const auto alphanumeric = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  return !text.empty() && alphanumeric(text.front()) && alphanumeric(text.back()) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return c == '-' || alphanumeric(c); });
}
constexpr char kDnsLabel[] = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
constexpr char kDnsLabelMessage[] =
    "must be lower-case letters, digits and `-`, with a letter or digit at both ends";

void AddMetadata(const FieldAdder& add) {
  add(String("apiVersion", "Version of this format.", Fixed(), Required(), OneOf({kApiVersion}),
             Good("sluice.dev/v1alpha1"), Bad("sluice.dev/v1", "must be sluice.dev/v1alpha1")));
  add(String("kind", "Kind of the object.", Fixed(), Required(), OneOf({kKind}),
             Good("TrainingJob"), Bad("Training", "must be TrainingJob")));
  add(Object("metadata", "Name and labels of the job.", Required()));
  add(String(
      "metadata.name",
      "Name of the job, unique in its namespace. Processes and pods are named after it: "
      "`<name>-worker-0`.",
      Fixed(), Required(), Size(1, 50), Pattern(kDnsLabel, IsDnsLabel, kDnsLabelMessage),
      Good("fashion-mnist"), Bad("Fashion_MNIST", "must be lower-case letters"),
      Bad("-a", "must be lower-case letters"),
      Bad("an-abundantly-and-unreasonably-long-name-of-a-training-job", "at most 50 characters"),
      Bad("123", "must be a string, not the number 123")));
  add(String("metadata.namespace", "Namespace of the job on a cluster.", Fixed(),
             Default(R"("default")"), Size(1, 63), Pattern(kDnsLabel, IsDnsLabel, kDnsLabelMessage),
             Good("team-a"), Bad("Team A", "must be lower-case letters")));
  add(Map("metadata.labels", "Labels of the object.", Size(0, 64), Good("{team: vision}"),
          Bad("[a]", "must be a map")));
  add(String("metadata.labels{}", "Value of a label.", Size(0, 63)));
  add(Map("metadata.annotations", "Annotations of the object.", Size(0, 64),
          Good("{note: first}")));
  add(String("metadata.annotations{}", "Value of an annotation.", Size(0, 65536)));
  add(Object("spec", "The model, its data, and how to train it.", Required()));
  add(String("spec.image",
             "Container image of the job's pods. Unset: the operator's default image of the role.",
             ClusterOnly(), Size(1, 512), Good("registry.example.com/sluice:v0.1"),
             Bad("\"\"", "must not be empty")));
}

void AddModel(const FieldAdder& add) {
  add(Object("spec.model", "The model to train.", Required()));
  add(String("spec.model.type",
             "`Builtin`: one of Sluice's own models. `TorchScript`: a file that `torch.jit.save` "
             "wrote. `Custom`: the model of the program `worker.command`, for example in Python.",
             Shapes(), OneOf({"Builtin", "TorchScript", "Custom"}), Default(R"("Builtin")"),
             Good("Builtin"), Bad("Torchscript", "did you mean `TorchScript`?")));
  add(String("spec.model.name",
             "The built-in model. `convnet`: a tiny convolutional net for 28x28 greyscale images. "
             "`mnist-net`: the larger net of PyTorch's parameter server tutorial (RPC). `mlp`: "
             "784-256-10. `lstm-lm`: a word-level language model, embedding, LSTM and linear. "
             "`linear`: linear regression. `logistic`: logistic regression. `additive`: w <- w + "
             "(1e-3 w + 1), for tests: the result is known in advance.",
             Shapes(),
             OneOf({"convnet", "mnist-net", "mlp", "lstm-lm", "linear", "logistic", "additive"}),
             Good("mnist-net"), Bad("mnistnet", "did you mean `mnist-net`?"),
             Bad("resnet50", "must be one of convnet, mnist-net")));
  add(String("spec.model.path", "The TorchScript file.", Shapes(), Path(),
             Context(R"({"spec":{"model":{"type":"TorchScript","name":null}}})"),
             Good("models/net.pt"), Bad("~/net.pt", "are not expanded")));
  add(Map("spec.model.dimensions",
          "Sizes of a built-in model, by name: `dim` of additive, which needs it; `in` of "
          "logistic; `in` and `out` of linear; `in`, `hidden` (256) and `out` of mlp; `embedding` "
          "(256), `hidden` (512) and `vocabulary` (the data's) of lstm-lm. Unset `in` and `out` "
          "follow from the data.",
          Shapes(), Size(0, 16), Good("{dim: 10}"), Bad("{dim: ten}", "must be an integer")));
  add(Integer("spec.model.dimensions{}", "One size.", Min(1), Max(1e9)));
  add(String(
      "spec.model.dtype",
      "Type of the parameters. Unset: the model's own, which is float32 for built-in models.",
      Shapes(), OneOf({"float32", "float64", "bfloat16"}), Good("float64"),
      Bad("float16", "must be one of float32, float64, bfloat16")));
  add(String(
      "spec.model.device",
      "The device on which workers compute: `cpu`, or, if LibTorch was built with CUDA, `cuda` or "
      "`cuda:<number>`.",
      Default(R"("cpu")"), Size(1, 16),
      Pattern("^(cpu|cuda(:[0-9]+)?)$", IsDeviceName, "must be `cpu`, `cuda` or `cuda:<number>`"),
      Good("cuda:0"), Bad("gpu", "must be `cpu`, `cuda`")));
  add(String("spec.model.embeddings",
             "What workers and shards exchange of an embedding table. `Rows`: only the rows of the "
             "parameters and of the gradient that a worker's samples use, if the model and the "
             "processes support it. `Dense`: the whole table. The result is the same.",
             Shapes(), OneOf({"Rows", "Dense"}), Default(R"("Rows")"), Good("Dense"),
             Bad("Sparse", "must be one of Rows, Dense")));
  AddStages(add);
}

void AddDataBasics(const FieldAdder& add) {
  add(Object("spec.data", "The samples to train on.", Required()));
  add(String("spec.data.format",
             "`IDX`: MNIST-style IDX files. `CSV`: a table. `Text`: a text, for language models. "
             "`Synthetic`: generated from a seed. Files may be gzip-compressed (.gz). `Custom`: "
             "the program `worker.command` reads its own data.",
             Fixed(), Required(), OneOf({"IDX", "CSV", "Text", "Synthetic", "Custom"}), Good("IDX"),
             Bad("idx", "did you mean `IDX`?")));
  add(Object("spec.data.source", "Where the data is. For IDX, CSV and Text.", Fixed()));
  add(String("spec.data.source.path",
             "A file, or a directory with files of the usual names (`train-images-idx3-ubyte`, "
             "`train-labels-idx1-ubyte`, with or without .gz), or the address of a file with its "
             "checksum, https://HOST/FILE#sha256=CHECKSUM, which is downloaded once per machine.",
             Required(), Path(), Good("/usr/share/datasets/fashion-mnist"),
             Bad("~/data", "are not expanded"), Bad("\"\"", "must not be empty")));
  add(String("spec.data.source.labels",
             "IDX: the file of the labels, or its address. Unset: the file of the usual name in "
             "the directory of the images.",
             Path(), Good("/data/train-labels-idx1-ubyte.gz")));
  AddDataVolume(add);
  add(Object("spec.data.normalize",
             "Features become (x - mean) / std; bytes of IDX files are scaled to [0, 1] first. One "
             "number for all features, or one for each index of a sample's first dimension "
             "(channel, or column of a CSV file).",
             Fixed()));
  for (const bool is_mean : {true, false}) {
    const std::string path = is_mean ? "spec.data.normalize.mean" : "spec.data.normalize.std";
    add(List(path, is_mean ? "The numbers to subtract." : "The divisors.", Required(),
             Size(1, 4096), Context(kNormalized), Good(is_mean ? "[0.2860]" : "[0.3530]"),
             Bad("[]", "must have at least 1 item"), Bad("0.5", "must be a list")));
    add(is_mean ? Number(path + "[]", "One number.")
                : Number(path + "[]", "One number.", Above(0)));
  }
  add(Boolean(
      "spec.data.shuffle",
      "Whether each epoch uses the samples in a different order, drawn from `training.seed`.",
      Fixed(), InverseOf("no_shuffle"), Default("true"), Good("false"),
      Bad("\"no\"", "must be true or false")));
  add(String("spec.data.partitioning",
             "`Shared`: an epoch is one pass over the data, divided among the workers, and uses "
             "each sample once. `PerWorker`: every worker uses all of the data, in its own order, "
             "and may join at any time. An epoch is then as many samples as the data has, counted "
             "over all workers. Not with BitExact.",
             Fixed(), Default(R"("Shared")"), OneOf({"Shared", "PerWorker"}), Good("PerWorker"),
             Bad("Sharded", "must be one of Shared, PerWorker")));
  add(Integer("spec.data.maxSamples", "Use only this many samples from the beginning. Unset: all.",
              Fixed(), Min(1), Good("10000"), Bad("0", "at least 1")));
  add(Integer("spec.data.classes",
              "Number of classes. Unset: the largest label of the training data + 1.", Fixed(),
              Min(1), Max(1 << 24), Good("10"), Bad("0", "at least 1")));
}

void AddCsv(const FieldAdder& add) {
  add(Object("spec.data.csv", "How to read a CSV file. Only with format CSV.", Fixed()));
  add(String("spec.data.csv.labelColumn", "The column to predict.", Required(), Size(1, 253),
             Context(kCsvData), Good("income"), Bad("3", "must be a string")));
  for (const bool numeric : {true, false}) {
    const std::string path =
        numeric ? "spec.data.csv.numericColumns" : "spec.data.csv.categoricalColumns";
    add(List(
        path,
        numeric
            ? "Columns of numbers, at most 4,096. If no columns are listed at all: every column "
              "except the label."
            : "Columns whose values are names, at most 1,024; see `categories`.",
        Size(0, numeric ? kMaxNumericColumns : kMaxCategoricalColumns), Context(kCsvData),
        Good(numeric ? "[age, hours-per-week]" : "[education, occupation]"),
        Bad("[1]", "must be a string"), Bad("age", "must be a list")));
    add(String(path + "[]", "Name of a column.", Size(1, 253)));
  }
  add(String("spec.data.csv.categories",
             "How a categorical column is encoded. `OneHot`: one feature for each value. `Index`: "
             "one feature, the value's index in the vocabulary.",
             OneOf({"OneHot", "Index"}), Default(R"("OneHot")"), Context(kCsvData), Good("Index"),
             Bad("Onehot", "did you mean `OneHot`?")));
  add(Boolean(
      "spec.data.csv.standardize",
      "Numeric columns become (x - mean) / standard deviation, both computed on the training data.",
      Default("false"), Context(kCsvData), Good("true")));
  add(Boolean("spec.data.csv.regression",
              "Whether the label is a number. Otherwise it is the name of a class.",
              Default("false"), Context(kCsvData), Good("true")));
  add(Boolean("spec.data.csv.header",
              "Whether the first line has the names of the columns. Without it the names are "
              "\"0\", \"1\", and so on.",
              InverseOf("no_header"), Default("true"), Context(kCsvData), Good("false")));
  add(String(
      "spec.data.csv.delimiter", "The character between two values.", Default(R"(",")"), Size(1, 1),
      Pattern(
          "^[ -~\\t]$",
          [](absl::string_view text) {
            return text.size() == 1 && (absl::ascii_isprint(text[0]) || text[0] == '\t');
          },
          "must be one printable ASCII character, or a tab"),
      Context(kCsvData), Good("\";\""), Good("\"\\t\""), Bad("\"||\"", "at most 1 character"),
      Bad("\"\\u0001\"", "must be one printable ASCII character"),
      Bad("\"\\n\"", "must be one printable ASCII character")));
}

void AddText(const FieldAdder& add) {
  add(Object("spec.data.text",
             "How to divide a text into samples. Only with format Text. Words are separated by "
             "white space; each line ends with the word `<eos>`.",
             Fixed()));
  add(Integer("spec.data.text.sequenceLength",
              "Words per sample. The model learns to predict the word after each of them.",
              Default("35"), Min(1), Max(1 << 20), Context(kTextData), Good("20"),
              Bad("0", "at least 1")));
  add(Integer("spec.data.text.vocabularySize",
              "The maximum number of words, including `<unk>` and `<eos>`. The most frequent words "
              "of the training text are used; all others become `<unk>`.",
              Default("10000"), Min(3), Max(1 << 24), Context(kTextData), Good("5000"),
              Bad("2", "at least 3")));
  add(String("spec.data.text.vocabulary",
             "A file of the words, one per line, first `<unk>`, then `<eos>`, such as the "
             "`vocabulary.txt` in the directory of a job's checkpoints. Unset: taken from the "
             "training text.",
             Path(), Context(kTextData), Good("/data/vocabulary.txt"),
             Bad("~/words.txt", "are not expanded")));
  add(String(
      "spec.data.text.state",
      "The state with which the model begins a sample in training. `Zero`: zero. `Carried`: its "
      "state at the end of the previous sample, if the same worker computed that sample, otherwise "
      "zero. Evaluation always begins with zero.",
      OneOf({"Zero", "Carried"}), Default(R"("Zero")"),
      Context(
          R"({"spec":{"model":{"name":"lstm-lm"},"data":{"format":"Text","shuffle":false,"source":{"path":"/data/train.txt"}}}})"),
      Good("Carried"), Bad("carried", "did you mean `Carried`?")));
}

void AddSyntheticAndEvaluation(const FieldAdder& add) {
  add(Object("spec.data.synthetic", "The samples to generate. Only with format Synthetic.",
             Fixed()));
  add(Integer("spec.data.synthetic.samples", "Number of samples.", Default("10000"), Min(1),
              Context(kSyntheticData), Good("1000"), Bad("0", "at least 1")));
  add(List("spec.data.synthetic.shape",
           "Shape of one sample. Unset: samples are empty, for models that take no data.",
           Size(1, 8), Context(kSyntheticData), Good("[1, 28, 28]"), Bad("[1, 0]", "at least 1"),
           Bad("[1, 1, 1, 1, 1, 1, 1, 1, 1]", "at most 8 items")));
  add(Integer("spec.data.synthetic.shape[]", "Size of one dimension.", Min(1), Max(1e6)));
  add(Integer("spec.data.synthetic.classes",
              "Number of classes of the labels; 0: labels are numbers.", Default("10"), Min(0),
              Max(1e6), Context(kSyntheticData), Good("0"), Bad("-1", "at least 0")));
  add(Integer("spec.data.synthetic.vocabulary",
              "Samples are random sequences over this many different words, each followed by a "
              "random word to predict. `shape` is the length of a sequence, e.g. [20], and "
              "`classes` is ignored. For lstm-lm.",
              Min(2), Max(1 << 24), Context(kSyntheticTokens), Good("10000"),
              Bad("1", "at least 2")));
  add(Integer("spec.data.synthetic.seed", "The seed that generates the samples.", Default("0"),
              Min(0), Context(kSyntheticData), Good("7")));
  add(Object("spec.data.evaluation",
             "Evaluation on samples that are not used for training, at one version of the "
             "parameters, while training continues. Without an interval, the model is evaluated "
             "once, at the end; without this object, never."));
  add(Object("spec.data.evaluation.source",
             "Where the samples are, in the format of the training data. IDX, unset: the files of "
             "the usual names in the directory of the training data.",
             Context(kEvaluated)));
  add(String("spec.data.evaluation.source.path",
             "A file, or a directory with files of the usual names (`t10k-images-idx3-ubyte`, "
             "`t10k-labels-idx1-ubyte`, with or without .gz).",
             Required(), Path(), Context(kEvaluated), Good("/usr/share/datasets/fashion-mnist")));
  add(String("spec.data.evaluation.source.labels",
             "IDX: the file of the labels. Unset: the file of the usual name in the directory of "
             "the images.",
             Path(), Context(kEvaluated), Good("/data/t10k-labels-idx1-ubyte.gz")));
  add(Integer("spec.data.evaluation.intervalSteps", "Steps between evaluations.", Min(1),
              Context(kEvaluated), Alias("every"), Good("100"), Bad("0", "at least 1")));
  add(Number("spec.data.evaluation.intervalSeconds", "Seconds of training between evaluations.",
             Above(0), Max(1e6), Context(kEvaluated), Good("30"),
             Bad("-1", "must be more than 0")));
  add(Integer("spec.data.evaluation.maxSamples",
              "The number of samples to evaluate during training, from the beginning; at the end "
              "all are evaluated. Unset: all. The result on a few hundred samples is less exact, "
              "and often looks better than on all. Synthetic data: the number of samples to "
              "generate.",
              Min(1), Context(kEvaluated), Good("2000")));
}

}  // namespace

bool IsDeviceName(absl::string_view text) {
  if (text == "cpu" || text == "cuda") return true;
  if (text.substr(0, 5) != "cuda:" || text.size() == 5) return false;
  return std::all_of(text.begin() + 5, text.end(), absl::ascii_isdigit);
}

std::vector<Field> ObjectAndDataFields() {
  std::vector<Field> fields;
  const FieldAdder add(&fields);
  AddMetadata(add);
  AddModel(add);
  AddDataBasics(add);
  AddCsv(add);
  AddText(add);
  AddSyntheticAndEvaluation(add);
  return fields;
}

}  // namespace sluice::api
