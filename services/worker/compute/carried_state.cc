#include "services/worker/compute/carried_state.h"

#include <algorithm>
#include <utility>

namespace sluice {

void CarriedState::Load(absl::Span<const StreamPlace> places, absl::Span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0F);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto found = streams_.find(places[i].stream);
    if (found == streams_.end() || places[i].place == 0) continue;
    for (const Kept* kept : {&found->second.newest, &found->second.older}) {
      if (kept->state.empty() || kept->place != places[i].place - 1) continue;
      std::copy(kept->state.begin(), kept->state.end(), out.begin() + i * size_);
      break;
    }
  }
}

void CarriedState::Store(absl::Span<const StreamPlace> places, absl::Span<const float> states) {
  for (size_t i = 0; i < places.size(); ++i) {
    Stream& stream = streams_[places[i].stream];
    if (stream.newest.state.empty() || stream.newest.place != places[i].place) {
      std::swap(stream.newest, stream.older);
    }
    stream.newest.place = places[i].place;
    const auto state = states.subspan(i * size_, size_);
    stream.newest.state.assign(state.begin(), state.end());
  }
}

}  // namespace sluice
