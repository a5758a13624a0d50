// Names of digests (Ready.digests) that the worker program makes. Digests of other names are of the
// samples' values.
#ifndef SLUICE_SERVICES_PROTOCOL_DATA_DIGESTS_H_
#define SLUICE_SERVICES_PROTOCOL_DATA_DIGESTS_H_

namespace sluice {

// The coordinator tells users of the difference by these names, so they are the ends of a sentence.
inline constexpr char kEncodingDigest[] = "the encoding of the columns";
inline constexpr char kVocabularyDigest[] = "the vocabulary";

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_DATA_DIGESTS_H_
