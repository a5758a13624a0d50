#ifndef SLUICE_SERVICES_WORKER_COLLECTIVE_TESTING_TABLES_H_
#define SLUICE_SERVICES_WORKER_COLLECTIVE_TESTING_TABLES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "proto/model.pb.h"

namespace sluice::worker {

// Tensors "t1", "t2", ... of one dimension: number of elements and data type.
inline v1::TensorTable MakeTable(const std::vector<std::pair<int64_t, v1::DataType>>& tensors) {
  v1::TensorTable table;
  for (const auto& [elements, dtype] : tensors) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name("t" + std::to_string(table.tensors_size()));
    tensor.add_shape(elements);
    tensor.set_dtype(dtype);
  }
  return table;
}

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_TESTING_TABLES_H_
