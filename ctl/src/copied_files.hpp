// Copies of what a side task has written, into a folder of the user's: names and kinds of files are the task's
// choosing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::ctl {

struct Copied {
  uint64_t files = 0, bytes = 0;
  uint64_t skipped = 0;  ///< links, sockets, and what went away meanwhile
};

/// Makes `folder`, unless it is one already. A link to one is none.
Status make_folder(const std::filesystem::path& folder);

/// A file under another name until it is whole: nobody sees half of it, and a link that lies at its place is replaced,
/// not followed. The destructor removes what was not finished. Blocks on the disk.
class PartFile {
 public:
  static Result<PartFile> make(const std::filesystem::path& to, bool executable);
  PartFile(PartFile&& other) noexcept = default;
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile();
  Status write(const std::string& bytes);
  Status finish();

 private:
  PartFile(std::filesystem::path to, std::filesystem::path part, Fd file)
      : to_(std::move(to)), part_(std::move(part)), file_(std::move(file)) {}
  std::filesystem::path to_, part_;
  Fd file_;
};

/// Copies `rest`, a file or a folder below the folder `granted` (or that itself: "."), to `to`. Links are followed
/// neither on the way nor in it, so that the task cannot have others' files copied, or written to. Ends at an
/// interrupt. Errors: kNotFound, kPermission (also a link on the way), the disk's.
Result<Copied> copy_below(const std::string& granted, const std::string& rest, const std::filesystem::path& to);

}  // namespace freeride::ctl
