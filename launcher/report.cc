#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "launcher/commands.h"
#include "launcher/options.h"
#include "train/train.h"

namespace trainlaunch {
namespace {

constexpr const char* usage = R"(usage: train-launch report RUN [OPTION...]

Draws the loss of the run directory RUN for the terminal, and as RUN/loss.svg.

)";

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) return size.ws_col;
  return 80;
}

}  // namespace

Result<int> run_report(const Invocation& call) {
  std::string run;
  int columns = 0;
  OptionTable table("train-launch report");
  table.positional("RUN", &run);
  table.group("Options");
  table.whole("columns", &columns, 0, 1000, "width of the drawing; 0: of the terminal");
  if (wants_help(call.arguments)) {
    std::fputs((usage + table.help()).c_str(), stdout);
    return exit_code::done;
  }
  if (Status s = table.read_command_line(call.arguments); !s) return forward(s);
  auto drawing = report(run, columns ? columns : terminal_columns());
  if (!drawing) return forward(drawing);
  std::fputs(drawing->c_str(), stdout);
  return exit_code::done;
}

}  // namespace trainlaunch
