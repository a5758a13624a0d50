// A word-level language model: embedding -> LSTM -> linear to the vocabulary, which are logits of
// the next word at each place. Dimensions: embedding (256), hidden (512), vocabulary (the data's,
// or 10,000).
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm.h>

#include <tuple>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/worker/models/architecture.h"

namespace sluice {
namespace {

class LstmLm final : public Architecture {
 public:
  LstmLm(int64_t embedding, int64_t hidden, int64_t vocabulary)
      : embedding_(embedding), hidden_(hidden), vocabulary_(vocabulary) {}

  std::vector<Parameter> Parameters() const override {
    const double bound = UniformBound(hidden_);
    return {{kEmbedding, {vocabulary_, embedding_}, 0},
            {"lstm.weight_ih_l0", {4 * hidden_, embedding_}, bound},
            {"lstm.weight_hh_l0", {4 * hidden_, hidden_}, bound},
            {"lstm.bias_ih_l0", {4 * hidden_}, bound},
            {"lstm.bias_hh_l0", {4 * hidden_}, bound},
            {"fc.weight", {vocabulary_, hidden_}, bound},
            {"fc.bias", {vocabulary_}, bound}};
  }

  std::vector<int64_t> InputShape() const override { return {}; }  // any length

  LossKind OwnLoss() const override { return LossKind::kCrossEntropy; }

  bool TakesTokens() const override { return true; }

  int64_t StateSize() const override { return 2 * hidden_; }

  at::Tensor Forward(absl::Span<const at::Tensor> p, const at::Tensor& input,
                     bool training) const override {
    at::Tensor state = p[1].new_zeros({input.size(0), StateSize()});
    return ForwardFrom(p, input, training, &state);
  }

  at::Tensor ForwardFrom(absl::Span<const at::Tensor> p, const at::Tensor& input, bool training,
                         at::Tensor* state) const override {
    const auto part = [&](int64_t begin) {
      return state->narrow(1, begin, hidden_).contiguous().unsqueeze(0);
    };
    const auto [output, hidden, cell] =
        at::lstm(LookUp(p[0], input), {part(0), part(hidden_)}, {p[1], p[2], p[3], p[4]},
                 /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0, training,
                 /*bidirectional=*/false, /*batch_first=*/true);
    *state = at::cat({hidden[0], cell[0]}, 1).detach();
    return at::linear(output, p[5], p[6]);
  }

  void FillInitial(const Parameter& parameter, uint64_t seed, uint64_t offset,
                   absl::Span<double> out) const override {
    if (parameter.name == kEmbedding) return FillNormal(seed, parameter.name, offset, out);
    Architecture::FillInitial(parameter, seed, offset, out);
  }

  std::vector<size_t> RowParameters() const override { return {0}; }

 private:
  // The gradient holds only the rows of the input.
  static at::Tensor LookUp(const at::Tensor& table, const at::Tensor& input) {
    return at::embedding(table, input, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                         /*sparse=*/true);
  }

  static constexpr char kEmbedding[] = "embedding.weight";

  const int64_t embedding_;
  const int64_t hidden_;
  const int64_t vocabulary_;
};

}  // namespace

ArchitectureOr MakeLstmLm(Dimensions& dimensions, const DataShape& data) {
  ASSIGN_OR_RETURN(const auto embedding, dimensions.Take("embedding", 256));
  ASSIGN_OR_RETURN(const auto hidden, dimensions.Take("hidden", 512));
  ASSIGN_OR_RETURN(const auto vocabulary,
                   dimensions.Take("vocabulary", data.outputs > 0 ? data.outputs : 10000));
  if (data.outputs > 0 && vocabulary != data.outputs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.dimensions.vocabulary is ", vocabulary, ", and the data's vocabulary has ",
        data.outputs, " words: should be the same, which is the default"));
  }
  return std::make_unique<LstmLm>(embedding, hidden, vocabulary);
}

}  // namespace sluice
