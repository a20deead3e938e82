#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "train/metrics.h"
#include "train/plot.h"
#include "train/train.h"
#include "train/words.h"

namespace trainlaunch {

namespace {

constexpr int rows = 16;

// As setlocale(3) looks them up.
bool unicode_terminal() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    const std::string_view v = value;
    for (const char* spelling : {"UTF-8", "utf-8", "UTF8", "utf8"})
      if (v.find(spelling) != std::string_view::npos) return true;
    return false;
  }
  return false;
}

Status write_svg(const std::string& path, const std::string& svg) {
  const std::string scratch = path + ".tmp";
  std::ofstream out(scratch);
  out << svg;
  out.close();
  if (!out) return fail_errno("cannot write " + scratch);
  std::error_code error;
  std::filesystem::rename(scratch, path, error);
  if (error) return fail("cannot rename " + scratch + ": " + error.message());
  return {};
}

std::string last_line(const Curves& c) {
  uint64_t step = 0;
  std::string line;
  if (!c.training.empty()) {
    step = c.training.back().step;
    line += "training loss " + fixed(c.training.back().loss, 4);
  }
  if (!c.validation.empty()) {
    step = std::max(step, c.validation.back().step);
    line += (line.empty() ? "" : ", ") + std::string("validation loss ") +
            fixed(c.validation.back().loss, 4);
  }
  return "after " + plural(step, "step") + ": " + line + " nats per byte\n";
}

}  // namespace

Result<std::string> report(const std::string& run, int columns) {
  auto curves = read_metrics(run);
  if (!curves) return forward(curves);
  if (curves->training.empty() && curves->validation.empty())
    return fail(run + "/metrics.jsonl has no records yet", exit_code::usage);
  const std::string path = run + "/loss.svg";
  if (auto s = write_svg(path, draw_svg(*curves, "Loss of " + run)); !s) return forward(s);
  return draw_text(*curves, columns, rows, unicode_terminal()) + "drawn in " + path + "\n" +
         last_line(*curves);
}

}  // namespace trainlaunch
