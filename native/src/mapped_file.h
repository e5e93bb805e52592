// A file in memory, read-only, without being read first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace draftproof {

/// A regular file mapped whole. Moves, never copies. Bytes may be read from any thread.
///
/// The mapping is the file: if another program rewrites it in place the bytes change, and if it
/// makes the file shorter, reading beyond the new end kills the process (SIGBUS on POSIX systems).
/// Replacing a file by renaming another over it is safe.
class MappedFile {
 public:
  MappedFile() = default;

  /// `path` is as the system wants it; on Windows it is UTF-8. Throws std::system_error with the
  /// system's code.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }

  /// Null for an empty file.
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  /// Those bytes are not needed any more, so that their pages need not count as this process's
  /// memory. Only whole pages are let go; reading them again is allowed and fetches them again.
  /// Does nothing where the system has no such call.
  void forget(size_t offset, size_t bytes) const;

 private:
  void swap(MappedFile& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace draftproof
