#include "services/common/io/page_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "services/common/io/listener.h"
#include "services/common/status_macros.h"
#include "services/common/threads/mutex.h"

namespace sluice {
namespace {

// When the process has no file descriptors left, connections wait this long to be accepted.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Connections accepted in one round, so that open connections get their turn.
constexpr int kAcceptsInRound = 32;
// How often a page is asked again for a client that waits.
constexpr absl::Duration kAskAgain = absl::Milliseconds(100);
// How late a client with a period may be.
constexpr absl::Duration kLate = absl::Seconds(1);

// The SECONDS of "period=SECONDS"; zero if the query has none.
absl::Duration PeriodIn(absl::string_view query) {
  for (absl::string_view part : absl::StrSplit(query, '&')) {
    uint32_t seconds = 0;
    if (absl::ConsumePrefix(&part, "period=") && absl::SimpleAtoi(part, &seconds)) {
      return absl::Seconds(std::min(seconds, 3600u));
    }
  }
  return absl::ZeroDuration();
}

const char* ReasonOf(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Service Unavailable";
  }
}

std::string ResponseOf(const PageServer::Answer& answer, bool with_text) {
  return absl::StrCat("HTTP/1.1 ", answer.code, " ", ReasonOf(answer.code),
                      "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                      "Content-Length: ",
                      answer.text.size(), "\r\nConnection: close\r\n\r\n",
                      with_text ? answer.text : "");
}

}  // namespace

class PageServer::Impl {
 public:
  Impl(Options options, std::vector<Page> pages, Fd listener, Fd wake)
      : options_(std::move(options)),
        pages_(std::move(pages)),
        probes_(pages_.size()),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        was_ok_(pages_.size()),
        thread_([this] { Loop(); }) {}

  ~Impl() {
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }

  void AwaitProbes(absl::Duration quiet, const std::function<bool()>& hurry) {
    const absl::Time limit = absl::Now() + 3 * (quiet + kLate);
    MutexLock lock(&mutex_);
    while (absl::Now() < limit && !hurry()) {
      const absl::Time now = absl::Now();
      const bool expected =
          std::any_of(probes_.begin(), probes_.end(), [&](const std::optional<Probe>& probe) {
            if (!probe.has_value() || probe->period <= quiet) return false;
            const absl::Time due = probe->answered + probe->period;
            return now + quiet > due && now < due + kLate;
          });
      if (!expected) return;
      answered_.WaitWithTimeout(&mutex_, kAskAgain);
    }
  }

 private:
  // A client that asks for a page again and again.
  struct Probe {
    absl::Duration period;
    absl::Time answered;
  };

  struct Connection {
    Fd fd;
    absl::Time deadline;
    std::string request;
    std::string response;
    size_t sent = 0;
    size_t page = 0;        // index of the page that it asks for, if it has a period
    absl::Duration period;  // of the client; zero: it has none
    bool waits = false;     // until the page answers 200, or the deadline
    // The answer is sent, and the client is expected to close: if the server closed first, bytes in
    // flight could be lost.
    bool answered = false;

    bool reading() const { return response.empty(); }
  };

  void Loop() {
    while (true) {
      std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      absl::Time until = absl::InfiniteFuture();
      if (absl::Now() < accept_after_) {
        waits[1].fd = -1;
        until = accept_after_;
      }

      // The connections' own deadlines.
      for (const Connection& connection : connections_) {
        if (connection.waits) until = std::min(until, absl::Now() + kAskAgain);
        const bool writes = !connection.reading() && !connection.answered;
        waits.push_back({connection.fd.get(), static_cast<int16_t>(writes ? POLLOUT : POLLIN), 0});
        until = std::min(until, connection.deadline);
      }

      poll(waits.data(), waits.size(), TimeoutUntil(until));
      if (waits[0].revents != 0) return AnswerWaiting();

      // Connections with data come before new ones.
      auto wait = waits.begin() + 2;
      for (auto it = connections_.begin(); it != connections_.end(); ++wait) {
        const bool ready = wait->revents != 0;
        const bool open = it->waits ? AskAgain(&*it, ready)
                          : ready   ? Proceed(&*it)
                                    : absl::Now() < it->deadline;
        it = open ? std::next(it) : connections_.erase(it);
      }
      if (waits[1].revents != 0) Accept();
    }
  }

  static int TimeoutUntil(absl::Time until) {
    if (until == absl::InfiniteFuture()) return -1;
    const int64_t milliseconds = absl::ToInt64Milliseconds(until - absl::Now());
    return static_cast<int>(std::clamp<int64_t>(milliseconds + 1, 0, 60'000));
  }

  void Accept() {
    for (int i = 0; i < kAcceptsInRound; ++i) {
      Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.get() < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          if (!connections_.empty()) MakePlace();
          accept_after_ = absl::Now() + kAcceptPause;
        }
        if (errno == ECONNABORTED || errno == EINTR) continue;
        return;
      }

      if (connections_.size() >= options_.max_connections) MakePlace();
      Connection connection;
      connection.fd = std::move(fd);
      connection.deadline = absl::Now() + options_.patience;
      connections_.push_back(std::move(connection));
      // Usually the request has already arrived.
      if (!Proceed(&connections_.back())) connections_.pop_back();
    }
  }

  // Closes the oldest connection that is not being answered; if all are, the oldest.
  void MakePlace() {
    auto oldest =
        std::find_if(connections_.begin(), connections_.end(), [](const Connection& connection) {
          return (connection.reading() && !connection.waits) || connection.answered;
        });
    connections_.erase(oldest == connections_.end() ? connections_.begin() : oldest);
  }

