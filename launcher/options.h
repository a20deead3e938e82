// One definition of every option serves the command line, the configuration file and the help text.
//
// A configuration file has lines `key = value` below `[section]` lines, and comments from # to the
// end of the line; the command line has --section.key=value, which wins. Errors carry exit code 2
// and name the place: "run.conf:7: train.steps must be ...".
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "train/config.h"

namespace trainlaunch {

class OptionTable {
 public:
  // `command`: as the user types it, "train-launch train", for messages.
  explicit OptionTable(std::string command) : command_(std::move(command)) {}

  // The options that follow are listed below this line in the help text.
  void group(const std::string& caption);
  // Of options that no file has.
  void command_group(const std::string& caption);

  // Each takes where the value goes, which holds the default already. Bounds are inclusive.
  template <class Int>
  void whole(const std::string& name, Int* target, int64_t lo, int64_t hi,
             const std::string& help) {
    add(name, whole_in(lo, hi), std::to_string(*target), help,
        [target](const std::string& text) { *target = static_cast<Int>(std::stoll(text)); });
  }
  void real(const std::string& name, double* target, double lo, double hi, const std::string& help);
  // The same, or 0.
  void real_or_zero(const std::string& name, double* target, double lo, double hi,
                    const std::string& help);
  // The same, or "auto": 0.
  void real_or_auto(const std::string& name, double* target, double lo, double hi,
                    const std::string& help);
  // Not empty.
  void path(const std::string& name, std::string* target, const std::string& help);
  // `shown`: the default appears in the help text.
  void text(const std::string& name, std::string* target, const std::string& help,
            bool shown = true);
  void flag(const std::string& name, bool* target, const std::string& help);
  // The name alone says yes, too.
  void yes_or_no(const std::string& name, bool* target, const std::string& help);
  template <class T>
  void choice(const std::string& name, T* target,
              const std::vector<std::pair<std::string, T>>& choices, const std::string& help) {
    std::vector<std::string> words;
    std::string start;
    for (const auto& [word, value] : choices) {
      words.push_back(word);
      if (value == *target) start = word;
    }
    add(name, one_of(words), start, help, [target, choices](const std::string& chosen) {
      for (const auto& [word, value] : choices)
        if (word == chosen) *target = value;
    });
  }
  // A word of `words`, or a whole number from 0.
  void word_or_number(const std::string& name, std::string* target,
                      const std::vector<std::string>& words, const std::string& help);
  void optional_number(const std::string& name, std::optional<uint64_t>* target,
                       const std::string& help);
  // What has no name on the command line, in order; the first `required` must be there.
  void positional(const std::string& what, std::string* target);

  Status read_command_line(const std::vector<std::string>& arguments);
  Status read_file(const std::string& path);  // after the command line, which wins
  std::string help() const;

 private:
  // What is wrong with a value: "must be ..."; empty: nothing.
  using Check = std::function<std::string(const std::string& text)>;
  static Check whole_in(int64_t lo, int64_t hi);
  static Check one_of(std::vector<std::string> words);

  void add(const std::string& name, Check check, const std::string& start, const std::string& help,
           std::function<void(const std::string&)> set, const std::string& argument = "");
  Status check(const std::string& name, const std::vector<std::string>& values,
               const std::string& where) const;
  tl::unexpected<Error> unknown(const std::string& where, const std::string& name,
                                std::string_view dashes) const;

  std::string command_;
  struct Group {
    boost::program_options::options_description options;
    bool in_file;
  };
  std::vector<Group> groups_;
  std::map<std::string, Check> checks_;  // by name
  std::vector<std::pair<std::string, std::string*>> positionals_;
  boost::program_options::variables_map values_;
};

// The options of a training run, as `train` and, untrained, `generate` take them.
void add_run_options(OptionTable& table, RunConfig& config);

// A configuration's text, from a file or a pipe. What is no text of a sensible size is refused
// before it is looked at (exit code usage): a device never ends.
Result<std::string> read_text(const std::string& path);

}  // namespace trainlaunch
