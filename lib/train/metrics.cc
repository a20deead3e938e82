#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace trainlaunch {

namespace {

using nlohmann::json;

std::string path_in(const std::string& run) { return run + "/metrics.jsonl"; }

// A line's object; discarded when it is none, as the last line of a killed run may be.
json parse(const std::string& line) {
  json j = json::parse(line, nullptr, false);
  const bool record = j.is_object() && j.contains("step") && j["step"].is_number_unsigned();
  return record ? j : json(json::value_t::discarded);
}

}  // namespace

Result<Metrics> Metrics::open(const std::string& run, uint64_t step) {
  Metrics m;
  m.path_ = path_in(run);
  std::string kept;
  bool all = true;
  {
    std::ifstream in(m.path_);
    for (std::string line; std::getline(in, line);) {
      const json j = parse(line);
      const bool keep = !j.is_discarded() && step > 0 && j["step"].get<uint64_t>() <= step;
      if (keep) kept += line + "\n";
      all &= keep;
    }
  }
  const std::string scratch = m.path_ + ".tmp";
  const std::string& target = all ? m.path_ : scratch;
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (all ? 0 : O_TRUNC);
  m.fd_.reset(::open(target.c_str(), flags, 0600));
  if (!m.fd_) return fail_errno("cannot open " + target);
  if (all) return m;
  if (auto s = write_fully(m.fd_.get(), kept.data(), kept.size(), "cannot write " + scratch); !s)
    return forward(s);
  if (std::rename(scratch.c_str(), m.path_.c_str()) != 0)
    return fail_errno("cannot replace " + m.path_);
  return m;
}

Status Metrics::append(std::string line) {
  line += "\n";
  return write_fully(fd_.get(), line.data(), line.size(), "cannot write " + path_);
}

Status Metrics::add(const StepRecord& r) {
  return append(json{{"step", r.step},
                     {"loss", r.loss},
                     {"learning_rate", r.learning_rate},
                     {"grad_norm", r.grad_norm},
                     {"tokens_per_second", r.tokens_per_second}}
                    .dump());
}

Status Metrics::add_validation(uint64_t step, double loss) {
  return append(json{{"step", step}, {"validation_loss", loss}}.dump());
}

Result<Curves> read_metrics(const std::string& run) {
  std::ifstream in(path_in(run));
  if (!in) return fail_errno("cannot read " + path_in(run), exit_code::usage);
  Curves curves;
  for (std::string line; std::getline(in, line);) {
    const json j = parse(line);
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
