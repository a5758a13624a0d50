#include "services/common/io/fake_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

absl::Status Missing(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(path, ": no such file or directory"));
}

absl::Status NotAFile(const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot read ", path, ": it is a directory, not a file"));
}

absl::Status There(const std::string& path) {
  return absl::AlreadyExistsError(absl::StrCat(path, ": exists already"));
}

}  // namespace

class FakeWritableFile final : public WritableFile {
 public:
  FakeWritableFile(FakeFileSystem* files, std::string path,
                   std::shared_ptr<FakeFileSystem::Inode> inode, int power_cuts)
      : files_(files), path_(std::move(path)), inode_(std::move(inode)), power_cuts_(power_cuts) {}

  absl::Status Append(absl::string_view bytes) override {
    return files_->Append(path_, inode_.get(), power_cuts_, bytes);
  }
  absl::Status Sync() override { return files_->Sync(path_, inode_.get(), power_cuts_); }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  FakeFileSystem* const files_;
  const std::string path_;
  const std::shared_ptr<FakeFileSystem::Inode> inode_;
  const int power_cuts_;
};

FakeFileSystem::FakeFileSystem() : directories_({"/", "."}) {}

void FakeFileSystem::CutPower() {
  MutexLock lock(&mutex_);
  ++power_cuts_;
  names_ = durable_names_;
  for (auto& [path, inode] : names_) inode->content = inode->synced;
}

void FakeFileSystem::SetCapacity(uint64_t bytes) {
  MutexLock lock(&mutex_);
  capacity_ = bytes;
}

void FakeFileSystem::FailAfter(int number) {
  MutexLock lock(&mutex_);
  fail_at_ = number < 0 ? -1 : operations_ + number;
}

int FakeFileSystem::operations() const {
  MutexLock lock(&mutex_);
  return operations_;
}

absl::StatusOr<std::unique_ptr<WritableFile>> FakeFileSystem::Create(const std::string& path,
                                                                     bool exclusive) {
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(NeedDirectory(DirectoryOf(path)));
  const auto found = names_.find(path);
  if (exclusive && found != names_.end()) return There(path);
  RETURN_IF_ERROR(Change(path));
  std::shared_ptr<Inode>& inode = names_[path];
  if (inode == nullptr) inode = std::make_shared<Inode>();
  inode->content.clear();
  return std::make_unique<FakeWritableFile>(this, path, inode, power_cuts_);
}

absl::StatusOr<std::string> FakeFileSystem::Read(const std::string& path, size_t max_bytes) {
  MutexLock lock(&mutex_);
  const auto found = names_.find(path);
  if (directories_.count(path) > 0) return NotAFile(path);
  if (found == names_.end()) return Missing(path);
  if (found->second->content.size() > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot read ", path, ": it is longer than ", max_bytes, " bytes"));
  }
  return found->second->content;
}

absl::Status FakeFileSystem::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(&mutex_);
  const auto found = names_.find(from);
  if (found == names_.end()) return Missing(from);
  RETURN_IF_ERROR(NeedDirectory(DirectoryOf(to)));
  RETURN_IF_ERROR(Change(to));
  std::shared_ptr<Inode> inode = std::move(found->second);
  names_.erase(found);
  names_[to] = std::move(inode);
  return absl::OkStatus();
}

absl::Status FakeFileSystem::Link(const std::string& from, const std::string& to) {
  MutexLock lock(&mutex_);
  const auto found = names_.find(from);
  if (found == names_.end()) return Missing(from);
  RETURN_IF_ERROR(NeedDirectory(DirectoryOf(to)));
  if (const auto other = names_.find(to); other != names_.end()) {
    return other->second == found->second ? absl::OkStatus() : There(to);
  }
  RETURN_IF_ERROR(Change(to));
  names_.emplace(to, found->second);
  return absl::OkStatus();
}

absl::Status FakeFileSystem::Remove(const std::string& path) {
  MutexLock lock(&mutex_);
  if (names_.count(path) == 0) return Missing(path);
  RETURN_IF_ERROR(Change(path));
  names_.erase(path);
  return absl::OkStatus();
}

