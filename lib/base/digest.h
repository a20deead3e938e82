// The digest of files and checkpoints: XXH3-128 (xxhash.com), taken piece by piece. It finds
// accidents, at memory speed; it is no protection against intent.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace trainlaunch {

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void update(const void* data, size_t size);
  std::string hex() const;  // of everything so far: 32 characters

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainlaunch
