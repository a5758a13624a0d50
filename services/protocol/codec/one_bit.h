#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_ONE_BIT_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_ONE_BIT_H_

#include <memory>

#include "services/protocol/codec/codec.h"

namespace sluice {

// v1::CODEC_ONE_BIT: of each element its sign; an element is decoded as the mean of its group's
// elements of that sign. Groups are 512 elements. Without error feedback it does not train.
//
//   of each group: mean of those that are not negative, float32 | mean of the negative, float32 |
//                  a bit for each element, lowest first, 1: negative; the last byte is filled with
//                  0
//
// Means are summed in double, in order; that of no elements is 0.
//
// F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application
// to data-parallel distributed training of speech DNNs", INTERSPEECH 2014 (two means for each
// column of a matrix).
std::unique_ptr<const Codec> MakeOneBit();

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_ONE_BIT_H_
