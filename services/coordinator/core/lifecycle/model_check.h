// The job's model and data, on which all workers must agree, and with BitExact also what the bits
// of their results depend on.
//
// The first worker that is ready reports the model. One worker may be wrong, or hostile. So its
// model becomes the job's only if the job has a checkpoint of it, or once more than half of the
// wanted workers have reported the same model: then it is confirmed. Until then the coordinator
// cannot know which of two models is wrong, and the job fails; after that only the worker fails.
//
// It writes the attempt's model and length.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_MODEL_CHECK_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_MODEL_CHECK_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "services/common/check.h"
#include "services/coordinator/core/base/verdict.h"
#include "services/coordinator/core/facts/attempt.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"

namespace sluice::coordinator {

class ModelCheck {
 public:
  // All must outlive it.
  ModelCheck(const Facts& facts, JobModel* model, Output* output)
      : facts_(facts), model_(*model), output_(*output) {}

  // A valid report of a worker. The verdict fails the job if the first model cannot be trained, or
  // if two workers differ before the model is confirmed. Otherwise `*difference` is empty, or says
  // why the worker is to be refused.
  Verdict OnReady(const v1::ProcessId& worker, const v1::Ready& ready, std::string* difference,
                  absl::Time now);

  // The shards hold this model.
  void Confirm() {
    SLUICE_DCHECK(model_.ready.has_value(), "there is a model");
    confirmed_ = true;
  }

  // Names of the workers that were refused for another model.
  const std::set<std::string>& refused() const { return refused_; }

 private:
  Verdict Accept(const v1::Ready& ready, absl::Time now);
  Verdict Refuse(const v1::ProcessId& worker, absl::string_view what, absl::string_view difference,
                 absl::string_view remedy);
  std::string BitsDifference(const v1::Ready& ready) const;
  void Report(const v1::Ready& ready, absl::Time now);

  const Facts& facts_;
  JobModel& model_;
  Output& output_;
  std::set<uint32_t> reporters_;  // indexes of the workers that reported the model
  bool confirmed_ = false;
  std::set<std::string> refused_;
  std::set<std::string> notes_;  // that were reported
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_MODEL_CHECK_H_
