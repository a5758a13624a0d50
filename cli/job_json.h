#ifndef SLUICE_CLI_JOB_JSON_H_
#define SLUICE_CLI_JOB_JSON_H_

#include <google/protobuf/util/json_util.h>

#include <string>

#include "proto/job.pb.h"

namespace sluice::cli {

// The job as sluice-coordinator --job reads it.
inline std::string JobSpecToJson(const v1::JobSpec& job) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(job, &json, options);
  return json;
}

}  // namespace sluice::cli

#endif  // SLUICE_CLI_JOB_JSON_H_
