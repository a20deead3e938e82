#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "launcher/options.h"

#include <doctest/doctest.h>

#include "temporary.h"

using namespace trainlaunch;

namespace {

struct Command {
  RunConfig config;
  std::string file;
  OptionTable table{"train-launch train"};

  Command() {
    table.positional("CONFIG", &file);
    add_run_options(table, config);
  }

  Status read(const std::vector<std::string>& arguments, const std::string& text) {
    const Temporary folder;
    const std::string path = folder / "run.conf";
    write_file(path, text);
    std::vector<std::string> all{path};
    all.insert(all.end(), arguments.begin(), arguments.end());
    if (Status s = table.read_command_line(all); !s) return s;
    Status s = table.read_file(file);
    if (s) return s;
    // Without the folder's name, which differs.
    return fail(s.error().what.substr(folder.path().size() + 1), s.error().exit);
  }
};

std::string complaint(const std::vector<std::string>& arguments, const std::string& text) {
  Command c;
  const Status s = c.read(arguments, text);
  REQUIRE_FALSE(s);
  CHECK(s.error().exit == exit_code::usage);
  return s.error().what;
}

}  // namespace

TEST_CASE("file and command line fill one structure, and the command line wins") {
  Command c;
  REQUIRE(c.read({"--model.layers=3", "--run-dir", "here"},
                 "run-dir = there   # a comment\n"
                 "resume=12\n"
                 "\n"
                 "[model]\n"
                 "layers = 9\n"
                 "width=64\n"
                 "[train]\n"
                 "seed = 9223372036854775807\n"
                 "[optim]\n"
                 "lr = 2.5e-4\n"
                 "[parallel]\n"
                 "shard = none\n"));
  CHECK(c.config.model.layers == 3);
  CHECK(c.config.run_dir == "here");
  CHECK(c.config.resume == "12");
  CHECK(c.config.model.width == 64);
  CHECK(c.config.model.heads == RunConfig().model.heads);
  CHECK(c.config.train.seed == 9223372036854775807u);
  CHECK(c.config.optim.lr == 2.5e-4);
  CHECK(c.config.optim.weight_decay == RunConfig().optim.weight_decay);
  CHECK(c.config.parallel.shard == ShardPolicy::none);
}

TEST_CASE("what is wrong in a file has its line, and says what to do") {
  CHECK(complaint({}, "\n[model]\nlayer = 3\n") ==
        "run.conf:3: no option model.layer; did you mean model.layers? (see train-launch train "
        "--help)");
  CHECK(complaint({}, "[model]\nlayers = many\n") ==
        "run.conf:2: model.layers must be a whole number from 1 to 1000, not 'many'");
  CHECK(complaint({}, "[model]\nlayers = -1\n") ==
        "run.conf:2: model.layers must be a whole number from 1 to 1000, not '-1'");
  for (const std::string peak : {"1e-300", "0.0009", "-1", "nan", "1e10"})
    CHECK(complaint({}, "[train]\npeak-tflops = " + peak + "\n") ==
          "run.conf:2: train.peak-tflops must be 0 or a number from 0.001 to 1e+09, not '" + peak +
              "'");
  CHECK(complaint({}, "[train]\nsteps = 1e3\n") ==
        "run.conf:2: train.steps must be a whole number, at least 0, not '1e3'");
  CHECK(complaint({}, "[optim]\nlr = nan\n") ==
        "run.conf:2: optim.lr must be a number, at least 0, not 'nan'");
  CHECK(complaint({}, "[optim]\nbeta1 = 1.5\n") ==
        "run.conf:2: optim.beta1 must be a number from 0 to 0.999999, not '1.5'");
  CHECK(complaint({}, "device = tpu\n") ==
        "run.conf:1: device must be auto, cpu or cuda, not 'tpu'");
  CHECK(complaint({}, "resume = maybe\n") ==
        "run.conf:1: resume must be auto or no or a whole number, not 'maybe'");
  CHECK(complaint({}, "[model]\nlayers = 1\n[model]\nlayers = 2\n") ==
        "run.conf:4: model.layers was given on line 2 already; remove one");
  CHECK(complaint({}, "[model\n") == "run.conf:1: a section is written [name]");
  CHECK(complaint({}, "nonsense\n") ==
        "run.conf:1: 'nonsense' is neither key = value nor [section]");
}

TEST_CASE("a size of buckets, or auto") {
  Command given, measured;
  REQUIRE(given.read({}, "[parallel]\nbucket-mib = 2.5\nshard = full\n"));
  CHECK(given.config.parallel.bucket_mib == 2.5);
  CHECK(given.config.parallel.shard == ShardPolicy::full);
  REQUIRE(measured.read({"--parallel.bucket-mib=auto"}, "[parallel]\nbucket-mib = 2.5\n"));
  CHECK(measured.config.parallel.bucket_mib == 0);
  CHECK(complaint({}, "[parallel]\nbucket-mib = 0\n") ==
        "run.conf:2: parallel.bucket-mib must be auto or a number from 0.001 to 100000, not '0'");
}

TEST_CASE("a wrong line is an error although the command line overrides it") {
  CHECK(complaint({"--model.layers=2"}, "[model]\nlayers = many\n") ==
        "run.conf:2: model.layers must be a whole number from 1 to 1000, not 'many'");
}

TEST_CASE("what is wrong on the command line says what to do") {
  const auto wrong = [](const std::vector<std::string>& arguments) {
    Command c;
    const Status s = c.table.read_command_line(arguments);
    REQUIRE_FALSE(s);
    CHECK(s.error().exit == exit_code::usage);
    return s.error().what;
  };
  CHECK(wrong({"a.conf", "--model.layrs=2"}) ==
        "no option --model.layrs; did you mean --model.layers? (see train-launch train --help)");
  CHECK(wrong({"a.conf", "--nothing-like-it=2"}) ==
        "no option --nothing-like-it (see train-launch train --help)");
  CHECK(wrong({"a.conf", "--train.seed=-1"}) ==
        "--train.seed must be a whole number, at least 0, not '-1'");
  CHECK(wrong({"a.conf", "--model.layer=2"}) ==
        "no option --model.layer; did you mean --model.layers? (see train-launch train --help)");
  CHECK(wrong({}) == "CONFIG is missing; see train-launch train --help");
  CHECK(wrong({"a.conf", "b.conf"}) == "too many arguments; see train-launch train --help");
  CHECK(wrong({"a.conf", "--model.layers=2", "--model.layers=3"}).find("model.layers") !=
        std::string::npos);
}

TEST_CASE("a file that is not there is named") {
  Command c;
  const Status s = c.table.read_file("/nonexistent/run.conf");
  REQUIRE_FALSE(s);
  CHECK(s.error().exit == exit_code::usage);
  CHECK(s.error().what == "/nonexistent/run.conf: No such file or directory");
}

TEST_CASE("the help text has every option with its default") {
  Command c;
  const std::string help = c.table.help();
  for (const char* line :
       {"--run-dir arg (=run)", "--model.layers arg (=6)", "--optim.lr arg (=0.001)",
        "--optim.eps arg (=1e-08)", "--parallel.shard arg (=optimizer)",
        "--train.deadline arg (=120)", "--checkpoint.keep arg (=3)"})
    CHECK_MESSAGE(help.find(line) != std::string::npos, line);
}
