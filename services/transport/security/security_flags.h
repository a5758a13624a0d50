// The flags that set how a program of a job communicates with the job's other processes.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_SECURITY_FLAGS_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_SECURITY_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/common.pb.h"
#include "services/common/io/file_util.h"
#include "services/transport/security/transport_security.h"

namespace sluice::security {

// Adds --tls-directory, --secret-file and --insecure, of which TransportSecurity::OpenChosen
// requires exactly one. If none is given, the environment's SLUICE_TLS_DIRECTORY and
// SLUICE_SECRET_FILE are used. `options` must outlive `app`.
void AddSecurityFlags(CLI::App* app, TransportSecurity::Options* options);

// "namespace/name" of "namespace/name/uid", as certificates name a job; empty, which means any job,
// if the namespace or the name is empty.
std::string JobOfIdentity(absl::string_view identity);

// As TransportSecurity::OpenChosen, for this process of the job "namespace/name/uid".
absl::StatusOr<std::shared_ptr<const TransportSecurity>> OpenForProcess(
    FileSystem* files, TransportSecurity::Options chosen, absl::string_view job, v1::Role role,
    uint32_t index);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_SECURITY_FLAGS_H_
