#include "operator/kube/curl_http.h"

#include <curl/curl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "operator/kube/token_source.h"
#include "services/common/http/curl_handle.h"
#include "services/common/status_macros.h"
#include "services/common/threads/mutex.h"

namespace sluice::kube {
namespace {

// Handles that are kept for their connections; further concurrent calls open their own.
constexpr size_t kMaxIdleHandles = 32;
// How long a stream may sleep before it checks its timeouts.
constexpr absl::Duration kPoll = absl::Seconds(1);
// A connection whose peer has acknowledged nothing for this long counts as lost.
constexpr absl::Duration kPeerLost = absl::Seconds(45);

struct MultiDeleter {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Multi = std::unique_ptr<CURLM, MultiDeleter>;
using Headers = std::unique_ptr<curl_slist, ListDeleter>;

// One exchange, which libcurl's callbacks fill in.
struct Exchange {
  size_t max_body = 0;
  const Clock* clock = nullptr;
  const HttpTransport::BodySink* sink = nullptr;  // null: the body is collected
  const CurlHandle* handle = nullptr;
  HttpResponse response;
  absl::Status status;  // an error of the sink, or an exceeded bound
  bool headers_done = false;
  absl::Time last_bytes;
};

int SetUserTimeout(void*, curl_socket_t socket, curlsocktype) {
  const unsigned milliseconds = absl::ToInt64Milliseconds(kPeerLost);
  // If the option cannot be set, a stream's idle timeout still detects the loss.
  (void)setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
  return CURL_SOCKOPT_OK;
}

size_t OnHeader(char* data, size_t size, size_t count, void* user) {
  auto* exchange = static_cast<Exchange*>(user);
  exchange->last_bytes = exchange->clock->Now();

  const absl::string_view line(data, size * count);
  if (absl::StartsWith(line, "HTTP/")) {
    exchange->response.headers.clear();  // from a preliminary answer (100 Continue)
  } else if (const size_t colon = line.find(':'); colon != absl::string_view::npos) {
    std::string name = absl::AsciiStrToLower(line.substr(0, colon));
    std::string value(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    exchange->response.headers.insert_or_assign(std::move(name), std::move(value));
  }

  const int code = exchange->handle->response_code();
  if (absl::StripAsciiWhitespace(line).empty() && code >= 200) exchange->headers_done = true;
  return size * count;
}

size_t OnBody(char* data, size_t size, size_t count, void* user) {
  auto* exchange = static_cast<Exchange*>(user);
  exchange->last_bytes = exchange->clock->Now();
  const absl::string_view bytes(data, size * count);
  const int code = exchange->handle->response_code();

  if (exchange->sink != nullptr && code == 200) {
    exchange->status = (*exchange->sink)(bytes);
    return exchange->status.ok() ? bytes.size() : 0;
  }

  if (exchange->response.body.size() + bytes.size() > exchange->max_body) {
    exchange->status = absl::ResourceExhaustedError(
        absl::StrCat("the API server's answer is longer than ", exchange->max_body, " bytes"));
    return 0;
  }
  absl::StrAppend(&exchange->response.body, bytes);
  return bytes.size();
}

absl::Status StatusOf(CURLcode code, const CurlHandle& handle, const std::string& server) {
  const std::string message = absl::StrCat(server, ": ", handle.ErrorText(code));
  switch (code) {
    case CURLE_OK:
      return absl::OkStatus();
    case CURLE_OPERATION_TIMEDOUT:
      return absl::DeadlineExceededError(message);
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_URL_MALFORMAT:
      return absl::FailedPreconditionError(message);
    default:
      return absl::UnavailableError(message);
  }
}

void SetPem(CurlHandle* handle, const Credential& credential, CURLoption file_option,
            CURLoption blob_option) {
  if (!credential.pem.empty()) {
    curl_blob blob{const_cast<char*>(credential.pem.data()), credential.pem.size(),
                   CURL_BLOB_NOCOPY};
    handle->Set(blob_option, &blob);
  } else if (!credential.file.empty()) {
    handle->Set(file_option, credential.file.c_str());
  }
}

}  // namespace

class CurlTransport::Impl {
 public:
  Impl(Options options, FileSystem* files, const Clock* clock)
      : options_(std::move(options)), clock_(clock) {
    if (!options_.config.token_file.empty()) {
      token_source_ = std::make_unique<TokenSource>(options_.config.token_file, files, clock);
    }
  }

  absl::StatusOr<HttpResponse> Run(const HttpRequest& request, const BodySink* sink,
                                   Cancellation* cancellation) {
    for (bool again = false;; again = true) {
      ASSIGN_OR_RETURN(std::string token, Token());
      absl::StatusOr<HttpResponse> response = RunOnce(request, token, sink, cancellation);
      if (again || !response.ok() || response->code != 401 || token_source_ == nullptr) {
        return response;
      }
      token_source_->Refused(token);
    }
  }

