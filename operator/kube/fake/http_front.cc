#include "operator/kube/fake/http_front.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/kube/cancellation.h"
#include "services/common/status_macros.h"
#include "services/common/threads/mutex.h"
#include "services/common/threads/notification.h"

namespace sluice::kube {
namespace {

std::string HeaderOf(const mg_connection* connection, const char* name) {
  const char* value = mg_get_header(connection, name);
  return value == nullptr ? "" : value;
}

HttpRequest ReadRequest(mg_connection* connection) {
  const mg_request_info* info = mg_get_request_info(connection);
  HttpRequest request;
  request.method = info->request_method;
  // The encoded path: the fake decodes it.
  request.target = info->request_uri;
  if (info->query_string != nullptr) absl::StrAppend(&request.target, "?", info->query_string);
  request.content_type = HeaderOf(connection, "Content-Type");
  char buffer[4096];
  for (int read = 0; (read = mg_read(connection, buffer, sizeof(buffer))) > 0;) {
    request.body.append(buffer, static_cast<size_t>(read));
  }
  return request;
}

void WriteResponse(mg_connection* connection, const HttpResponse& response) {
  std::string head = absl::StrCat("HTTP/1.1 ", response.code, " Status\r\n");
  for (const auto& [name, value] : response.headers)
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  absl::StrAppend(&head, "Content-Length: ", response.body.size(), "\r\n\r\n", response.body);
  mg_write(connection, head.data(), head.size());
}

}  // namespace

class HttpFront::Impl {
 public:
  Impl(FakeApiServer* server, Options options)
      : server_(server),
        delay_(options.delay),
        threads_(absl::StrCat(options.threads)),
        token_(std::move(options.token)) {}

  ~Impl() {
    cancellation_.Cancel();
    if (context_ == nullptr) return;
    // The server's main thread checks whether to stop when a client connects, and otherwise every
    // two seconds.
    Notification stopped;
    std::thread waker([&] {
      do {
        Knock();
      } while (!stopped.WaitWithTimeout(absl::Milliseconds(5)));
    });
    mg_stop(context_);
    stopped.Notify();
    waker.join();
  }

  absl::Status Start() {
    const char* settings[] = {"listening_ports",
                              "127.0.0.1:0",
                              "num_threads",
                              threads_.c_str(),
                              "enable_keep_alive",
                              "yes",
                              "keep_alive_timeout_ms",
                              "500",
                              nullptr};
    mg_callbacks callbacks = {};
    callbacks.begin_request = &Impl::OnRequest;
    mg_init_library(0);
    context_ = mg_start(&callbacks, this, settings);
    if (context_ == nullptr) return absl::UnavailableError("cannot start the loopback server");
    mg_server_port port = {};
    if (mg_get_server_ports(context_, 1, &port) != 1) {
      return absl::InternalError("the loopback server has no port");
    }
    port_ = port.port;
    return absl::OkStatus();
  }

  int port() const { return port_; }

  void SetToken(const std::string& token) {
    MutexLock lock(&mutex_);
    token_ = token;
  }

 private:
  static int OnRequest(mg_connection* connection) {
    const mg_request_info* info = mg_get_request_info(connection);
    static_cast<Impl*>(info->user_data)->Handle(connection);
    return 1;
  }

  // A connection that never sends anything.
  void Knock() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    close(fd);
  }

  bool Allowed(const mg_connection* connection) {
    MutexLock lock(&mutex_);
    return token_.empty() || HeaderOf(connection, "Authorization") == "Bearer " + token_;
  }

  void Handle(mg_connection* connection) {
    const HttpRequest request = ReadRequest(connection);
    if (delay_ > absl::ZeroDuration() && cancellation_.WaitFor(delay_)) return;
    if (!Allowed(connection)) {
      HttpResponse refused;
      refused.code = 401;
      refused.body =
          R"({"kind":"Status","code":401,"reason":"Unauthorized","message":"Unauthorized"})";
      WriteResponse(connection, refused);
    } else if (request.target.find("watch=true") != std::string::npos) {
      Stream(connection, request);
    } else {
      const absl::StatusOr<HttpResponse> response = server_->Do(request);
      if (response.ok()) {
        WriteResponse(connection, *response);
      } else {
        mg_disable_connection_keep_alive(connection);
      }
    }
  }

  void Stream(mg_connection* connection, const HttpRequest& request) {
    bool begun = false;
    const auto begin = [&] {
      if (std::exchange(begun, true)) return;
      constexpr char kHead[] =
          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
      mg_write(connection, kHead, sizeof(kHead) - 1);
    };
    const absl::StatusOr<HttpResponse> response = server_->Stream(
        request,
        [&](absl::string_view bytes) {
          begin();
          const int sent =
              mg_send_chunk(connection, bytes.data(), static_cast<unsigned>(bytes.size()));
          return sent > 0 ? absl::OkStatus() : absl::UnavailableError("the client has gone");
        },
        &cancellation_);
    if (!response.ok()) {
      mg_disable_connection_keep_alive(
          connection);  // without the last chunk, like a broken connection
    } else if (response->code != 200) {
      WriteResponse(connection, *response);
    } else {
      begin();
      mg_send_chunk(connection, "", 0);
    }
  }

  FakeApiServer* const server_;
  const absl::Duration delay_;
  const std::string threads_;
  Cancellation cancellation_;
  mg_context* context_ = nullptr;
  int port_ = 0;
  Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

HttpFront::HttpFront(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpFront::~HttpFront() = default;

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Start(FakeApiServer* server,
                                                            Options options) {
  auto impl = std::make_unique<Impl>(server, std::move(options));
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<HttpFront>(new HttpFront(std::move(impl)));
}

std::string HttpFront::url() const { return absl::StrCat("http://127.0.0.1:", impl_->port()); }
void HttpFront::SetToken(const std::string& token) { impl_->SetToken(token); }

}  // namespace sluice::kube
