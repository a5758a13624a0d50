// The embedding tables of a TorchScript module of which a forward pass reads only rows that the
// input names, and these rows.
//
// Intuition. `self.users(x[:, 0].long())` reads the rows x[:, 0] of a table, whatever the
// parameters are. The graph of `forward` shows this: the indices of the lookup are computed from
// the input alone. So this part of the graph is extracted, and runs on a batch before its
// parameters are available. A table counts if it is used only in lookups: any other use (tied
// weights, a norm) reads all of it.
#ifndef SLUICE_SERVICES_WORKER_MODELS_ROW_LOOKUPS_H_
#define SLUICE_SERVICES_WORKER_MODELS_ROW_LOOKUPS_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <cstddef>
#include <vector>

#include "services/worker/models/model.h"

namespace sluice {

// Immutable; any thread.
class RowLookups {
 public:
  // `tensors` are those of the module. Code that cannot be analysed (lookups in a loop or a branch,
  // indices that are random or changed in place, a module that is passed on) counts as reading the
  // whole table.
  static RowLookups Find(const torch::jit::Module& module, const std::vector<ModelTensor>& tensors);

  // By place among the tensors, ascending.
  const std::vector<size_t>& tables() const { return tables_; }

  // For each of tables(), the rows that forward(input) looks up: int64, in one dimension; rows may
  // repeat, and may not exist. Throws where forward would.
  std::vector<at::Tensor> Rows(const at::Tensor& input) const;

 private:
  std::vector<size_t> tables_;
  torch::jit::Code code_;                // from the input to the indices of every lookup
  std::vector<size_t> table_of_output_;  // place in tables_
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_ROW_LOOKUPS_H_
