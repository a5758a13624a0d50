#include "services/common/metrics.h"

#include <CivetServer.h>
#include <dlfcn.h>
#include <errno.h>
#include <prometheus/family.h>
#include <prometheus/text_serializer.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

// civetweb, the HTTP server in prometheus-cpp, asks for threads with stacks of 100 KiB. glibc takes
// a thread's local storage from its stack, and the libraries below LibTorch (OpenBLAS, glog) have
// that much of it alone: no thread starts, and the server blames the port. There is no option for
// the size, so the call is answered here: the program's symbol comes before the C library's.
extern "C" __attribute__((visibility("default"))) int pthread_attr_setstacksize(
    pthread_attr_t* attributes, size_t bytes) noexcept {
  constexpr size_t kLeast = size_t{1} << 20;
  using Function = int (*)(pthread_attr_t*, size_t);
  static const Function next =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_attr_setstacksize"));
  if (next == nullptr) return EINVAL;
  return next(attributes, bytes < kLeast ? kLeast : bytes);
}

namespace sluice {
namespace {

using Type = MetricDescriptor::Type;

// Wrong names are mistakes of this program, found by its first test.
[[noreturn]] void Fatal(const std::string& what) {
  std::fprintf(stderr, "metrics: %s\n", what.c_str());
  std::abort();
}

const char* TypeName(Type type) {
  switch (type) {
    case Type::kCounter:
      return "counter";
    case Type::kGauge:
      return "gauge";
    case Type::kHistogram:
      return "histogram";
  }
  return "unknown";
}

// Answers GET on one path.
class Page final : public CivetHandler {
 public:
  struct Answer {
    int code;
    std::string text;
  };
  explicit Page(std::function<Answer()> answer) : answer_(std::move(answer)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    const Answer answer = answer_();
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
              "Content-Length: %zu\r\n\r\n",
              answer.code, answer.code == 200 ? "OK" : "Service Unavailable", answer.text.size());
    mg_write(connection, answer.text.data(), answer.text.size());
    return true;
  }

 private:
  const std::function<Answer()> answer_;
};

}  // namespace

struct Metrics::Family {
  const MetricDescriptor descriptor;
  prometheus::Family<prometheus::Counter>* counters = nullptr;
  prometheus::Family<prometheus::Gauge>* gauges = nullptr;
  prometheus::Family<prometheus::Histogram>* histograms = nullptr;

  prometheus::Labels LabelsOf(const std::vector<std::string>& values) const {
    prometheus::Labels labels;
    for (size_t i = 0; i < values.size(); ++i) labels[descriptor.labels[i]] = values[i];
    return labels;
  }
};

std::vector<double> ExponentialBuckets(double first, double factor, int count) {
  std::vector<double> bounds;
  for (double bound = first; count > 0; --count, bound *= factor) bounds.push_back(bound);
  return bounds;
}

Metrics::Metrics(std::vector<MetricDescriptor> table,
                 std::map<std::string, std::string> constant_labels) {
  const prometheus::Labels constant(constant_labels.begin(), constant_labels.end());
  for (MetricDescriptor& row : table) {
    const std::string name = absl::StrCat("sluice_", row.name);
    const std::string key = row.name;
    Family family{std::move(row)};
    const MetricDescriptor& d = family.descriptor;
    try {  // prometheus-cpp's only way to say that a name is malformed
      switch (d.type) {
        case Type::kCounter:
          family.counters =
              &prometheus::BuildCounter().Name(name).Help(d.help).Labels(constant).Register(
                  registry_);
          break;
        case Type::kGauge:
          family.gauges =
              &prometheus::BuildGauge().Name(name).Help(d.help).Labels(constant).Register(
                  registry_);
          break;
        case Type::kHistogram:
          family.histograms =
              &prometheus::BuildHistogram().Name(name).Help(d.help).Labels(constant).Register(
                  registry_);
          break;
      }
    } catch (const std::exception& error) {
      Fatal(absl::StrCat(name, ": ", error.what()));
    }
    if (!families_.emplace(key, std::move(family)).second) Fatal(name + " is in the table twice");
  }
}

