// Macros that return an error to the caller.
//
//   RETURN_IF_ERROR(files->CreateDirectories(path));
//   ASSIGN_OR_RETURN(const std::string text, files->Read(path, kMaxBytes));
//   ASSIGN_OR_RETURN(options.address, ListenAddress(flags.address));
//
// A last argument is returned in place of the error. In it, `_` is the error, an absl::Status:
//
//   ASSIGN_OR_RETURN(const v1::Claim claim, ClaimFromJson(text), Annotate(_, path));
//   RETURN_IF_ERROR(CheckNames(arguments), Complain(environment, _));  // returns an exit code

#ifndef SLUICE_SERVICES_COMMON_STATUS_MACROS_H_
#define SLUICE_SERVICES_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/base/optimization.h"
#include "absl/status/status.h"

// RETURN_IF_ERROR(expression[, error]): returns if the expression, an absl::Status, is not OK.
//
// The preprocessor splits arguments at each comma outside parentheses, so an expression with such a
// comma needs parentheses: RETURN_IF_ERROR((Check<A, B>(x))).
#define RETURN_IF_ERROR(...) SLUICE_RETURN_IF_ERROR_(__VA_ARGS__, _, )

// ASSIGN_OR_RETURN(left, expression[, error]): returns if the expression, an absl::StatusOr, is not
// OK; otherwise moves its value to the left side, an assignable expression or a declaration such as
// `const Layout layout`. Needs braces as the body of an `if` or a loop: it is several statements.
//
// For the comma's sake, a declared type with a comma is written `auto`.
#define ASSIGN_OR_RETURN(left, ...) \
  SLUICE_ASSIGN_OR_RETURN_(SLUICE_JOIN_(status_or_, __LINE__), left, __VA_ARGS__, _, )

// With two arguments `error` is the `_` that the macros above append.
#define SLUICE_RETURN_IF_ERROR_(expression, error, ...)                           \
  do {                                                                            \
    if (absl::Status _ = (expression); ABSL_PREDICT_FALSE(!_.ok())) return error; \
  } while (false)

#define SLUICE_ASSIGN_OR_RETURN_(result, left, expression, error, ...) \
  auto result = (expression);                                          \
  if (ABSL_PREDICT_FALSE(!result.ok())) {                              \
    absl::Status _ = std::move(result).status();                       \
    return error;                                                      \
  }                                                                    \
  left = *std::move(result)

#define SLUICE_JOIN_(a, b) SLUICE_JOIN_TEXT_(a, b)
#define SLUICE_JOIN_TEXT_(a, b) a##b

#endif  // SLUICE_SERVICES_COMMON_STATUS_MACROS_H_
