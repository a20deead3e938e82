#include "comm/nccl/nccl_library.h"

#include "base/cuda/library.h"
#include "comm/nccl/nccl_comm.h"

namespace trainlaunch {

namespace {

// 2.28.9 is 22809.
std::string version_text(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

}  // namespace

// Within a minor version neither structures nor meanings change.
Status check_nccl_version(int library, int header) {
  if (library / 100 >= header / 100) return {};
  return fail("NCCL is " + version_text(library) + ", older than the " + version_text(header) +
              " that this was built with: install that or a newer one");
}

Result<std::shared_ptr<const NcclLibrary>> open_nccl() {
  auto library = Library::open("NCCL", {"libnccl.so.2", "libnccl.so"});
  if (!library) return forward(library);
  NcclLibrary nccl;
  if (auto ok = library->find("ncclGetVersion", nccl.ncclGetVersion); !ok) return forward(ok);
  int version = 0;
  nccl.ncclGetVersion(&version);
  if (auto ok = check_nccl_version(version, NCCL_VERSION_CODE); !ok) return forward(ok);
#define TL_FIND(name) \
  if (auto ok = library->find(#name, nccl.name); !ok) return forward(ok);
  TL_NCCL_FUNCTIONS(TL_FIND)
#undef TL_FIND
  return std::make_shared<const NcclLibrary>(nccl);
}

}  // namespace trainlaunch