  // The URL has the name that the certificate is verified against; CONNECT_TO has the real address.
  absl::Status SetServerName() {
    CURLU* url = curl_url();
    char* host = nullptr;
    char* port = nullptr;
    char* named = nullptr;
    const bool fine =
        curl_url_set(url, CURLUPART_URL, options_.config.server.c_str(), 0) == CURLUE_OK &&
        curl_url_get(url, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
        curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
        curl_url_set(url, CURLUPART_HOST, options_.config.tls_server_name.c_str(), 0) ==
            CURLUE_OK &&
        curl_url_get(url, CURLUPART_URL, &named, 0) == CURLUE_OK;
    if (fine) {
      const std::string connect =
          absl::StrCat(options_.config.tls_server_name, ":", port, ":", host, ":", port);
      connect_to_.reset(curl_slist_append(nullptr, connect.c_str()));
      named_server_ = std::string(absl::StripSuffix(named, "/"));
    }

    curl_free(host);
    curl_free(port);
    curl_free(named);
    curl_url_cleanup(url);
    if (fine) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("not the URL of an API server: ", options_.config.server));
  }

 private:
  absl::StatusOr<std::string> Token() {
    if (token_source_ == nullptr) return options_.config.token;
    return token_source_->Token();
  }

  // `reuse`: with the connections of an earlier request.
  absl::StatusOr<CurlHandle> Take(bool reuse) {
    CurlHandle handle;
    {
      MutexLock lock(&mutex_);
      if (reuse && !idle_.empty()) {
        handle = std::move(idle_.back());
        idle_.pop_back();
        return handle;
      }
    }

    RETURN_IF_ERROR(handle.Open());
    return handle;
  }

  void GiveBack(CurlHandle handle) {
    curl_easy_reset(handle.get());  // keeps connections
    MutexLock lock(&mutex_);
    if (idle_.size() < kMaxIdleHandles) idle_.push_back(std::move(handle));
  }

  Headers MakeHeaders(const HttpRequest& request, const std::string& token) const {
    curl_slist* list = curl_slist_append(nullptr, "Accept: application/json");
    list = curl_slist_append(list, "Expect:");
    if (!request.content_type.empty()) {
      list = curl_slist_append(list, absl::StrCat("Content-Type: ", request.content_type).c_str());
    }
    if (!token.empty()) {
      list = curl_slist_append(list, absl::StrCat("Authorization: Bearer ", token).c_str());
    }
    return Headers(list);
  }

  void SetTls(CurlHandle* handle) const {
    const ClientConfig& config = options_.config;
    if (config.insecure_skip_tls_verify) {
      handle->Set(CURLOPT_SSL_VERIFYPEER, 0);
      handle->Set(CURLOPT_SSL_VERIFYHOST, 0);
    }

    SetPem(handle, config.certificate_authority, CURLOPT_CAINFO, CURLOPT_CAINFO_BLOB);
    SetPem(handle, config.client_certificate, CURLOPT_SSLCERT, CURLOPT_SSLCERT_BLOB);
    SetPem(handle, config.client_key, CURLOPT_SSLKEY, CURLOPT_SSLKEY_BLOB);

    // The next connection uses a replaced CA file.
    handle->Set(CURLOPT_CA_CACHE_TIMEOUT, 0);
    handle->Set(CURLOPT_SSL_SESSIONID_CACHE, 0);
  }

