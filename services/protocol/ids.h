// Comparison and printing of the protocol's identifiers (R1), which messages carry as protobufs.

#ifndef SLUICE_SERVICES_PROTOCOL_IDS_H_
#define SLUICE_SERVICES_PROTOCOL_IDS_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/strings/string_view.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"

namespace sluice {

// A term belongs to one coordinator. Ordered by counter, then by coordinator.
inline std::tuple<uint64_t, uint64_t> Order(const v1::Term& term) {
  return {term.counter(), term.coordinator()};
}

// Views, init requests and pauses are ordered by attempt, then term, then number. The default value
// (no view, no init request) is below all others.
template <typename Id>
std::tuple<uint64_t, uint64_t, uint64_t, uint64_t> OrderOf(const Id& id) {
  return {id.attempt(), id.term().counter(), id.term().coordinator(), id.number()};
}

inline auto Order(const v1::ViewId& id) { return OrderOf(id); }
inline auto Order(const v1::InitId& id) { return OrderOf(id); }
inline auto Order(const v1::PauseId& id) { return OrderOf(id); }

// -1, 0 or 1. Works on any two of the same type that have an Order.
template <typename Id>
int Compare(const Id& a, const Id& b) {
  const auto x = Order(a);
  const auto y = Order(b);
  return x < y ? -1 : y < x ? 1 : 0;
}

template <typename Id>
bool Same(const Id& a, const Id& b) {
  return Order(a) == Order(b);
}

// "1.2.7": attempt, the term's counter, number. Two coordinators with the same counter print alike:
// for people, not for comparison.
template <typename Id>
std::string ShortName(const Id& id) {
  return std::to_string(id.attempt()) + "." + std::to_string(id.term().counter()) + "." +
         std::to_string(id.number());
}

// "worker-0", "ps-1", "coordinator": the names that users see.
std::string ProcessName(v1::Role role, uint32_t index);
inline std::string ProcessName(const v1::ProcessId& id) {
  return ProcessName(id.role(), id.index());
}

// "name" of "namespace/name/uid": the name of the job in logs and metrics. Any other text is
// returned unchanged.
std::string ShortJobName(absl::string_view job);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_IDS_H_
