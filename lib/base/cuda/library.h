// A shared library that is opened while the program runs, so that the program starts, and does all
// else, where it is not installed.
#pragma once

#include <initializer_list>
#include <string>

#include "base/result.h"

namespace trainlaunch {

class Library {
 public:
  // The first of `names` that is found: by the system's own search, or in the folder of the CUDA
  // Toolkit that this was built with. Stays open for good. `what` is for the error.
  static Result<Library> open(const std::string& what, std::initializer_list<const char*> names);

  // Sets a pointer to the function of that name.
  template <class F>
  Status find(const char* name, F*& function) const {
    void* p = nullptr;
    if (auto ok = find_symbol(name, p); !ok) return ok;
    function = reinterpret_cast<F*>(p);
    return {};
  }

 private:
  Library(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  Status find_symbol(const char* name, void*& p) const;

  std::string name_;
  void* handle_;
};

}  // namespace trainlaunch
