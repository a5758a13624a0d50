// Changes protobuf messages field by field, within their types: what a peer of this protocol can
// send whose program is wrong or hostile.
#ifndef SLUICE_TESTS_FUZZ_MESSAGE_CHANGE_H_
#define SLUICE_TESTS_FUZZ_MESSAGE_CHANGE_H_

#include <google/protobuf/message.h>

#include "tests/fuzz/byte_source.h"

namespace sluice::fuzz {

// Changes one field, which `bytes` chooses: sets, clears, or descends into a message; of a repeated
// field, adds, changes, repeats or removes elements. Numbers are small ones, those of the target's
// processes (incarnations from 5000 and from 7), or the borders of their types.
void ChangeOneField(ByteSource* bytes, google::protobuf::Message* message);

// None to three of them.
void ChangeFields(ByteSource* bytes, google::protobuf::Message* message);

// Sets another body in a message that is one oneof `body`, such as Header and MemberMessage.
void ChooseBody(ByteSource* bytes, google::protobuf::Message* message);

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_MESSAGE_CHANGE_H_
