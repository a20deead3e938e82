// Matrix products on a GPU, as CudaOps asks for them. cublas_lt.cc is the implementation; tests
// have one on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/base.h"

namespace trainlaunch::gpu {

// Row-major c [m, n] = op(a) op(b), of numbers of type `in`, and what it may end with. Leading
// dimensions count elements from one row in memory to the next.
struct Product {
  int64_t m, n, k;
  bool transposed_a = false, transposed_b = false;
  DType in, out;  // in: of a, b and everything else; out: of c and add
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  int64_t lda, ldb, ldc;       // ldc is also that of add, pre and back
  const void* bias = nullptr;  // [n]: + bias
  const void* add = nullptr;   // + add; may be c
  bool gelu = false;           // gelu of all that
  void* pre = nullptr;         // what gelu was applied to
  const void* back = nullptr;  // * gelu'(back)
};

// Which of the things at a product's end are done with it; the rest is the caller's.
struct Ending {
  bool bias = false, add = false, gelu = false, back = false;  // gelu stands for pre too
};

class Products {
 public:
  virtual ~Products() = default;
  // Of scratch memory, for any product.
  virtual size_t workspace_bytes() const = 0;
  // Enqueues. What is found out about a shape is kept, so that equal shapes cost no search. `add`
  // is always done.
  virtual Result<Ending> run(void* stream, const Product& p, void* workspace) = 0;
  // Why a kernel of this thread could not be started, if one could not.
  virtual Status started() = 0;
};

// By cuBLASLt, which is opened while the program runs. An error where it is not there, or older
// than the one this was compiled with.
Result<std::unique_ptr<Products>> make_cublas_products(int device);

}  // namespace trainlaunch::gpu
