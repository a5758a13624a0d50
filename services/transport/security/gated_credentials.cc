#include "services/transport/security/gated_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security_constants.h>
#include <grpc/slice.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/threads/mutex.h"
#include "services/common/threads/tsan.h"
#include "services/transport/security/job_secret.h"

namespace sluice::security {
namespace {

constexpr char kConnectionProperty[] = "sluice-connection";

absl::string_view TextOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// As PeerOf, for a context of gRPC's C interface.
std::optional<PeerIdentity> IdentityOfPeer(const grpc_auth_context* context) {
  grpc_auth_property_iterator uris =
      grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
  const grpc_auth_property* const uri = grpc_auth_property_iterator_next(&uris);
  if (uri == nullptr || grpc_auth_property_iterator_next(&uris) != nullptr) return std::nullopt;

  absl::StatusOr<PeerIdentity> identity =
      ParseUri(absl::string_view(uri->value, uri->value_length));
  if (!identity.ok()) return std::nullopt;
  return *std::move(identity);
}

// The state of one port.
struct Gate {
  explicit Gate(CallGate::Options options) : calls(std::move(options)) {}

  CallGate calls;
  Mutex mutex;  // protects what follows, and a context until it has its number
  uint64_t connections ABSL_GUARDED_BY(mutex) = 0;
};

// Returns the connection's number. The connection gets it with its first call, before anything else
// reads the context.
uint64_t NumberOf(grpc_auth_context* context, Gate* gate) {
  MutexLock lock(&gate->mutex);
  grpc_auth_property_iterator numbers =
      grpc_auth_context_find_properties_by_name(context, kConnectionProperty);

  uint64_t number = 0;
  if (const grpc_auth_property* const found = grpc_auth_property_iterator_next(&numbers)) {
    (void)absl::SimpleAtoi(absl::string_view(found->value, found->value_length), &number);
    return number;
  }

  number = ++gate->connections;
  grpc_auth_context_add_cstring_property(context, kConnectionProperty,
                                         absl::StrCat(number).c_str());
  return number;
}

// gRPC calls this for each new call. A connection has one context, for as long as it exists.
void Process(void* state, grpc_auth_context* context, const grpc_metadata* metadata, size_t size,
             grpc_process_auth_metadata_done_cb done, void* done_argument) {
  internal::AfterGrpc(state);
  Gate* const gate = static_cast<Gate*>(state);

  CallGate::Call call;
  call.connection = NumberOf(context, gate);
  for (size_t i = 0; i < size; ++i) {
    const absl::string_view key = TextOf(metadata[i].key);
    if (key == ":path") call.method = TextOf(metadata[i].value);
    if (key == kSecretMetadata) call.secret = TextOf(metadata[i].value);
  }

  call.peer = IdentityOfPeer(context);
  const absl::Status status = gate->calls.Admit(call, absl::Now());

  internal::BeforeGrpc(state);
  done(done_argument, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()),
       status.ok() ? nullptr : std::string(status.message()).c_str());
}

void Destroy(void* state) {
  internal::AfterGrpc(state);
  delete static_cast<Gate*>(state);
}

class GatedServer final : public grpc::ServerCredentials {
 public:
  GatedServer(std::function<grpc_server_credentials*()> make, CallGate::Options options)
      : make_(std::move(make)), options_(std::move(options)) {}

  void Observe(std::shared_ptr<CallObserver> observer) { options_.observer = std::move(observer); }

  // Does nothing: the gate is the processor.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    grpc_server_credentials* const credentials = make_();
    auto* const gate = new Gate(options_);
    internal::BeforeGrpc(gate);
    grpc_server_credentials_set_auth_metadata_processor(credentials, {Process, Destroy, gate});
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  const std::function<grpc_server_credentials*()> make_;
  CallGate::Options options_;
};

// Adds the secret to a call's metadata.
class ShowSecret final : public grpc::experimental::Interceptor {
 public:
  explicit ShowSecret(const std::string& secret) : secret_(secret) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kSecretMetadata, secret_);
    }
    methods->Proceed();
  }

 private:
  const std::string secret_;
};

class ShowSecretFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit ShowSecretFactory(std::string secret) : secret_(std::move(secret)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new ShowSecret(secret_);
  }

 private:
  const std::string secret_;
};

class SecretChannel final : public grpc::ChannelCredentials {
 public:
  explicit SecretChannel(std::string secret) : secret_(std::move(secret)) {}

 protected:
  grpc::SecureChannelCredentials* AsSecureCredentials() override { return nullptr; }

 private:
  std::shared_ptr<grpc::Channel> CreateChannelImpl(const grpc::string& target,
                                                   const grpc::ChannelArguments& args) override {
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> creators;
    creators.push_back(std::make_unique<ShowSecretFactory>(secret_));
    return grpc::experimental::CreateCustomChannelWithInterceptors(
        target, grpc::InsecureChannelCredentials(), args, std::move(creators));
  }

  const std::string secret_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> GatedServerCredentials(
    std::function<grpc_server_credentials*()> make, CallGate::Options options) {
  return std::make_shared<GatedServer>(std::move(make), std::move(options));
}

bool Observe(grpc::ServerCredentials* credentials, std::shared_ptr<CallObserver> observer) {
  auto* const gated = dynamic_cast<GatedServer*>(credentials);
  if (gated == nullptr) return false;
  gated->Observe(std::move(observer));
  return true;
}

uint64_t ConnectionOf(const grpc::AuthContext& context) {
  uint64_t number = 0;
  const std::vector<grpc::string_ref> found = context.FindPropertyValues(kConnectionProperty);
  if (found.size() == 1) {
    (void)absl::SimpleAtoi(absl::string_view(found[0].data(), found[0].size()), &number);
  }
  return number;
}

std::shared_ptr<grpc::ChannelCredentials> SecretChannelCredentials(std::string secret) {
  return std::make_shared<SecretChannel>(std::move(secret));
}

bool SpeaksTls(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return credentials != nullptr && dynamic_cast<const SecretChannel*>(credentials.get()) == nullptr;
}

}  // namespace sluice::security
