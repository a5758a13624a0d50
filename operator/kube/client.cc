#include "operator/kube/client.h"

#include <iterator>
#include <utility>

#include "operator/kube/api_error.h"

namespace sluice::kube {

absl::StatusOr<ListPage> ListAll(Client* client, const ResourceType& type, ListOptions options,
                                 int max_restarts, const std::function<void(Json*)>& strip) {
  ListPage all;
  while (true) {
    absl::StatusOr<ListPage> page = client->List(type, options);
    if (!page.ok()) {
      const bool expired = IsExpired(page.status()) && !options.continue_token.empty();
      if (!expired || max_restarts-- <= 0) return page.status();
      all = ListPage();
      options.continue_token.clear();
      continue;
    }

    if (strip) {
      for (Json& item : page->items) strip(&item);
    }

    all.items.insert(all.items.end(), std::make_move_iterator(page->items.begin()),
                     std::make_move_iterator(page->items.end()));
    all.resource_version = std::move(page->resource_version);
    options.continue_token = std::move(page->continue_token);
    if (options.continue_token.empty()) return all;
  }
}

absl::StatusOr<Json> CreateOrFind(Client* client, const ResourceType& type, absl::string_view ns,
                                  const Json& object, const WriteOptions& options,
                                  const std::function<bool(const Json&)>& is_ours, int tries) {
  const ObjectKey key{std::string(ns), GetString(object, {"metadata", "name"})};
  if (key.name.empty()) {
    return absl::InvalidArgumentError(
        "the object needs a name: without one it cannot be found after a lost answer");
  }
  absl::Status last = absl::InvalidArgumentError("the number of tries must be positive");

  for (int i = 0; i < tries; ++i) {
    absl::StatusOr<Json> created = client->Create(type, ns, object, options);
    if (created.ok()) return created;
    last = created.status();
    if (!IsOutcomeUnknown(last) && !absl::IsAlreadyExists(last)) return last;

    absl::StatusOr<Json> found = client->Get(type, key, Subresource::kNone);
    if (found.ok()) {
      if (is_ours(*found)) return found;
      return absl::AlreadyExistsError(
          Annotate(last, type.resource + " " + key.ToString() + " belongs to another owner")
              .message());
    }
    if (!absl::IsNotFound(found.status())) return found.status();
  }
  return last;
}

}  // namespace sluice::kube
