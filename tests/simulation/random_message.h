// Messages with random fields, within their types.
//
// Intuition. The first comparison refuses a value that no process has ever sent; a value that
// another process has just sent gets further. So half of the numbers are from recorded messages
// (incarnations, versions, clocks, snapshots) or next to such a number. The other half are small,
// at the limits of their types, or arbitrary.
#ifndef SLUICE_TESTS_SIMULATION_RANDOM_MESSAGE_H_
#define SLUICE_TESTS_SIMULATION_RANDOM_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "google/protobuf/message.h"
#include "tests/simulation/scheduler.h"

namespace sluice::simulation {

class RandomMessage {
 public:
  explicit RandomMessage(Random* random) : random_(*random) {}

  // Remembers the message's numbers, up to kMaxNumbers, the newest.
  void Learn(const google::protobuf::Message& message);
  // Changes the values of some fields of the message, at any depth.
  void Change(google::protobuf::Message* message);
  // Fills the message. Sets one field of each oneof.
  void Invent(google::protobuf::Message* message, int depth = 0);

  uint64_t Number();

 private:
  static constexpr size_t kMaxNumbers = 512;

  void Set(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
           int depth);
  void Add(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
           int depth);
  double Real();

  Random& random_;
  std::vector<uint64_t> numbers_;
  size_t next_ = 0;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_RANDOM_MESSAGE_H_
