#include "services/download/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "services/common/check.h"

namespace sluice {

struct Sha256::Context {
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  SLUICE_CHECK(EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr) == 1,
               "libcrypto has SHA-256");
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_->digest); }

void Sha256::Append(absl::string_view bytes) {
  SLUICE_CHECK(EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size()) == 1,
               "bytes are added before Finish");
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  SLUICE_CHECK(EVP_DigestFinal_ex(context_->digest, digest, &size) == 1, "Finish is called once");
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace sluice
