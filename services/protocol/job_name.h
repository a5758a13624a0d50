// The identity of a job: two jobs of one name, one after the other, have different ones.
#ifndef SLUICE_SERVICES_PROTOCOL_JOB_NAME_H_
#define SLUICE_SERVICES_PROTOCOL_JOB_NAME_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace sluice {

// "<namespace>/<name>/<uid>". Storage and registrations compare it.
inline std::string FullJobName(absl::string_view ns, absl::string_view name,
                               absl::string_view uid) {
  return absl::StrCat(ns, "/", name, "/", uid);
}

inline std::string FullJobName(const v1::JobSpec& job) {
  return FullJobName(job.namespace_(), job.name(), job.uid());
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_JOB_NAME_H_
