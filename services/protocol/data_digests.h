// Names of digests (Ready.digests) that the worker program makes. Digests of other names are of the
// samples' values.
#ifndef SLUICE_SERVICES_PROTOCOL_DATA_DIGESTS_H_
#define SLUICE_SERVICES_PROTOCOL_DATA_DIGESTS_H_

namespace sluice {

// The coordinator's message about a difference begins with the digest's name.
inline constexpr char kEncodingDigest[] = "the encoding of the columns";
inline constexpr char kVocabularyDigest[] = "the vocabulary";

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_DATA_DIGESTS_H_
