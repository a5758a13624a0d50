// The state that recurrent models carry from a sample to the one behind it in its stream.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_CARRIED_STATE_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_CARRIED_STATE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "services/worker/data/batch.h"

namespace sluice {

// State is known where this process computed the sample before, and is zeros elsewhere: it is never
// sent, and nobody waits for it. So it makes gradients better where work stays where it was, and is
// no part of what a step means.
//
// Of each stream the states behind the two samples computed last are kept. So a sample that is
// computed again (a step that a change of the view took back) begins as it did. One thread at a
// time.
class CarriedState {
 public:
  // Numbers of one sample's state.
  explicit CarriedState(size_t size) : size_(size) {}

  size_t size() const { return size_; }

  // Writes the state in front of each sample, one behind the other: `out` has size() numbers for
  // each of them.
  void Load(absl::Span<const StreamPlace> places, absl::Span<float> out) const;

  // Keeps the states behind these samples.
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
