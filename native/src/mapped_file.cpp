#include "mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace draftproof {

#if defined(_WIN32)

namespace {

/// A handle that is closed at the end: a view keeps the file open by itself.
struct Handle {
  HANDLE handle;
  ~Handle() {
    if (handle != nullptr && handle != INVALID_HANDLE_VALUE) CloseHandle(handle);
  }
};

[[noreturn]] void fail(const std::string& path) {
  const int code = static_cast<int>(GetLastError());
  throw std::system_error(code, std::system_category(), path);
}

std::wstring wide(const std::string& path) {
  const int bytes = static_cast<int>(path.size());
  const int length =
      MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, nullptr, 0);
  if (length <= 0) fail(path);
  std::wstring result(static_cast<size_t>(length), L'\0');
  MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, &result[0], length);
  return result;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Handle file{CreateFileW(wide(path).c_str(), GENERIC_READ,
                                FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr, OPEN_EXISTING,
                                FILE_FLAG_SEQUENTIAL_SCAN, nullptr)};
  LARGE_INTEGER size;
  if (file.handle == INVALID_HANDLE_VALUE || !GetFileSizeEx(file.handle, &size)) fail(path);
  if (static_cast<unsigned long long>(size.QuadPart) > SIZE_MAX) {
    throw std::system_error(ERROR_FILE_TOO_LARGE, std::system_category(), path);
  }
  if (size.QuadPart == 0) return;
  const Handle mapping{CreateFileMappingW(file.handle, nullptr, PAGE_READONLY, 0, 0, nullptr)};
  if (mapping.handle == nullptr) fail(path);
  const void* view = MapViewOfFile(mapping.handle, FILE_MAP_READ, 0, 0, 0);
  if (view == nullptr) fail(path);
  data_ = static_cast<const uint8_t*>(view);
  size_ = static_cast<size_t>(size.QuadPart);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) UnmapViewOfFile(data_);
}

void MappedFile::forget(size_t, size_t) const {}

#else

namespace {

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

[[noreturn]] void fail(int code, const std::string& path) {
  throw std::system_error(code, std::generic_category(), path);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: a pipe that nobody writes to would wait for ever.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat status;
  if (file.number < 0 || fstat(file.number, &status) != 0) fail(errno, path);
  if (S_ISDIR(status.st_mode)) fail(EISDIR, path);
  if (!S_ISREG(status.st_mode)) fail(ENODEV, path);
  if (static_cast<unsigned long long>(status.st_size) > SIZE_MAX) fail(EFBIG, path);
  const size_t size = static_cast<size_t>(status.st_size);
  if (size == 0) return;
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (mapped == MAP_FAILED) fail(errno, path);
  madvise(mapped, size, MADV_SEQUENTIAL);  // a hint: read ahead; whether it is taken is no matter
  data_ = static_cast<const uint8_t*>(mapped);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::forget(size_t offset, size_t bytes) const {
  if (offset >= size_) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t end = offset + std::min(bytes, size_ - offset);
  const size_t first = (offset + page - 1) / page * page;
  // The last page of the file is let go with its end, though the file does not fill it.
  const size_t last = end == size_ ? end : end / page * page;
  if (first < last) madvise(const_cast<uint8_t*>(data_) + first, last - first, MADV_DONTNEED);
}

#endif

}  // namespace draftproof
