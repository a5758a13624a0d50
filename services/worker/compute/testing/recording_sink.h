// A sink that keeps everything, for tests.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_TESTING_RECORDING_SINK_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_TESTING_RECORDING_SINK_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice {

// The elements of a tensor's bytes.
template <typename T = float>
std::vector<T> Elements(const absl::Cord& cord) {
  const std::string bytes(cord);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <typename T>
absl::Cord BytesOf(const std::vector<T>& values) {
  return absl::Cord(
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

class RecordingSink final : public GradientSink {
 public:
  void OnWeight(double weight) override { weights.push_back(weight); }
  void OnGradient(uint32_t tensor, absl::Cord gradient) override {
    EXPECT_TRUE(gradients.emplace(tensor, gradient).second) << "tensor " << tensor << " again";
    order.push_back(tensor);
  }
  void OnRowGradient(uint32_t tensor, std::vector<uint64_t> rows, absl::Cord values) override {
    EXPECT_TRUE(row_gradients.emplace(tensor, std::make_pair(std::move(rows), values)).second)
        << "tensor " << tensor << " again";
    order.push_back(tensor);
  }
  void OnNoGradient(uint32_t tensor) override {
    EXPECT_EQ(gradients.count(tensor), 0u) << "tensor " << tensor;
    without.push_back(tensor);
  }
  void OnBufferChange(uint32_t tensor, absl::Cord change) override {
    EXPECT_TRUE(changes.emplace(tensor, change).second) << "tensor " << tensor << " again";
  }

  std::vector<double> weights;
  std::map<uint32_t, absl::Cord> gradients;
  std::map<uint32_t, std::pair<std::vector<uint64_t>, absl::Cord>> row_gradients;
  std::vector<uint32_t> order;  // of the gradients
  std::vector<uint32_t> without;
  std::map<uint32_t, absl::Cord> changes;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_TESTING_RECORDING_SINK_H_
