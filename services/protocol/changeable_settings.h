// What settings a checkpoint binds.
#ifndef SLUICE_SERVICES_PROTOCOL_CHANGEABLE_SETTINGS_H_
#define SLUICE_SERVICES_PROTOCOL_CHANGEABLE_SETTINGS_H_

#include "absl/strings/string_view.h"

namespace sluice {

// Whether the field ("spec.optimizer.learningRate", "spec.optimizer.groups[1].weightDecay",
// "spec.optimizer.schedule.gamma") is an option of optimizers that a job may change when it
// continues, or a part of one: the state beside the parameters does not depend on it, and a step is
// computed with the values of its own time.
bool IsChangeableSetting(absl::string_view path);

// Whether a checkpoint's parameters or optimizer state may have another form with another value of
// the field, so that no job with that value can begin with the checkpoint.
bool ShapesCheckpoint(absl::string_view path);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CHANGEABLE_SETTINGS_H_
