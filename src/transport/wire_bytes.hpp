// Numbers and texts as bytes, in little-endian order, and back. A reader that is given too little, or a text
// longer than its limit, says so once at the end and reads zeros until then.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "switchyard/detail/transport/transport.hpp"

namespace switchyard {

class ByteWriter {
 public:
  template <typename T>
  ByteWriter& number(T value) {
    static_assert(std::is_integral_v<T>);
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i) & 0xff));
    return *this;
  }
  ByteWriter& text(const std::string& value) {
    number(static_cast<uint32_t>(value.size()));
    const auto* begin = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), begin, begin + value.size());
    return *this;
  }
  ByteWriter& bytes(const Bytes& value) {
    number(static_cast<uint32_t>(value.size()));
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(const Bytes& bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    uint64_t value = 0;
    if (!has(sizeof(T))) return T{};
    for (size_t i = 0; i < sizeof(T); ++i) value |= std::to_integer<uint64_t>(bytes_[at_ + i]) << (8 * i);
    at_ += sizeof(T);
    return static_cast<T>(value);
  }
  std::string text(size_t max_size) {
    const Bytes value = bytes(max_size);
    return {reinterpret_cast<const char*>(value.data()), value.size()};
  }
  Bytes bytes(size_t max_size) {
    const size_t size = number<uint32_t>();
    if (size > max_size || !has(size)) {
      is_whole_ = false;
      return {};
    }
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(at_);
    at_ += size;
    return {begin, begin + static_cast<std::ptrdiff_t>(size)};
  }
  // Whether everything was there so far, and whether nothing is left.
  bool is_whole() const { return is_whole_; }
  bool is_at_end() const { return is_whole_ && at_ == bytes_.size(); }

 private:
  bool has(size_t size) {
    if (bytes_.size() - at_ < size) is_whole_ = false;
    return is_whole_;
  }

  const Bytes& bytes_;
  size_t at_ = 0;
  bool is_whole_ = true;
};

}  // namespace switchyard
