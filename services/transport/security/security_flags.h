// The flags by which a program of a job is told how to speak with the job's other processes.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_SECURITY_FLAGS_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_SECURITY_FLAGS_H_

#include <CLI/CLI.hpp>

#include "services/transport/security/transport_security.h"

namespace sluice::security {

// Adds --tls-directory, --secret-file and --insecure, of which TransportSecurity::OpenChosen wants
// exactly one. `options` must outlive `app`.
void AddSecurityFlags(CLI::App* app, TransportSecurity::Options* options);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_SECURITY_FLAGS_H_
