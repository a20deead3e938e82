// NCCL's functions, found while the program runs. Tests fill the table with functions of their own.
#pragma once

#include <nccl.h>

#include <string>

#include "base/base.h"

namespace trainlaunch {

#define TL_NCCL_FUNCTIONS(f)                                                                 \
  f(ncclGetVersion) f(ncclGetUniqueId) f(ncclGetErrorString) f(ncclCommInitRankConfig)       \
      f(ncclCommGetAsyncError) f(ncclCommFinalize) f(ncclCommDestroy) f(ncclCommAbort)       \
          f(ncclMemAlloc) f(ncclMemFree) f(ncclCommRegister) f(ncclCommDeregister)           \
              f(ncclGroupStart) f(ncclGroupEnd) f(ncclSend) f(ncclRecv) f(ncclReduceScatter) \
                  f(ncclReduce) f(ncclAllGather) f(ncclBroadcast)

struct NcclLibrary {
#define TL_MEMBER(name) decltype(::name)* name = nullptr;
  TL_NCCL_FUNCTIONS(TL_MEMBER)
#undef TL_MEMBER
};

Status check_nccl_version(int library, int header);

}  // namespace trainlaunch
