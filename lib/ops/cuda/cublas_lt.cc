// Products by cuBLASLt. It counts in columns: a row-major matrix is its own transpose there, and
// c = op(a) op(b) is c^T = op(b)^T op(a)^T, so its A is our b and its B our a.

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "base/cuda/library.h"
#include "ops/cuda/products.h"

namespace trainlaunch::gpu {

namespace {

constexpr size_t workspace = size_t{32} << 20;  // what NVIDIA advises for Hopper and later

#define TL_CUBLAS_LT_FUNCTIONS(f)                                                      \
  f(cublasLtCreate) f(cublasLtDestroy) f(cublasLtGetVersion) f(cublasLtGetStatusName)  \
      f(cublasLtMatmul) f(cublasLtMatmulAlgoGetHeuristic) f(cublasLtMatmulDescCreate)  \
          f(cublasLtMatmulDescDestroy) f(cublasLtMatmulDescSetAttribute)               \
              f(cublasLtMatrixLayoutCreate) f(cublasLtMatrixLayoutDestroy)             \
                  f(cublasLtMatmulPreferenceCreate) f(cublasLtMatmulPreferenceDestroy) \
                      f(cublasLtMatmulPreferenceSetAttribute)

#define TL_TEXT(x) TL_TEXT_OF(x)
#define TL_TEXT_OF(x) #x
constexpr const char* library_name = "libcublasLt.so." TL_TEXT(CUBLAS_VER_MAJOR);

// The library's functions, under their own names.
struct CublasLt {
#define TL_MEMBER(name) decltype(::name)* name = nullptr;
  TL_CUBLAS_LT_FUNCTIONS(TL_MEMBER)
#undef TL_MEMBER

