#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_TOP_K_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_TOP_K_H_

#include <memory>

#include "services/protocol/codec/codec.h"

namespace sluice {

// v1::CODEC_TOP_K: only the elements of the largest magnitude of each block, unchanged; all others
// are decoded as 0. Meant for error feedback.
//
//   uint32 k | k indices, uint32, ascending | k values, float32
//
// Of n elements k = ceil(fraction * n) are sent; of equal magnitudes those with the lower index;
// non-finite elements count as the largest. A decoder accepts any k of at most n.
//
// A. F. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
// with error feedback: S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory",
// NeurIPS 2018.
//
// `fraction`: above 0, at most 0.5 (where it would save nothing).
std::unique_ptr<const Codec> MakeTopK(double fraction);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_TOP_K_H_
