// Options of optimizers that a job may change when it continues: the state beside the parameters
// does not depend on them, and a step is computed with the values of its own time.
#ifndef SLUICE_SERVICES_PROTOCOL_CHANGEABLE_SETTINGS_H_
#define SLUICE_SERVICES_PROTOCOL_CHANGEABLE_SETTINGS_H_

#include "absl/strings/string_view.h"

namespace sluice {

// Whether the field ("spec.optimizer.learningRate", "spec.optimizer.groups[1].weightDecay",
// "spec.optimizer.schedule.gamma") is such an option, or a part of one.
bool IsChangeableSetting(absl::string_view path);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CHANGEABLE_SETTINGS_H_
