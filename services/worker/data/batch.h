// Some samples as a model takes them: plain memory, no LibTorch.
#ifndef SLUICE_SERVICES_WORKER_DATA_BATCH_H_
#define SLUICE_SERVICES_WORKER_DATA_BATCH_H_

#include <cstdint>
#include <vector>

namespace sluice {

// Row-major, one sample after the other. A batch has class labels or targets, never both; a batch
// for a model that takes no data (`additive`) has neither and no features, only a number of
// samples.
struct Batch {
  uint64_t samples = 0;
  std::vector<int64_t> shape;    // of one sample, e.g. {1, 28, 28}
  std::vector<float> features;   // samples * product(shape)
  std::vector<int64_t> classes;  // one per sample, in [0, number of classes)
  int64_t target_width = 0;      // k: numbers of one sample's target
  std::vector<float> targets;    // samples * target_width
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_BATCH_H_
