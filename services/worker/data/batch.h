// Samples in the form that a model takes: plain memory, no LibTorch.
#ifndef SLUICE_SERVICES_WORKER_DATA_BATCH_H_
#define SLUICE_SERVICES_WORKER_DATA_BATCH_H_

#include <cstdint>
#include <vector>

namespace sluice {

// The place of a sample in a stream of samples, each of which continues where the one before ended.
struct StreamPlace {
  uint64_t stream = 0;
  uint64_t place = 0;  // 0: the first of its stream
};

// Row-major, one sample after another. A batch has features or tokens, and class labels or targets,
// never both; a batch for a model that takes no data (`additive`) has none of these, only a number
// of samples.
struct Batch {
  uint64_t samples = 0;
  std::vector<int64_t> shape;    // of one sample, e.g. {1, 28, 28}
  std::vector<float> features;   // samples * product(shape)
  std::vector<int64_t> tokens;   // samples * product(shape), in [0, size of the vocabulary)
  int64_t class_width = 1;       // class labels of one sample: one for each token of a sequence
  std::vector<int64_t> classes;  // samples * class_width, in [0, number of classes)
  int64_t target_width = 0;      // k: numbers of one sample's target
  std::vector<float> targets;    // samples * target_width
  // One per sample if models carry state from sample to sample, else empty.
  std::vector<StreamPlace> places;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_BATCH_H_
