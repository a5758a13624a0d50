// One problem of a manifest, and its place.
#ifndef SLUICE_SERVICES_MANIFEST_PROBLEM_H_
#define SLUICE_SERVICES_MANIFEST_PROBLEM_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice::api {

struct Place {
  int line = 0;  // from 1; 0: unknown
  int column = 0;
};

struct Problem {
  Place place;
  std::string path;     // "spec.training.stpes"; empty: the manifest as a whole
  std::string message;  // "unknown field; did you mean `steps`?"

  // "job.yaml:7:3: spec.training.stpes: unknown field; did you mean `steps`?"
  std::string ToString(absl::string_view file) const {
    std::string text(file);
    if (place.line > 0) absl::StrAppend(&text, ":", place.line, ":", place.column);
    if (!text.empty()) text += ": ";
    if (!path.empty()) absl::StrAppend(&text, path, ": ");
    return text + message;
  }
};

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_PROBLEM_H_
