#include "train/metrics.h"

#include <fstream>

namespace trainlaunch {

namespace {

using nlohmann::json;

std::string path_in(const std::string& run) { return run + "/metrics.jsonl"; }

}  // namespace

Result<Metrics> Metrics::open(const std::string& run, uint64_t step) {
  auto lines = StepLines::open(path_in(run), step);
  if (!lines) return forward(lines);
  Metrics m;
  m.lines_ = std::move(*lines);
  return m;
}

Status Metrics::add(const StepRecord& r) {
  return lines_.add(json{{"step", r.step},
                         {"loss", r.loss},
                         {"learning_rate", r.learning_rate},
                         {"grad_norm", r.grad_norm},
                         {"tokens_per_second", r.tokens_per_second},
                         {"mfu", r.mfu}});
}

Status Metrics::add_validation(uint64_t step, double loss) {
  return lines_.add(json{{"step", step}, {"validation_loss", loss}});
}

Result<Curves> read_metrics(const std::string& run) {
  std::ifstream in(path_in(run));
  if (!in) return fail_errno("cannot read " + path_in(run), exit_code::usage);
  Curves curves;
  for (std::string line; std::getline(in, line);) {
    const json j = parse_step_line(line);
    if (j.is_discarded()) continue;
    auto take = [&](const char* key, std::vector<Curves::Point>& curve) {
      auto it = j.find(key);
      if (it != j.end() && it->is_number())
        curve.push_back({j["step"].get<uint64_t>(), it->get<double>()});
    };
    take("loss", curves.training);
    take("validation_loss", curves.validation);
  }
  return curves;
}

}  // namespace trainlaunch
