#include "base/cuda/library.h"

#include <dlfcn.h>

namespace trainlaunch {

namespace {

// dlerror()'s text is for a programmer; the first library that failed is the one that counts.
std::string last_error() {
  const char* text = dlerror();
  return text ? text : "not found";
}

}  // namespace

Result<Library> Library::open(const std::string& what, std::initializer_list<const char*> names) {
  std::string first_error;
  for (const std::string& folder : {std::string(), std::string(TL_CUDA_LIBDIR "/")}) {
    for (const char* name : names) {
      if (void* handle = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL))
        return Library(name, handle);
      std::string error = last_error();
      if (first_error.empty()) first_error = std::move(error);
    }
  }
  return fail("no " + what + ": " + first_error);
}

Status Library::find_symbol(const char* name, void*& p) const {
  p = dlsym(handle_, name);
  if (!p) return fail(name_ + " has no " + name + ": it is too old");
  return {};
}

}  // namespace trainlaunch