absl::Status FakeFileSystem::CreateDirectories(const std::string& path) {
  MutexLock lock(&mutex_);
  for (std::string part = path; directories_.count(part) == 0; part = DirectoryOf(part)) {
    if (names_.count(part) > 0) return absl::FailedPreconditionError(part + ": is not a directory");
    RETURN_IF_ERROR(Change(part));
    directories_.insert(part);
  }
  return absl::OkStatus();
}

absl::Status FakeFileSystem::RemoveDirectory(const std::string& path) {
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(NeedDirectory(path));
  const std::string prefix = path + "/";
  const auto inside = [&](const std::string& name) { return absl::StartsWith(name, prefix); };
  if (std::any_of(directories_.begin(), directories_.end(), inside) ||
      std::any_of(names_.begin(), names_.end(), [&](const auto& n) { return inside(n.first); })) {
    return absl::FailedPreconditionError(path + ": the directory is not empty");
  }
  RETURN_IF_ERROR(Change(path));
  directories_.erase(path);
  return absl::OkStatus();
}

absl::Status FakeFileSystem::SyncDirectory(const std::string& path) {
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(NeedDirectory(path));
  RETURN_IF_ERROR(Change(path));
  const auto in_it = [&](const std::string& name) { return DirectoryOf(name) == path; };
  for (auto it = durable_names_.begin(); it != durable_names_.end();) {
    it = in_it(it->first) ? durable_names_.erase(it) : std::next(it);
  }
  for (const auto& [name, inode] : names_) {
    if (in_it(name)) durable_names_[name] = inode;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FakeFileSystem::List(const std::string& path) {
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(NeedDirectory(path));
  std::vector<std::string> found;
  const auto note = [&](const std::string& name) {
    if (name != path && DirectoryOf(name) == path) found.push_back(FileNameOf(name));
  };
  for (const auto& [name, inode] : names_) note(name);
  for (const std::string& name : directories_) note(name);
  std::sort(found.begin(), found.end());
  return found;
}

absl::StatusOr<bool> FakeFileSystem::Exists(const std::string& path) {
  MutexLock lock(&mutex_);
  return names_.count(path) > 0 || directories_.count(path) > 0;
}

absl::StatusOr<uint64_t> FakeFileSystem::Size(const std::string& path) {
  MutexLock lock(&mutex_);
  const auto found = names_.find(path);
  if (directories_.count(path) > 0) return NotAFile(path);
  if (found == names_.end()) return Missing(path);
  return found->second->content.size();
}

// Counts a changing operation; returns its failure if it is to fail.
absl::Status FakeFileSystem::Change(const std::string& path) {
  const int number = operations_++;
  if (fail_at_ < 0 || number < fail_at_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": input/output error"));
}

absl::Status FakeFileSystem::NeedDirectory(const std::string& path) const {
  return directories_.count(path) > 0 ? absl::OkStatus() : Missing(path);
}

absl::Status FakeFileSystem::Append(const std::string& path, Inode* inode, int power_cuts,
                                    absl::string_view bytes) {
  MutexLock lock(&mutex_);
  if (power_cuts != power_cuts_) return absl::UnavailableError(path + ": the power was cut");
  RETURN_IF_ERROR(Change(path));
  const uint64_t used = BytesUsed();
  const uint64_t room = capacity_ > used ? capacity_ - used : 0;
  inode->content.append(bytes.data(), std::min<uint64_t>(bytes.size(), room));
  if (bytes.size() <= room) return absl::OkStatus();
  return absl::ResourceExhaustedError(path + ": no space left on device");
}

absl::Status FakeFileSystem::Sync(const std::string& path, Inode* inode, int power_cuts) {
  MutexLock lock(&mutex_);
  if (power_cuts != power_cuts_) return absl::UnavailableError(path + ": the power was cut");
  RETURN_IF_ERROR(Change(path));
  inode->synced = inode->content;
  return absl::OkStatus();
}

uint64_t FakeFileSystem::BytesUsed() const {
  std::set<const Inode*> counted;
  uint64_t used = 0;
  for (const auto& [path, inode] : names_) {
    if (counted.insert(inode.get()).second) used += inode->content.size();
  }
  return used;
}

}  // namespace sluice
