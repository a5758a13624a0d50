// Changes protobuf messages field by field, within their types, as a buggy or hostile peer of this
// protocol could.
#ifndef SLUICE_TESTS_FUZZ_MESSAGE_CHANGE_H_
#define SLUICE_TESTS_FUZZ_MESSAGE_CHANGE_H_

#include <google/protobuf/message.h>

#include "tests/fuzz/byte_source.h"

namespace sluice::fuzz {

// Changes one field, which `bytes` chooses: sets, clears, or descends into a message; of a repeated
// field, adds, changes, repeats or removes elements. Numbers are small, equal to those of the
// target's processes (incarnations from 5000 and from 7), or limits of their types.
void ChangeOneField(ByteSource* bytes, google::protobuf::Message* message);

// Makes zero to three such changes.
void ChangeFields(ByteSource* bytes, google::protobuf::Message* message);

// Sets another body in a message that is one oneof `body`, such as Header and MemberMessage.
void ChooseBody(ByteSource* bytes, google::protobuf::Message* message);

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_MESSAGE_CHANGE_H_
