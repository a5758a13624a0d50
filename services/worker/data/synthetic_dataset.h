// Samples made up on the fly, each a function of (seed, index): no file, any number, the same in
// every process and on every machine (integer arithmetic up to the last step).
//
//   classification  a normal cloud of standard deviation 0.3 around a centre for each class; the
//   centres' coordinates have
//                   standard deviation 0.9, so that clouds of eight dimensions or more hardly touch
//   regression      targets w.x + b of one number, with w and b drawn from the seed and normal x
//   vocabulary      sequences of random tokens, each with a random token to predict
//   no shape        neither features nor labels, for models that take no data
//
// "Normal" is the sum of four 16-bit uniform numbers, scaled: close enough, and exact. Held-out
// samples are those after the training samples: a tenth as many, or evaluation.maxSamples.
#ifndef SLUICE_SERVICES_WORKER_DATA_SYNTHETIC_DATASET_H_
#define SLUICE_SERVICES_WORKER_DATA_SYNTHETIC_DATASET_H_

#include <memory>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/worker/data/dataset.h"

namespace sluice {

// See OpenDataset.
absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticDataset(const v1::DataSpec& spec,
                                                              Split split);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_SYNTHETIC_DATASET_H_
