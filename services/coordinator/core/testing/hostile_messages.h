// Lying processes for tests: a number that no field may have, and any registration.
#ifndef SLUICE_SERVICES_COORDINATOR_CORE_TESTING_LIAR_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_TESTING_LIAR_H_

#include <cstdint>
#include <limits>
#include <utility>

#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {

// A number that no field may have.
inline constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

// The registration of a process that the job does not know.
inline v1::Register Stranger(const FakeJob& job, v1::Role role, uint32_t index,
                             uint64_t incarnation) {
  v1::Register request;
  request.set_job(JobName(job.spec));
  request.set_wire_version(1);
  request.mutable_process()->set_role(role);
  request.mutable_process()->set_index(index);
  request.mutable_process()->set_incarnation(incarnation);
  return request;
}

// A process that registers with any content.
class Liar final : public FakeProcess {
 public:
  Liar(FakeJob* job, v1::Register request)
      : FakeProcess(job, request.process().role(), request.process().index(),
                    request.process().incarnation()),
        request(std::move(request)) {}
  void OnMessage(const v1::CoordinatorMessage& message) override {
    if (message.has_refusal()) refusal = message.refusal();
  }
  v1::Register Registration() const override { return request; }
  void Announce() override {}

  v1::Register request;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_TESTING_LIAR_H_
