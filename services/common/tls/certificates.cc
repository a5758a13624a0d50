#include "services/common/tls/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice::tls {
namespace {

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
void FreeNames(GENERAL_NAMES* names) { GENERAL_NAMES_free(names); }

using BioPtr = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using CertificatePtr = std::unique_ptr<X509, Freer<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>>;
using NumberPtr = std::unique_ptr<BIGNUM, Freer<BN_free>>;
using NamesPtr = std::unique_ptr<GENERAL_NAMES, Freer<FreeNames>>;
using StorePtr = std::unique_ptr<X509_STORE, Freer<X509_STORE_free>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>>;

constexpr size_t kMaxCommonName = 64;  // RFC 5280, ub-common-name
constexpr int kSerialBytes = 16;

// libcrypto's last error; its queue is empty afterwards.
std::string Complaint() {
  char text[256] = "unknown";
  if (const unsigned long code = ERR_get_error(); code != 0) {
    ERR_error_string_n(code, text, sizeof(text));
  }
  ERR_clear_error();
  return text;
}

absl::Status Failed(absl::string_view what) {
  return absl::InternalError(absl::StrCat("libcrypto cannot ", what, ": ", Complaint()));
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size <= 0 ? std::string() : std::string(data, static_cast<size_t>(size));
}

BioPtr Reader(absl::string_view text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Never asks a terminal for a pass phrase.
int NoPassPhrase(char*, int, int, void*) { return -1; }

// Null at the end of the text, or where no certificate follows.
CertificatePtr Next(BIO* bio) {
  CertificatePtr certificate(PEM_read_bio_X509(bio, nullptr, NoPassPhrase, nullptr));
  ERR_clear_error();
  return certificate;
}

absl::StatusOr<CertificatePtr> ParseCertificate(absl::string_view pem) {
  const BioPtr bio = Reader(pem);
  CertificatePtr certificate = Next(bio.get());
  if (certificate == nullptr) {
    return absl::InvalidArgumentError("there is no certificate (PEM, \"BEGIN CERTIFICATE\")");
  }
  return certificate;
}

absl::StatusOr<KeyPtr> ParseKey(absl::string_view pem) {
  const BioPtr bio = Reader(pem);
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassPhrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError("there is no private key (PEM, without a pass phrase)");
  }
  return key;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string SubjectOf(const X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE);
  return TextOf(bio.get());
}

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// Adds names literally: the textual form of extensions would treat commas in them as separators.
bool AddNames(X509* certificate, const Subject& subject) {
  const NamesPtr names(GENERAL_NAMES_new());
  const auto add = [&](int type, const std::string& value) {
    ASN1_IA5STRING* text = ASN1_IA5STRING_new();
    GENERAL_NAME* name = GENERAL_NAME_new();
    if (text == nullptr || name == nullptr ||
        ASN1_STRING_set(text, value.data(), static_cast<int>(value.size())) != 1) {
      ASN1_IA5STRING_free(text);
      GENERAL_NAME_free(name);
      return false;
    }
    GENERAL_NAME_set0_value(name, type, text);
    return sk_GENERAL_NAME_push(names.get(), name) > 0;
  };

  for (const std::string& name : subject.dns_names) {
    if (!add(GEN_DNS, name)) return false;
  }
  if (!subject.uri.empty() && !add(GEN_URI, subject.uri)) return false;

  if (sk_GENERAL_NAME_num(names.get()) == 0) return true;
  return X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) ==
         1;
}

bool SetSerial(X509* certificate, std::string* text) {
  unsigned char bytes[kSerialBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return false;
  bytes[0] &= 0x7f;  // positive
  *text = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes), sizeof(bytes)));
  const NumberPtr number(BN_bin2bn(bytes, sizeof(bytes), nullptr));
  return number != nullptr &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool SetName(X509* certificate, absl::string_view name) {
  const std::string text(name.substr(0, kMaxCommonName));
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text.data()),
                                    static_cast<int>(text.size()), -1, 0) == 1;
}

bool SetTimes(X509* certificate, const Validity& validity) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(validity.from)) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(validity.until)) != nullptr;
}

absl::StatusOr<KeyPair> Sign(X509* certificate, EVP_PKEY* key, EVP_PKEY* signing_key) {
  if (X509_sign(certificate, signing_key, EVP_sha256()) <= 0) return Failed("sign a certificate");
  const BioPtr certificate_text(BIO_new(BIO_s_mem()));
  const BioPtr key_text(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate_text.get(), certificate) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(key_text.get(), key, nullptr, nullptr, 0, nullptr, nullptr) !=
          1) {
    return Failed("write a certificate");
  }
  return KeyPair{TextOf(certificate_text.get()), TextOf(key_text.get())};
}

}  // namespace