  // Asks the page again for a client that waits. False: the connection is finished.
  bool AskAgain(Connection* connection, bool readable) {
    char byte;
    if (readable && recv(connection->fd.get(), &byte, 1, 0) <= 0) return false;
    const Answer answer = pages_[connection->page].answer();
    if (answer.code != 200 && absl::Now() < connection->deadline) return true;
    connection->waits = false;
    was_ok_[connection->page] = was_ok_[connection->page] || answer.code == 200;
    connection->response = ResponseOf(answer, true);
    connection->deadline = absl::Now() + options_.patience;
    return Proceed(connection);
  }

  void AnswerWaiting() {
    for (Connection& connection : connections_) {
      if (!connection.waits) continue;
      connection.deadline = absl::InfinitePast();
      AskAgain(&connection, false);
    }
  }

  // Does what is possible without waiting. False: the connection is finished.
  bool Proceed(Connection* connection) {
    if (connection->reading() && !Receive(connection)) return false;
    if (!connection->reading() && !connection->answered && !Send(connection)) return false;
    return !connection->answered || Drain(connection);
  }

  bool Receive(Connection* connection) {
    char buffer[2048];
    while (true) {
      const ssize_t size = recv(connection->fd.get(), buffer, sizeof(buffer), 0);
      if (size < 0) return errno == EAGAIN || errno == EINTR;
      if (size == 0) return false;
      connection->request.append(buffer, static_cast<size_t>(size));
      const size_t end = connection->request.find("\r\n\r\n");
      if (end == std::string::npos && connection->request.size() <= options_.max_request_bytes) {
        continue;
      }

      connection->response =
          end == std::string::npos || end > options_.max_request_bytes
              ? ResponseOf({431, absl::StrCat("a request has at most ", options_.max_request_bytes,
                                              " bytes (max_request_bytes)\n")},
                           true)
              : Respond(connection);
      connection->request = {};
      if (!connection->waits) connection->deadline = absl::Now() + options_.patience;
      return true;
    }
  }

  // Empty if the connection waits.
  std::string Respond(Connection* connection) {
    const absl::string_view request = connection->request;
    const absl::string_view line = request.substr(0, request.find("\r\n"));
    const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 3)
      return ResponseOf({400, "a request is GET, a path and HTTP/1.1\n"}, true);

    const bool head = parts[0] == "HEAD";
    if (!head && parts[0] != "GET")
      return ResponseOf({405, "only GET and HEAD are served\n"}, true);

    const std::pair<absl::string_view, absl::string_view> target =
        absl::StrSplit(parts[1], absl::MaxSplits('?', 1));
    for (size_t i = 0; i < pages_.size(); ++i) {
      if (pages_[i].path != target.first) continue;

      connection->page = i;
      connection->period = PeriodIn(target.second);
      const Answer answer = pages_[i].answer();
      connection->waits = answer.code != 200 && connection->period > absl::ZeroDuration() &&
                          pages_[i].wait > absl::ZeroDuration() && !was_ok_[i];
      was_ok_[i] = was_ok_[i] || answer.code == 200;

      if (!connection->waits) return ResponseOf(answer, !head);
      connection->deadline = absl::Now() + pages_[i].wait;
      return "";
    }
    return ResponseOf({404, "no such page\n"}, !head);
  }

  bool Send(Connection* connection) {
    while (connection->sent < connection->response.size()) {
      const ssize_t size =
          send(connection->fd.get(), connection->response.data() + connection->sent,
               connection->response.size() - connection->sent, MSG_NOSIGNAL);
      if (size < 0) return errno == EAGAIN || errno == EINTR;
      connection->sent += static_cast<size_t>(size);
    }

    // Sent: the client is to close, and its next probe is due after a period.
    connection->answered = true;
    if (connection->period > absl::ZeroDuration()) {
      MutexLock lock(&mutex_);
      probes_[connection->page] = Probe{connection->period, absl::Now()};
      answered_.SignalAll();
    }

    return shutdown(connection->fd.get(), SHUT_WR) == 0;
  }

  static bool Drain(Connection* connection) {
    char buffer[2048];
    const ssize_t size = recv(connection->fd.get(), buffer, sizeof(buffer), 0);
    return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
  }

  const Options options_;
  const std::vector<Page> pages_;
  Mutex mutex_;
  CondVar answered_;
  std::vector<std::optional<Probe>> probes_ ABSL_GUARDED_BY(mutex_);  // by page
  const Fd listener_;
  const Fd wake_;

  // Used only by the thread.
  std::vector<bool> was_ok_;           // by page: it has answered 200
  std::list<Connection> connections_;  // oldest first
  absl::Time accept_after_ = absl::InfinitePast();
  std::thread thread_;  // last: it uses the above
};

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(Options options,
                                                              std::vector<Page> pages) {
  ASSIGN_OR_RETURN(std::vector<Fd> listeners, ListenOn(options.address),
                   absl::Status(_.code(), absl::StrCat("metrics: ", _.message())));
  Fd listener = std::move(listeners.front());
  Fd wake(eventfd(0, EFD_CLOEXEC));
  if (wake.get() < 0) return absl::ErrnoToStatus(errno, "eventfd");
  const int port = LocalPort(listener.get());
  auto impl = std::make_unique<Impl>(std::move(options), std::move(pages), std::move(listener),
                                     std::move(wake));
  return std::unique_ptr<PageServer>(new PageServer(std::move(impl), port));
}

PageServer::PageServer(std::unique_ptr<Impl> impl, int port)
    : impl_(std::move(impl)), port_(port) {}
PageServer::~PageServer() = default;

void PageServer::AwaitProbes(absl::Duration quiet, const std::function<bool()>& hurry) {
  impl_->AwaitProbes(quiet, hurry);
}

}  // namespace sluice
