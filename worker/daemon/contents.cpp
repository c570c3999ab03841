#include "daemon/contents.hpp"

#include <utility>

namespace freeride::worker {
namespace {

policy::Verdict not_had(const Error& error) {
  const std::string message = "its plugin could not be had: " + error.text();
  if (error.code == Code::kInvalidArgument || error.code == Code::kVersion)
    return {policy::VerdictKind::kRejected, policy::Cause::kPlugin, message};
  return {policy::VerdictKind::kLost, policy::Cause::kSandbox, message};
}

}  // namespace

void Contents::get(Request wanted) {
  const auto request = std::make_shared<const Request>(std::move(wanted));
  auto file = std::make_shared<Result<std::filesystem::path>>(Error{Code::kNotFound, "", ""});
  background_.run(
      [this, request, file, dropped = drop_folder_.files_of(request->sha256)] {
        *file = store_.get(request->sha256);
        if (!file->ok() && DropFolder::restore(dropped, request->sha256, store_)) *file = store_.get(request->sha256);
      },
      [this, request, file] {
        if (!request->wanted()) return;
        if (file->ok()) return request->found(**file);
        fetch(request);
      });
}

void Contents::fetch(const std::shared_ptr<const Request>& request) {
  fetch_(request->sha256, [this, request](Result<std::string> bytes) {
    if (!request->wanted()) return;
    if (!bytes.ok()) return request->failed(not_had(bytes.error()));
    store(request, std::move(*bytes));
  });
}

void Contents::store(const std::shared_ptr<const Request>& request, std::string bytes) {
  auto content = std::make_shared<std::string>(std::move(bytes));
  auto stored = std::make_shared<Result<std::string>>(std::string());
  auto file = std::make_shared<Result<std::filesystem::path>>(Error{Code::kNotFound, "", ""});
  background_.run(
      [this, content, stored, file] {
        *stored = store_.put(*content);
        content->clear();
        if (stored->ok()) *file = store_.get(**stored);
      },
      [this, request, stored, file] {
        if (!request->wanted()) return;
        if (!stored->ok()) return request->failed(not_had(stored->error()));
        if (**stored != request->sha256) {
          return request->failed({policy::VerdictKind::kRejected, policy::Cause::kRefused,
                                  "the manager sent other content than " + request->sha256});
        }
        fetched_.insert(request->sha256);
        if (!file->ok()) return request->failed(not_had(file->error()));
        request->found(**file);
      });
}

void Contents::drop(const std::string& sha256) {
  if (fetched_.erase(sha256) != 0) store_.remove(sha256);
}

}  // namespace freeride::worker