absl::StatusOr<KeyPair> MakeAuthority(absl::string_view name, const Validity& validity) {
  const KeyPtr key(EVP_EC_gen("P-256"));
  const CertificatePtr certificate(X509_new());
  if (key == nullptr || certificate == nullptr) return Failed("make a key");

  X509* const x509 = certificate.get();
  std::string serial;
  const bool made =
      X509_set_version(x509, X509_VERSION_3) == 1 && SetSerial(x509, &serial) &&
      SetName(x509, absl::StrCat(name.substr(0, kMaxCommonName - 9), " ", serial.substr(0, 8))) &&
      X509_set_issuer_name(x509, X509_get_subject_name(x509)) == 1 && SetTimes(x509, validity) &&
      X509_set_pubkey(x509, key.get()) == 1 &&
      AddExtension(x509, x509, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
      AddExtension(x509, x509, NID_key_usage, "critical,keyCertSign,cRLSign") &&
      AddExtension(x509, x509, NID_subject_key_identifier, "hash");
  if (!made) return Failed("make an authority");
  return Sign(x509, key.get(), key.get());
}

absl::StatusOr<KeyPair> Issue(const KeyPair& authority, const Subject& subject,
                              const Validity& validity) {
  RETURN_IF_ERROR(CheckKey(authority));
  ASSIGN_OR_RETURN(const CertificatePtr issuer, ParseCertificate(authority.certificate));
  ASSIGN_OR_RETURN(const KeyPtr issuer_key, ParseKey(authority.private_key));
  if (X509_check_ca(issuer.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(SubjectOf(issuer.get()), " is not the certificate of an authority"));
  }
  const Validity bounded = {validity.from,
                            std::min(validity.until, TimeOf(X509_get0_notAfter(issuer.get())))};

  const KeyPtr key(EVP_EC_gen("P-256"));
  const CertificatePtr certificate(X509_new());
  if (key == nullptr || certificate == nullptr) return Failed("make a key");

  X509* const x509 = certificate.get();
  std::string serial;
  const bool made = X509_set_version(x509, X509_VERSION_3) == 1 && SetSerial(x509, &serial) &&
                    SetName(x509, subject.common_name) &&
                    X509_set_issuer_name(x509, X509_get_subject_name(issuer.get())) == 1 &&
                    SetTimes(x509, bounded) && X509_set_pubkey(x509, key.get()) == 1 &&
                    AddExtension(x509, issuer.get(), NID_basic_constraints, "critical,CA:FALSE") &&
                    AddExtension(x509, issuer.get(), NID_key_usage, "critical,digitalSignature") &&
                    AddExtension(x509, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") &&
                    AddExtension(x509, issuer.get(), NID_authority_key_identifier, "keyid") &&
                    AddNames(x509, subject);
  if (!made) return Failed("make a certificate");
  return Sign(x509, key.get(), issuer_key.get());
}

absl::StatusOr<Certificate> ReadCertificate(absl::string_view pem) {
  ASSIGN_OR_RETURN(const CertificatePtr parsed, ParseCertificate(pem));
  X509* const x509 = parsed.get();

  Certificate certificate;
  certificate.subject = SubjectOf(x509);
  certificate.validity = {TimeOf(X509_get0_notBefore(x509)), TimeOf(X509_get0_notAfter(x509))};
  certificate.is_authority = X509_check_ca(x509) == 1;

  const NamesPtr names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(x509, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS && name->type != GEN_URI) continue;
    const ASN1_IA5STRING* text =
        name->type == GEN_DNS ? name->d.dNSName : name->d.uniformResourceIdentifier;
    (name->type == GEN_DNS ? certificate.dns_names : certificate.uris)
        .emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      static_cast<size_t>(ASN1_STRING_length(text)));
  }
  return certificate;
}

absl::StatusOr<std::vector<std::string>> SplitBundle(absl::string_view pem) {
  const BioPtr bio = Reader(pem);
  std::vector<std::string> certificates;

  while (const CertificatePtr certificate = Next(bio.get())) {
    const BioPtr text(BIO_new(BIO_s_mem()));
    if (PEM_write_bio_X509(text.get(), certificate.get()) != 1) {
      return Failed("write a certificate");
    }
    certificates.push_back(TextOf(text.get()));
  }

  if (certificates.empty()) {
    return absl::InvalidArgumentError("there is no certificate (PEM, \"BEGIN CERTIFICATE\")");
  }
  return certificates;
}

absl::Status CheckKey(const KeyPair& pair) {
  ASSIGN_OR_RETURN(const CertificatePtr certificate, ParseCertificate(pair.certificate));
  ASSIGN_OR_RETURN(const KeyPtr key, ParseKey(pair.private_key));
  const bool fits = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the private key is not that of ", SubjectOf(certificate.get())));
}

absl::Status CheckTrusted(absl::string_view certificate, absl::string_view bundle, absl::Time now) {
  ASSIGN_OR_RETURN(const CertificatePtr leaf, ParseCertificate(certificate));

  const StorePtr store(X509_STORE_new());
  const BioPtr bio = Reader(bundle);
  while (const CertificatePtr authority = Next(bio.get())) {
    X509_STORE_add_cert(store.get(), authority.get());
  }

  const StoreContextPtr context(X509_STORE_CTX_new());
  if (store == nullptr || context == nullptr ||
      X509_STORE_CTX_init(context.get(), store.get(), leaf.get(), nullptr) != 1) {
    return Failed("check a certificate");
  }

  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  const bool trusted = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  if (trusted) return absl::OkStatus();

  const std::string name = SubjectOf(leaf.get());
  const X509* const at = X509_STORE_CTX_get_current_cert(context.get());
  const auto when = [&](const ASN1_TIME* time) {
    return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", TimeOf(time), absl::UTCTimeZone());
  };
  const std::string subject =
      at == nullptr || at == leaf.get()
          ? name
          : absl::StrCat("the authority of ", name, ", ", SubjectOf(at), ",");

  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::UnauthenticatedError(
          absl::StrCat(subject, " expired on ", when(X509_get0_notAfter(at))));
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::UnauthenticatedError(
          absl::StrCat(subject, " is not valid before ", when(X509_get0_notBefore(at))));
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return absl::UnauthenticatedError(absl::StrCat("no authority of the bundle issued ", name));
    default:
      return absl::UnauthenticatedError(
          absl::StrCat(name, " is not trusted: ", X509_verify_cert_error_string(error)));
  }
}

}  // namespace sluice::tls