  static Result<CublasLt> open() {
    auto library = Library::open("cuBLASLt", {library_name});
    if (!library) return forward(library);
    CublasLt lt;
#define TL_FIND(name) \
  if (auto ok = library->find(#name, lt.name); !ok) return forward(ok);
    TL_CUBLAS_LT_FUNCTIONS(TL_FIND)
#undef TL_FIND
    return lt;
  }
};

// What a plan depends on: equal keys, equal plans. Alignments in bytes, 16 at most.
using Key = std::array<int64_t, 17>;

int64_t alignment_of(const void* p) {
  const auto low = reinterpret_cast<uintptr_t>(p) & 15;
  return low == 0 ? 16 : static_cast<int64_t>(low & (~low + 1));
}

Key key_of(const Product& p) {
  const int64_t flags = p.transposed_a | p.transposed_b << 1 | (p.bias != nullptr) << 2 |
                        (p.add != nullptr) << 3 | p.gelu << 4 | (p.pre != nullptr) << 5 |
                        (p.back != nullptr) << 6;
  return {p.m,
          p.n,
          p.k,
          p.lda,
          p.ldb,
          p.ldc,
          static_cast<int64_t>(p.in),
          static_cast<int64_t>(p.out),
          flags,
          alignment_of(p.a),
          alignment_of(p.b),
          alignment_of(p.c),
          alignment_of(p.add),
          alignment_of(p.bias),
          alignment_of(p.pre),
          alignment_of(p.back),
          p.add == p.c};
}

// How a product is done. Descriptors live as long as the process needs plans.
struct Plan {
  cublasLtMatmulDesc_t what = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t how{};
  Ending ending;
};

cudaDataType_t type_of(DType t) { return t == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

// What cuBLASLt calls an ending.
cublasLtEpilogue_t epilogue_of(const Product& p) {
  if (p.back) return CUBLASLT_EPILOGUE_DGELU;
  if (p.gelu && p.pre) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  if (p.gelu) return p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}
// The side matrix of an ending must begin its rows at multiples of 16 bytes.
bool can_end(const Product& p) {
  const void* side = p.back ? p.back : p.pre;
  return !side || (p.ldc % 8 == 0 && alignment_of(side) == 16);
}

class CublasProducts final : public Products {
 public:
  static Result<std::unique_ptr<Products>> make(int device) {
    auto lt = CublasLt::open();
    if (!lt) return forward(lt);
    const size_t version = lt->cublasLtGetVersion();
    if (version < CUBLAS_VER_MAJOR * 10000)
      return fail("cuBLASLt is version " + std::to_string(version) + ", older than the " +
                  std::to_string(CUBLAS_VERSION) + " that this was built with");
    if (const auto e = cudaSetDevice(device))
      return fail(std::string("cannot use the GPU: ") + cudaGetErrorString(e));
    auto products = std::make_unique<CublasProducts>(*lt);
    if (auto ok = products->check(lt->cublasLtCreate(&products->handle_), "start"); !ok)
      return forward(ok);
    return products;
  }
  explicit CublasProducts(const CublasLt& lt) : lt_(lt) {}
  ~CublasProducts() override {
    for (auto& [key, plan] : plans_) destroy(plan);
    if (handle_) lt_.cublasLtDestroy(handle_);
  }

  size_t workspace_bytes() const override { return workspace; }

  Result<Ending> run(void* stream, const Product& p, void* scratch) override {
    auto found = plans_.find(key_of(p));
    if (found == plans_.end()) {
      auto plan = make_plan(p);
      if (!plan) return forward(plan);
      found = plans_.emplace(key_of(p), *plan).first;
    }
    Plan& plan = found->second;
    if (plan.ending.bias) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (const void* side = p.back ? p.back : p.pre; side && (plan.ending.gelu || plan.ending.back))
      set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, side);
    const float one = 1.0f, beta = p.add ? 1.0f : 0.0f;
    const auto status = lt_.cublasLtMatmul(
        handle_, plan.what, &one, p.b, plan.a, p.a, plan.b, &beta, p.add ? p.add : p.c, plan.c, p.c,
        plan.c, &plan.how, scratch, workspace, static_cast<cudaStream_t>(stream));
    if (auto ok = check(status, "run " + describe(p)); !ok) return forward(ok);
    return plan.ending;
  }

  Status started() override {
    if (const auto e = cudaGetLastError(); e != cudaSuccess && e != cudaErrorNotReady)
      return fail(std::string("cannot start work on the GPU: ") + cudaGetErrorString(e));
    return {};
  }

 private:
  static std::string describe(const Product& p) {
    return "a " + std::string(name_of(p.in)) + " product [" + std::to_string(p.m) + ", " +
           std::to_string(p.k) + "] x [" + std::to_string(p.k) + ", " + std::to_string(p.n) + "]";
  }
  Status check(cublasStatus_t status, const std::string& what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return fail("cuBLASLt cannot " + what + ": " + lt_.cublasLtGetStatusName(status));
  }

  template <class T>
  bool set(Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    return lt_.cublasLtMatmulDescSetAttribute(plan.what, attribute, &value, sizeof(value)) ==
           CUBLAS_STATUS_SUCCESS;
  }

  // With everything at its end if the library can, else without, else not at all.
  Result<Plan> make_plan(const Product& p) const {
    if (can_end(p)) {
      if (auto plan = make_plan(p, epilogue_of(p))) {
        plan->ending = {p.bias != nullptr, true, p.gelu, p.back != nullptr};
        return plan;
      }
    }
    auto plan = make_plan(p, CUBLASLT_EPILOGUE_DEFAULT);
    if (plan) plan->ending.add = true;
    return plan;
  }

  Result<Plan> make_plan(const Product& p, cublasLtEpilogue_t epilogue) const {
    Plan plan;
    if (auto ok = describe_to(p, epilogue, plan); !ok) {
      destroy(plan);
      return forward(ok);
    }
    auto how = choose(p, plan);
    if (!how) {
      destroy(plan);
      return forward(how);
    }
    plan.how = *how;
    return plan;
  }

  Status describe_to(const Product& p, cublasLtEpilogue_t epilogue, Plan& plan) const {
    const std::string what = "describe " + describe(p);
    const auto layout = [&](cublasLtMatrixLayout_t& to, DType t, int64_t rows, int64_t cols,
                            int64_t stride) {
      return lt_.cublasLtMatrixLayoutCreate(&to, type_of(t), static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(cols), stride);
    };
    for (const auto status :
         {lt_.cublasLtMatmulDescCreate(&plan.what, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          p.transposed_b ? layout(plan.a, p.in, p.k, p.n, p.ldb)
                         : layout(plan.a, p.in, p.n, p.k, p.ldb),
          p.transposed_a ? layout(plan.b, p.in, p.m, p.k, p.lda)
                         : layout(plan.b, p.in, p.k, p.m, p.lda),
          layout(plan.c, p.out, p.n, p.m, p.ldc)})
      if (auto ok = check(status, what); !ok) return ok;

    bool set_all =
        set(plan, CUBLASLT_MATMUL_DESC_TRANSA, p.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N) &&
        set(plan, CUBLASLT_MATMUL_DESC_TRANSB, p.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N) &&
        set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
      if (p.bias) set_all = set_all && set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
      if (const void* side = p.back ? p.back : p.pre)
        set_all = set_all && set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, side) &&
                  set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldc);
    }
    if (!set_all) return fail("cuBLASLt cannot " + what);
    return {};
  }

  // The library's first choice among those that add up in one order, in f32.
  Result<cublasLtMatmulAlgo_t> choose(const Product& p, const Plan& plan) const {
    cublasLtMatmulPreference_t preference = nullptr;
    if (auto ok = check(lt_.cublasLtMatmulPreferenceCreate(&preference), "start"); !ok)
      return forward(ok);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      lt_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    const auto bytes = [](const void* at) { return static_cast<uint32_t>(alignment_of(at)); };
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(p.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(p.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(p.add ? p.add : p.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(p.c));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const auto status = lt_.cublasLtMatmulAlgoGetHeuristic(
        handle_, plan.what, plan.a, plan.b, plan.c, plan.c, preference, 1, &result, &found);
    lt_.cublasLtMatmulPreferenceDestroy(preference);
    if (auto ok = check(status, "find a way to do " + describe(p)); !ok) return forward(ok);
    if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS)
      return fail("cuBLASLt knows no way to do " + describe(p));
    return result.algo;
  }

  void destroy(Plan& plan) const {
    for (auto layout : {plan.a, plan.b, plan.c})
      if (layout) lt_.cublasLtMatrixLayoutDestroy(layout);
    if (plan.what) lt_.cublasLtMatmulDescDestroy(plan.what);
  }

  const CublasLt lt_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace

Result<std::unique_ptr<Products>> make_cublas_products(int device) {
  return CublasProducts::make(device);
}

}  // namespace trainlaunch::gpu
