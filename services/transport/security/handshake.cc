#include "services/transport/security/handshake.h"

#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice::security {
namespace {

bool ContainsAny(const std::string& text, std::initializer_list<absl::string_view> words) {
  for (absl::string_view word : words) {
    if (absl::StrContains(text, word)) return true;
  }
  return false;
}

}  // namespace

std::optional<HandshakeProblem> FindHandshakeProblem(const absl::Status& status, bool tls) {
  if (!absl::IsUnavailable(status)) return std::nullopt;
  const std::string text = absl::AsciiStrToLower(status.message());
  if (!tls) {
    // A server with TLS closes, without an error, a connection that does not begin with a
    // handshake. The same happens if the server dies just then.
    if (!ContainsAny(text, {"socket closed", "connection reset by peer", "broken pipe"})) {
      return std::nullopt;
    }
    return HandshakeProblem{"this side uses plain text; the other side may use TLS",
                            "if the job uses TLS, start this process with --tls-directory too"};
  }

  if (ContainsAny(text, {"wrong version number"})) {
    return HandshakeProblem{
        "the other side uses plain text, and this side uses TLS",
        "start the other process with --tls-directory too, or this process without it"};
  }
  if (ContainsAny(text, {"certificate verify failed", "certificate_verify_failed"})) {
    return HandshakeProblem{
        "the other side's certificate was not issued by this job's authority, or has expired",
        "compare ca.crt on both sides, and renew tls.crt"};
  }
  if (ContainsAny(text, {"not one of job"})) {
    return HandshakeProblem{"the other side's certificate belongs to another job",
                            "compare the addresses and the --tls-directory of both sides"};
  }
  if (ContainsAny(text, {"hostname verification", "is not in peer certificate"})) {
    return HandshakeProblem{
        "the other side's certificate belongs to another role",
        "start the other process with the --tls-directory of its own certificate"};
  }
  if (ContainsAny(text, {"handshake", "socket closed", "connection reset by peer"})) {
    return HandshakeProblem{
        "the TLS handshake failed: perhaps this side's certificate was refused",
        "the other side's log names the reason; compare both sides' --tls-directory"};
  }
  return std::nullopt;
}

absl::Status ExplainHandshake(const absl::Status& status, bool tls, absl::string_view help) {
  const std::optional<HandshakeProblem> problem = FindHandshakeProblem(status, tls);
  if (!problem.has_value()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " (", problem->fact, "; ",
                                   help.empty() ? absl::string_view(problem->help) : help, ")"));
}

}  // namespace sluice::security
