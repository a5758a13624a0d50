#include "services/common/process/metrics.h"

#include <prometheus/check_names.h>
#include <prometheus/family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"

namespace sluice {
namespace {

using Type = MetricDescriptor::Type;

constexpr size_t kMaxLabelBytes = 1024;

// For wrong names, which are bugs of this program that its first test finds.
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

// The error that prometheus-cpp would write and Prometheus refuse, with the whole page; "" if none.
std::string WrongIn(const MetricDescriptor& row, const prometheus::Labels& constant) {
  // The text of a help line is written as it is.
  const bool one_line = IsUtf8(row.help) && row.help.find_first_of("\n\r\\") == row.help.npos;
  if (!one_line) return "its help text must be one line of UTF-8 without a backslash";

  std::set<std::string> names;
  for (const std::string& label : row.labels) {
    if (!prometheus::CheckLabelName(label) || label == "le") {
      return absl::StrCat("'", label, "' is not a label name");
    }
    if (constant.count(label) != 0 || !names.insert(label).second) {
      return absl::StrCat("it has label '", label, "' twice");
    }
  }

  const std::vector<double>& bounds = row.buckets;
  const bool ascend =
      std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end() &&
      std::all_of(bounds.begin(), bounds.end(), [](double bound) { return std::isfinite(bound); });
  return ascend ? "" : "its buckets must be finite and ascend";
}

PageServer::Answer AnswerOf(const std::function<absl::Status()>& check) {
  const absl::Status status = check ? check() : absl::OkStatus();
  if (status.ok()) return {200, "ok\n"};
  return {503, absl::StrCat(status.message(), "\n")};
}

}  // namespace

struct Metrics::Family {
  const MetricDescriptor descriptor;
  prometheus::Family<prometheus::Counter>* counters = nullptr;
  prometheus::Family<prometheus::Gauge>* gauges = nullptr;
  prometheus::Family<prometheus::Histogram>* histograms = nullptr;

  prometheus::Labels LabelsOf(const std::vector<std::string>& values) const {
    prometheus::Labels labels;
    for (size_t i = 0; i < values.size(); ++i) {
      labels[descriptor.labels[i]] = CleanUtf8(values[i], kMaxLabelBytes);
    }
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
  prometheus::Labels constant;
  for (const auto& [label, value] : constant_labels) {
    constant[label] = CleanUtf8(value, kMaxLabelBytes);
  }
  for (MetricDescriptor& row : table) {
    const std::string name = absl::StrCat("sluice_", row.name);
    const std::string key = row.name;
    Family family{std::move(row)};
    const MetricDescriptor& d = family.descriptor;

    const std::string wrong = WrongIn(d, constant);
    if (!wrong.empty()) Fatal(absl::StrCat(name, ": ", wrong));
    try {  // prometheus-cpp reports a malformed name only by an exception
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

Histogram Metrics::histogram(absl::string_view name, std::vector<std::string> label_values) {
  Family& family = Find(name, Type::kHistogram, label_values.size());
  return Histogram(
      &family.histograms->Add(family.LabelsOf(label_values), family.descriptor.buckets));
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

// A kubelet looks for containers that have ended once a second, and needs a moment to act on it.
void MetricsServer::AwaitProbes(const std::function<bool()>& hurry) {
  pages_->AwaitProbes(absl::Seconds(3), hurry);
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(Options options,
                                                                    const Metrics* metrics) {
  ASSIGN_OR_RETURN(
      std::unique_ptr<PageServer> pages,
      PageServer::Start(
          {.address = std::move(options.address)},
          {{"/metrics",
            [metrics] {
              return PageServer::Answer{200, metrics->Serialize()};
            }},
           {"/healthz", [alive = std::move(options.alive)] { return AnswerOf(alive); }},
           {"/readyz", [ready = std::move(options.ready)] { return AnswerOf(ready); },
            absl::Seconds(PageServer::kReadyWaitSeconds)}}));
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(pages)));
}

}  // namespace sluice
