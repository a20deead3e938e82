#include <cstdio>
#include <limits>
#include <optional>

#include "launcher/commands.h"
#include "launcher/options.h"
#include "train/train.h"

namespace trainlaunch {
namespace {

constexpr const char* usage = R"(usage: train-launch generate RUN [OPTION...]
       train-launch generate CONFIG --untrained [OPTION...] [--section.key=value...]

Continues a text, byte by byte: from a checkpoint of the run directory RUN or, to compare, from the
weights that a run with the configuration CONFIG starts with.

)";

struct Generate {
  std::string place;  // RUN or CONFIG
  bool untrained = false;
  std::optional<uint64_t> step;
  GenerateOptions options;
};

void add_generate_options(OptionTable& t, Generate& g) {
  constexpr double large = 1e6;
  constexpr int64_t any = std::numeric_limits<int64_t>::max();
  t.positional("RUN", &g.place);
  t.command_group("Options");
  t.flag("untrained", &g.untrained, "take the weights that CONFIG starts with");
  t.optional_number("step", &g.step, "of the checkpoint; without it, the newest");
  t.text("prompt", &g.options.prompt, "text to continue; without it, a new line", false);
  t.whole("tokens", &g.options.tokens, 0, any, "bytes to generate");
  t.real("temperature", &g.options.temperature, 0, large, "0: always the most likely byte");
  t.whole("top-k", &g.options.top_k, 0, 256, "choose among the k most likely; 0: among all");
  t.real("top-p", &g.options.top_p, 0, 1,
         "choose among the most likely bytes that together are so likely; 1: among all");
  t.whole("seed", &g.options.seed, 0, any, "of the choices");
}

}  // namespace

Result<int> run_generate(const Invocation& call) {
  Generate g;
  RunConfig config;
  OptionTable table("train-launch generate");
  add_generate_options(table, g);
  if (wants_help(call.arguments)) {
    std::fputs((usage + table.help()).c_str(), stdout);
    return exit_code::done;
  }
  for (const std::string& a : call.arguments)
    if (a == "--untrained") {
      add_run_options(table, config);
      break;
    }
  if (Status s = table.read_command_line(call.arguments); !s) return forward(s);
  const TextSink print = [](std::string_view piece) {
    return std::fwrite(piece.data(), 1, piece.size(), stdout) == piece.size() &&
           std::fflush(stdout) == 0;
  };
  Status done;
  if (g.untrained) {
    if (Status s = table.read_file(g.place); !s) return forward(s);
    done = generate_untrained(config, g.options, print);
  } else {
    done = generate_from_run(g.place, g.step, g.options, print);
  }
  if (!done) return forward(done);
  print("\n");
  return exit_code::done;
}

}  // namespace trainlaunch
