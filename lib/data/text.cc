#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "data/data.h"

namespace trainlaunch {

namespace {

class TextFile final : public Text {
 public:
  TextFile(std::string path, int64_t context)
      : path_(std::move(path)), context_(static_cast<uint64_t>(context)), row_(context_ + 1) {}

  Status start() {
    // O_NONBLOCK: opening a FIFO by mistake must not hang.
    fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd_) return fail_errno("data.path: cannot open " + path_, exit_code::usage);
    struct stat st;
    if (fstat(fd_.get(), &st) != 0) return fail_errno("data.path: " + path_, exit_code::usage);
    if (!S_ISREG(st.st_mode))
      return fail("data.path: " + path_ + " is not a regular file", exit_code::usage);
    bytes_ = static_cast<uint64_t>(st.st_size);
    validation_begin_ = bytes_ - bytes_ / 10;
    training_samples_ = windows(validation_begin_);
    validation_samples_ = windows(bytes_ - validation_begin_);
    if (training_samples_ == 0 || validation_samples_ == 0)
      return fail("data.path: " + path_ + " is too short: " + std::to_string(bytes_) +
                      " bytes, where model.context=" + std::to_string(context_) +
                      " needs at least " + std::to_string(10 * (context_ + 1)),
                  exit_code::usage);
    return take_digest();
  }

  uint64_t bytes() const override { return bytes_; }
  uint64_t training_samples() const override { return training_samples_; }
  uint64_t validation_samples() const override { return validation_samples_; }
  const std::string& digest() const override { return digest_; }

  Status training(uint64_t sample, int32_t* tokens, int32_t* targets) override {
    return window(sample * context_, tokens, targets);
  }
  Status validation(uint64_t sample, int32_t* tokens, int32_t* targets) override {
    return window(validation_begin_ + sample * context_, tokens, targets);
  }

 private:
  uint64_t windows(uint64_t part) const { return part > 0 ? (part - 1) / context_ : 0; }

  Status take_digest() {
    Digest digest;
    std::vector<std::byte> chunk(std::min<uint64_t>(bytes_, uint64_t{1} << 20));
    for (uint64_t at = 0; at < bytes_;) {
      const size_t n = std::min<uint64_t>(chunk.size(), bytes_ - at);
      if (auto s = read_fully(fd_.get(), chunk.data(), n, at, "data.path: " + path_); !s) return s;
      digest.update(chunk.data(), n);
      at += n;
    }
    digest_ = digest.hex();
    return {};
  }

  Status window(uint64_t offset, int32_t* tokens, int32_t* targets) {
    if (auto s = read_fully(fd_.get(), row_.data(), row_.size(), offset, "data.path: " + path_); !s)
      return s;
    std::copy(row_.begin(), row_.end() - 1, tokens);
    std::copy(row_.begin() + 1, row_.end(), targets);
    return {};
  }

  std::string path_;
  uint64_t context_;
  std::vector<uint8_t> row_;  // one sample
  Fd fd_;
  uint64_t bytes_ = 0, validation_begin_ = 0;
  uint64_t training_samples_ = 0, validation_samples_ = 0;
  std::string digest_;
};

}  // namespace

Result<std::unique_ptr<Text>> Text::open(const std::string& path, int64_t context) {
  if (path.empty()) return fail("data.path is not set: the text to train on", exit_code::usage);
  auto text = std::make_unique<TextFile>(path, context);
  if (auto s = text->start(); !s) return forward(s);
  return text;
}

}  // namespace trainlaunch
