// Turns debug checks on in every program that links this file (check.h).

#include "services/common/check.h"

namespace sluice {
namespace {

[[maybe_unused]] const bool kOn = debug_checks = true;

}  // namespace
}  // namespace sluice
