// The state that recurrent models carry from a sample to the next sample in its stream.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_CARRIED_STATE_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_CARRIED_STATE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "services/worker/data/batch.h"

namespace sluice {

// The state is known where this process computed the sample before, and is zeros elsewhere: it is
// never sent, and nothing waits for it. So it improves gradients where work stays in place, and is
// not part of a step's meaning.
//
// Keeps, for each stream, the states after the two samples computed last. So a sample that is
// computed again (in a step that a view change took back) starts with the same state. One thread at
// a time.
class CarriedState {
 public:
  // `size`: numbers of one sample's state.
  explicit CarriedState(size_t size) : size_(size) {}

  size_t size() const { return size_; }

  // Writes the state before each sample, one after another: `out` has size() numbers for each
  // sample.
  void Load(absl::Span<const StreamPlace> places, absl::Span<float> out) const;

  // Keeps the states after these samples.
  void Store(absl::Span<const StreamPlace> places, absl::Span<const float> states);

 private:
  struct Kept {
    uint64_t place = 0;
    std::vector<float> state;  // empty: nothing is kept
  };
  struct Stream {
    Kept newest;
    Kept older;
  };

  const size_t size_;
  absl::flat_hash_map<uint64_t, Stream> streams_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_CARRIED_STATE_H_
