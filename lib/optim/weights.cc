#include "optim/weights.h"

namespace trainlaunch {

Result<View> make_weights(const ShardParts& parts) {
  if (parts.ops.dtype() != DType::f32) {
    return fail(std::string("the ") + parts.ops.name() + " operations compute in " +
                name_of(parts.ops.dtype()) + "; training needs f32 weights");
  }
  const int64_t n = parts.layout.elements();
  auto weights = parts.comm.alloc("weights", DType::f32, n);
  if (!weights) return forward(weights);
  if (parts.device.host_readable()) {
    initialise(parts.specs, parts.layout, parts.seed, *weights);
    return *weights;
  }
  std::vector<float> host(n);
  const View staged(host.data(), DType::f32, {n});
  initialise(parts.specs, parts.layout, parts.seed, staged);
  auto stream = parts.device.stream();
  if (!stream) return forward(stream);
  parts.device.upload(**stream, *weights, staged);
  if (auto ok = (*stream)->record().wait(Deadline::never()); !ok) return forward(ok);
  return *weights;
}

View view_of(View flat, const ParamSpec& spec, const Layout::Entry& entry) {
  View v = flat.slice(entry.offset, entry.size);
  v.n = static_cast<int>(spec.shape.size());
  for (int i = 0; i < v.n; ++i) v.shape[i] = spec.shape[i];
  return v;
}

std::vector<Piece> weight_pieces(View flat, std::span<const ParamSpec> specs,
                                 const Layout& layout) {
  std::vector<Piece> pieces;
  for (const Layout::Entry& e : layout.entries) {
    pieces.push_back({specs[e.param].name, "weight", 0, e.size, flat.slice(e.offset, e.size)});
  }
  return pieces;
}

}  // namespace trainlaunch
