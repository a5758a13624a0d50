#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_SIGN_THRESHOLD_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_SIGN_THRESHOLD_H_

#include <memory>

#include "services/protocol/codec/codec.h"

namespace sluice {

// v1::CODEC_SIGN_THRESHOLD: elements above the threshold are decoded as the threshold, those below
// its negative as that, all others as 0. Introductions to parameter servers show it as compression,
// and N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
// INTERSPEECH 2015, made it work by error feedback. How well it trains depends on the threshold,
// for which there is no good default: it is compared with the pushed gradient, a sum over the
// samples.
//
//   threshold, float32 | 2 bits for each element, lowest first: 0, 1: +, 2: -, 3: not finite; the
//   last byte is filled with 0
//
// `threshold`: above 0 and finite.
std::unique_ptr<const Codec> MakeSignThreshold(float threshold);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_SIGN_THRESHOLD_H_
