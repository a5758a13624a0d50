#include "services/coordinator/core/lifecycle/model_check.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/coordinator/core/decisions/codec_check.h"
#include "services/coordinator/core/decisions/model_difference.h"
#include "services/protocol/ids.h"
#include "services/protocol/kernels.h"
#include "services/protocol/layout.h"
#include "services/protocol/metric_name.h"
#include "services/protocol/samples/job_length.h"
#include "services/protocol/samples/smallest_batch.h"
#include "services/protocol/worker_limits.h"

namespace sluice::coordinator {

Verdict ModelCheck::OnReady(const v1::ProcessId& worker, const v1::Ready& ready,
                            std::string* difference, absl::Time now) {
  SLUICE_DCHECK(model_.ready.has_value() == model_.length.has_value(),
                "the job's length follows from its data");
  if (!model_.ready.has_value()) {
    if (Verdict verdict = Accept(ready, now); !verdict.ok()) return verdict;
  } else if (const std::string model = Difference(*model_.ready, ready); !model.empty()) {
    *difference = absl::StrCat("model or data differ from the job's: ", model);
    return Refuse(worker, "have different models or data", model,
                  "all workers of a job must run the same program on the same data");
  } else if (const std::string bits = BitsDifference(ready); !bits.empty()) {
    *difference = absl::StrCat("its results would not have the job's bits: ", bits);
    return Refuse(worker, "would compute different bits", bits,
                  "with `determinism: BitExact` all workers must have the same libraries, kernels "
                  "(`training.kernels`) and threads");
  }

  Report(ready, now);
  reporters_.insert(worker.index());
  confirmed_ = confirmed_ || 2 * reporters_.size() > facts_.wanted_workers;
  return Verdict::Continue();
}

// `what` and `remedy`: for the job's failure, if it is not known which of two workers is wrong.
Verdict ModelCheck::Refuse(const v1::ProcessId& worker, absl::string_view what,
                           absl::string_view difference, absl::string_view remedy) {
  const std::string name = ProcessName(worker);
  if (!confirmed_) {
    SLUICE_DCHECK(!reporters_.empty(), "the model was reported by a worker");
    return Verdict::Failed(absl::StrCat(name, " and worker-", *reporters_.begin(), " ", what, ": ",
                                        name, ": ", difference, "; ", remedy));
  }
  refused_.insert(name);
  return Verdict::Continue();
}

std::string ModelCheck::BitsDifference(const v1::Ready& ready) const {
  const v1::Environment& expected = model_.ready->environment();
  if (!facts_.job().training().bit_exact() || SameBits(expected, ready.environment())) return "";
  return absl::StrCat("it computes with ", EnvironmentText(ready.environment()), ", not with ",
                      EnvironmentText(expected));
}

// Workers of one program have the same notes.
void ModelCheck::Report(const v1::Ready& ready, absl::Time now) {
  for (const std::string& note : ready.notes()) {
    if (notes_.size() < size_t{kMaxNotes} && notes_.insert(note).second) output_.Warn(note, now);
  }
}

Verdict ModelCheck::Accept(const v1::Ready& ready, absl::Time now) {
  RETURN_IF_ERROR(ValidateTable(ready.table()),
                  Verdict::Failed(absl::StrCat("the model cannot be trained: ", _.message())));
  RETURN_IF_ERROR(CheckCodecs(facts_.job().training(), ready.table()),
                  Verdict::Failed(std::string(_.message())));
  ASSIGN_OR_RETURN(JobLength length, JobLength::Create(facts_.job(), ready.training_samples()),
                   Verdict::Failed(std::string(_.message())));
  RETURN_IF_ERROR(CheckSmallestBatch(facts_.job(), ready),
                  Verdict::Failed(std::string(_.message())));

  RETURN_IF_ERROR(CheckMetricsOfJob(facts_.job(), ready),
                  Verdict::Failed(std::string(_.message())));

  model_.ready = ready;
  model_.length = length;
  confirmed_ = facts_.storage.has_newest;
  if (std::string wrong = facts_.CheckCheckpoint(); !wrong.empty()) {
    return Verdict::Failed(std::move(wrong));
  }
  if (facts_.job().data().has_evaluation() && ready.evaluation_samples() == 0) {
    output_.Warn(
        "data.evaluation is set, and the workers have no evaluation data: nothing is evaluated",
        now);
  }
  return Verdict::Continue();
}

}  // namespace sluice::coordinator