  void SetRequest(CurlHandle* handle, const HttpRequest& request, Exchange* exchange) const {
    std::string url = options_.config.server + request.target;
    if (connect_to_ != nullptr) {
      url = named_server_ + request.target;
      handle->Set(CURLOPT_CONNECT_TO, connect_to_.get());
    }

    handle->Prepare(url, options_.user_agent, options_.connect_timeout);
    handle->Set(CURLOPT_PROXY, "");
    handle->Set(CURLOPT_HTTP_VERSION, int{CURL_HTTP_VERSION_1_1});

    // Probes an idle connection, so that a lost peer is detected within kPeerLost.
    handle->Set(CURLOPT_TCP_KEEPALIVE, 1);
    handle->Set(CURLOPT_TCP_KEEPIDLE, 15);
    handle->Set(CURLOPT_TCP_KEEPINTVL, 10);
    handle->Set(CURLOPT_SOCKOPTFUNCTION, SetUserTimeout);
    handle->Set(CURLOPT_MAXLIFETIME_CONN, absl::ToInt64Seconds(options_.max_connection_age));

    handle->Set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    if (!request.body.empty()) {
      handle->Set(CURLOPT_POSTFIELDS, request.body.data());
      curl_easy_setopt(handle->get(), CURLOPT_POSTFIELDSIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
    }

    handle->Set(CURLOPT_HEADERFUNCTION, OnHeader);
    handle->Set(CURLOPT_HEADERDATA, exchange);
    handle->Set(CURLOPT_WRITEFUNCTION, OnBody);
    handle->Set(CURLOPT_WRITEDATA, exchange);
  }

  absl::StatusOr<HttpResponse> RunOnce(const HttpRequest& request, const std::string& token,
                                       const BodySink* sink, Cancellation* cancellation) {
    ASSIGN_OR_RETURN(CurlHandle handle, Take(/*reuse=*/sink == nullptr));
    Exchange exchange;
    exchange.max_body = options_.max_body_bytes;
    exchange.clock = clock_;
    exchange.sink = sink;
    exchange.handle = &handle;

    const Headers headers = MakeHeaders(request, token);
    SetRequest(&handle, request, &exchange);
    SetTls(&handle);
    handle.Set(CURLOPT_HTTPHEADER, headers.get());

    absl::Status status;
    if (sink == nullptr) {
      handle.Set(CURLOPT_TIMEOUT_MS, absl::ToInt64Milliseconds(request.timeout));
      status = StatusOf(curl_easy_perform(handle.get()), handle, options_.config.server);
    } else {
      status = Pump(handle, request, cancellation, &exchange);
    }

    if (!exchange.status.ok()) status = exchange.status;
    exchange.response.code = handle.response_code();
    if (sink == nullptr) GiveBack(std::move(handle));
    RETURN_IF_ERROR(status);
    return std::move(exchange.response);
  }

  // Drives a stream: the deadline for its head, then the idle timeout, and cancellation.
  absl::Status Pump(const CurlHandle& handle, const HttpRequest& request,
                    Cancellation* cancellation, Exchange* exchange) const {
    Multi multi(curl_multi_init());
    if (multi == nullptr) return absl::ResourceExhaustedError("libcurl: out of memory");
    curl_multi_add_handle(multi.get(), handle.get());
    const int64_t callback =
        cancellation->AddCallback([raw = multi.get()] { curl_multi_wakeup(raw); });
    exchange->last_bytes = exchange->clock->Now();
    absl::Status status = PumpLoop(multi.get(), request, cancellation, exchange);
    cancellation->RemoveCallback(callback);
    curl_multi_remove_handle(multi.get(), handle.get());
    return status;
  }

  absl::Status PumpLoop(CURLM* multi, const HttpRequest& request, Cancellation* cancellation,
                        Exchange* exchange) const {
    while (true) {
      int running = 0;
      curl_multi_perform(multi, &running);
      if (cancellation->cancelled()) return absl::CancelledError("the stream was cancelled");

      if (running == 0) {
        int left = 0;
        const CURLMsg* message = curl_multi_info_read(multi, &left);
        const CURLcode code = message == nullptr ? CURLE_RECV_ERROR : message->data.result;
        return StatusOf(code, *exchange->handle, options_.config.server);
      }

      const absl::Duration bound = exchange->headers_done ? request.idle_timeout : request.timeout;
      const absl::Duration left = exchange->last_bytes + bound - clock_->Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat(options_.config.server, ": no bytes for ", absl::FormatDuration(bound)));
      }

      const int64_t wait_ms = absl::ToInt64Milliseconds(std::min(left, kPoll)) + 1;
      curl_multi_poll(multi, nullptr, 0, static_cast<int>(wait_ms), nullptr);
    }
  }

  const Options options_;
  const Clock* const clock_;
  std::unique_ptr<TokenSource> token_source_;
  Headers connect_to_;  // null without a TLS server name
  std::string named_server_;
  Mutex mutex_;
  std::vector<CurlHandle> idle_ ABSL_GUARDED_BY(mutex_);
};

CurlTransport::CurlTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CurlTransport::~CurlTransport() = default;

absl::StatusOr<std::unique_ptr<CurlTransport>> CurlTransport::Make(Options options,
                                                                   FileSystem* files,
                                                                   const Clock* clock) {
  if (options.config.server.empty()) {
    return absl::InvalidArgumentError("the options name no API server");
  }
  const bool named = !options.config.tls_server_name.empty();
  auto impl = std::make_unique<Impl>(std::move(options), files, clock);
  if (named) {
    RETURN_IF_ERROR(impl->SetServerName());
  }
  return std::unique_ptr<CurlTransport>(new CurlTransport(std::move(impl)));
}

absl::StatusOr<HttpResponse> CurlTransport::Do(const HttpRequest& request) {
  return impl_->Run(request, nullptr, nullptr);
}

absl::StatusOr<HttpResponse> CurlTransport::Stream(const HttpRequest& request, const BodySink& sink,
                                                   Cancellation* cancellation) {
  return impl_->Run(request, &sink, cancellation);
}

}  // namespace sluice::kube
