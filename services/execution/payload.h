// How many bytes of tensors a message of the service Stage carries, for its metrics.
#ifndef SLUICE_SERVICES_EXECUTION_PAYLOAD_H_
#define SLUICE_SERVICES_EXECUTION_PAYLOAD_H_

#include <cstdint>

#include "proto/stage.pb.h"

namespace sluice::stage {

// Names, shapes and handles do not count.
inline uint64_t PayloadOf(const v1::OpenStageRequest&) { return 0; }
inline uint64_t PayloadOf(const v1::OpenStageReply&) { return 0; }
inline uint64_t PayloadOf(const v1::ForwardRequest& request) {
  return request.input().data().size();
}
inline uint64_t PayloadOf(const v1::ForwardReply& reply) { return reply.output().data().size(); }
inline uint64_t PayloadOf(const v1::BackwardRequest& request) {
  return request.gradient().data().size();
}
inline uint64_t PayloadOf(const v1::BackwardReply& reply) { return reply.gradient().data().size(); }
inline uint64_t PayloadOf(const v1::ContextGradientsRequest&) { return 0; }
inline uint64_t PayloadOf(const v1::ContextGradientsReply& reply) {
  uint64_t bytes = 0;
  for (const auto& gradient : reply.gradients()) bytes += gradient.value().data().size();
  return bytes;
}

}  // namespace sluice::stage

#endif  // SLUICE_SERVICES_EXECUTION_PAYLOAD_H_
