#include "train/step_lines.h"

#include <fcntl.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace trainlaunch {

using nlohmann::json;

json parse_step_line(const std::string& line) {
  json j = json::parse(line, nullptr, false);
  const bool record = j.is_object() && j.contains("step") && j["step"].is_number_unsigned();
  return record ? j : json(json::value_t::discarded);
}

Result<StepLines> StepLines::open(const std::string& path, uint64_t step) {
  StepLines lines;
  lines.path_ = path;
  std::string kept;
  bool all = true;
  // A pipe of that name would be waited for without end.
  std::error_code unknown;
  const auto there = std::filesystem::symlink_status(path, unknown);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
    return fail(path + " is not a regular file");
  {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      const json j = parse_step_line(line);
      const bool keep = !j.is_discarded() && step > 0 && j["step"].get<uint64_t>() <= step;
      if (keep) kept += line + "\n";
      all &= keep && !in.eof();  // a full disk may have cut off the end of the last line
    }
  }
  const std::string scratch = path + ".tmp";
  const std::string& target = all ? path : scratch;
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (all ? 0 : O_TRUNC);
  lines.fd_.reset(::open(target.c_str(), flags, 0600));
  if (!lines.fd_) return fail_errno("cannot open " + target);
  if (all) return lines;
  if (auto s = write_fully(lines.fd_.get(), kept.data(), kept.size(), "cannot write " + scratch);
      !s)
    return forward(s);
  if (std::rename(scratch.c_str(), path.c_str()) != 0) return fail_errno("cannot replace " + path);
  return lines;
}

Status StepLines::add(const json& line) {
  const std::string text = line.dump() + "\n";
  return write_fully(fd_.get(), text.data(), text.size(), "cannot write " + path_);
}

}  // namespace trainlaunch