Metrics::~Metrics() = default;

Metrics::Family& Metrics::Find(absl::string_view name, Type type, size_t labels) {
  const auto found = families_.find(name);
  if (found == families_.end()) Fatal(absl::StrCat(name, " is not in the table"));
  const MetricDescriptor& descriptor = found->second.descriptor;
  if (descriptor.type != type || descriptor.labels.size() != labels) {
    Fatal(absl::StrCat(name, " is a ", TypeName(descriptor.type), " with ",
                       descriptor.labels.size(), " labels"));
  }
  return found->second;
}

prometheus::Counter& Metrics::counter(absl::string_view name,
                                      std::vector<std::string> label_values) {
  Family& family = Find(name, Type::kCounter, label_values.size());
  return family.counters->Add(family.LabelsOf(label_values));
}

prometheus::Gauge& Metrics::gauge(absl::string_view name, std::vector<std::string> label_values) {
  Family& family = Find(name, Type::kGauge, label_values.size());
  return family.gauges->Add(family.LabelsOf(label_values));
}

prometheus::Histogram& Metrics::histogram(absl::string_view name,
                                          std::vector<std::string> label_values) {
  Family& family = Find(name, Type::kHistogram, label_values.size());
  return family.histograms->Add(family.LabelsOf(label_values), family.descriptor.buckets);
}

void Metrics::RemoveGauge(absl::string_view name, const std::vector<std::string>& label_values) {
  Family& family = Find(name, Type::kGauge, label_values.size());
  family.gauges->Remove(&family.gauges->Add(family.LabelsOf(label_values)));
}

std::string Metrics::Serialize() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, registry_.Collect());
  return out.str();
}

std::string DescribeMetrics(const std::vector<MetricDescriptor>& table) {
  std::vector<std::string> lines;
  for (const MetricDescriptor& row : table) {
    lines.push_back(absl::StrCat("sluice_", row.name, "{", absl::StrJoin(row.labels, ","), "} ",
                                 TypeName(row.type), ": ", row.help, "\n"));
  }
  std::sort(lines.begin(), lines.end());
  return absl::StrJoin(lines, "");
}

MetricsServer::MetricsServer() = default;
MetricsServer::~MetricsServer() { server_ = nullptr; }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(Options options,
                                                                    const Metrics* metrics) {
  auto result = std::unique_ptr<MetricsServer>(new MetricsServer());
  try {  // CivetServer's only way to say it
    result->server_ = std::make_unique<CivetServer>(std::vector<std::string>{
        "listening_ports", options.address, "num_threads", "2", "request_timeout_ms", "5000"});
  } catch (const CivetException& error) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", options.address,
                                               ": the port is in use, or the address is not one "
                                               "of this machine (",
                                               error.what(), ")"));
  }
  result->port_ = result->server_->getListeningPorts().front();
  const auto serve = [&](const char* path, std::function<Page::Answer()> answer) {
    result->handlers_.push_back(std::make_unique<Page>(std::move(answer)));
    result->server_->addHandler(path, result->handlers_.back().get());
  };
  serve("/metrics$", [metrics] { return Page::Answer{200, metrics->Serialize()}; });
  const auto serve_check = [&](const char* path, std::function<absl::Status()> check) {
    serve(path, [check = std::move(check)] {
      const absl::Status status = check ? check() : absl::OkStatus();
      if (status.ok()) return Page::Answer{200, "ok\n"};
      return Page::Answer{503, absl::StrCat(status.message(), "\n")};
    });
  };
  serve_check("/healthz$", std::move(options.alive));
  serve_check("/readyz$", std::move(options.ready));
  return result;
}

}  // namespace sluice
