#include "settings.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

namespace trainlaunch {
namespace {

constexpr off_t max_config = 64 * 1024;

template <class T>
struct Word {
  const char* word;
  T value;
};

template <class T, size_t N>
Status choose(T& target, std::string_view key, std::string_view value, const Word<T> (&words)[N]) {
  std::string known;
  for (const Word<T>& w : words) {
    if (value == w.word) {
      target = w.value;
      return {};
    }
    known += (known.empty() ? "" : ", ") + std::string(w.word);
  }
  return fail(std::string(key) + "=" + std::string(value.substr(0, 80)) + ": use one of " + known,
              exit_code::usage);
}

constexpr Word<bool> yes_no[] = {{"yes", true}, {"no", false}};
constexpr Word<bool> on_off[] = {{"on", true}, {"off", false}};

Status set_policy(Settings& s, std::string_view value) {
  if (value == "closest" || value.starts_with("map:"))
    return fail("policy=" + std::string(value.substr(0, 80)) +
                    ": not available in this version; use one of auto, off",
                exit_code::usage);
  constexpr Word<GpuMode> words[] = {{"auto", GpuMode::automatic}, {"off", GpuMode::off}};
  return choose(s.policy.gpu, "policy", value, words);
}

Status set_cpu(Settings& s, std::string_view value) {
  const size_t comma = std::min(value.find(','), value.size());
  const std::string_view rest = value.substr(comma);
  if (!rest.empty() && rest != ",smt=1" && rest != ",smt=all")
    return fail("cpu=" + std::string(value.substr(0, 80)) +
                    ": after the comma only smt=1 or smt=all can stand",
                exit_code::usage);
  s.policy.one_thread = rest == ",smt=1";
  constexpr Word<CpuMode> words[] = {
      {"local", CpuMode::local}, {"numa", CpuMode::numa}, {"off", CpuMode::off}};
  return choose(s.policy.cpu, "cpu", value.substr(0, comma), words);
}

Status set_nic(Settings& s, std::string_view value) {
  if (value.starts_with("list:")) {
    s.policy.nic = NicMode::list;
    s.policy.nics.clear();
    std::istringstream names{std::string(value.substr(5))};
    for (std::string name; std::getline(names, name, ',');)
      if (!name.empty()) s.policy.nics.push_back(name);
    if (s.policy.nics.empty())
      return fail("nic=list: needs names, such as nic=list:mlx5_0,mlx5_1", exit_code::usage);
    return {};
  }
  constexpr Word<NicMode> words[] = {{"auto", NicMode::automatic},
                                     {"closest", NicMode::closest},
                                     {"all", NicMode::all},
                                     {"off", NicMode::off},
                                     {"list:NAMES", NicMode::list}};
  return choose(s.policy.nic, "nic", value, words);
}

Status set_timeout(Settings& s, std::string_view value) {
  int ms = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), ms);
  if (error != std::errc() || end != value.data() + value.size() || ms < 50 || ms > 60000)
    return fail(
        "timeout-ms=" + std::string(value.substr(0, 80)) + ": use milliseconds, 50 to 60000",
        exit_code::usage);
  s.timeout_ms = ms;
  return {};
}

// Why someone else than root could change what stands at `path`; empty when no one can.
std::string who_else(const std::filesystem::path& path) {
  struct stat st {};
  for (std::filesystem::path dir = path.parent_path();; dir = dir.parent_path()) {
    if (stat(dir.c_str(), &st) != 0) return "";
    if (st.st_uid != 0) return "its directory " + dir.string() + " does not belong to root";
    // In a sticky directory only a file's owner can replace it.
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) && !(st.st_mode & S_ISVTX))
      return "others than root can write its directory " + dir.string();
    if (dir == dir.root_path()) return "";
  }
}

Result<std::string> read_trusted(const std::string& path, bool must_exist) {
  const auto bad = [&](const std::string& why) {
    return fail(path + ": " + why, exit_code::usage);
  };
  std::error_code ec;
  const auto full = std::filesystem::absolute(path, ec).lexically_normal();
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT && !must_exist) return std::string();
    if (errno == ELOOP) return bad("is a symbolic link; it must be the file itself");
    return fail_errno(path, exit_code::usage);
  }
  struct stat st {};
  std::string why, text;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
    why = "is not a regular file";
  else if (st.st_uid != 0)
    why = "does not belong to root";
  else if (st.st_mode & (S_IWGRP | S_IWOTH))
    why = "others than root can write it (chmod go-w)";
  else if (st.st_size > max_config)
    why = "is too large (the limit is 64 KiB)";
  else
    why = who_else(full);
  if (why.empty()) {
    text.resize(static_cast<size_t>(st.st_size));
    const ssize_t got = read(fd, text.data(), text.size());
    if (got < 0)
      why = "cannot be read";
    else
      text.resize(static_cast<size_t>(got));
  }
  close(fd);
  if (!why.empty()) return bad(why);
  return text;
}

std::string_view trim(std::string_view s) {
  const char* blanks = " \t\r";
  const size_t first = s.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(blanks) - first + 1);
}

}  // namespace

Status set_option(Settings& s, std::string_view key, std::string_view value) {
  if (key == "policy") return set_policy(s, value);
  if (key == "cpu") return set_cpu(s, value);
  if (key == "nic") return set_nic(s, value);
  if (key == "timeout-ms") return set_timeout(s, value);
  if (key == "strict") return choose(s.strict, key, value, yes_no);
  if (key == "topology-check") return choose(s.topology_check, key, value, on_off);
  if (key == "topology") {
    if (value.empty()) return fail("topology is empty: name a file, or leave the line out");
    s.topology = value;
    return {};
  }
  if (key == "bind") {
    constexpr Word<BindSwitch> words[] = {{"on-request", BindSwitch::on_request},
                                          {"always", BindSwitch::always},
                                          {"off", BindSwitch::off}};
    return choose(s.bind, key, value, words);
  }
  if (key == "visible") {
    constexpr Word<Visible> words[] = {
        {"auto", Visible::automatic}, {"ordered", Visible::ordered}, {"own", Visible::own}};
    return choose(s.policy.visible, key, value, words);
  }
  if (key == "mem") {
    constexpr Word<MemMode> words[] = {
        {"preferred", MemMode::preferred}, {"bind", MemMode::bind}, {"off", MemMode::off}};
    return choose(s.policy.mem, key, value, words);
  }
  if (key == "env") {
    constexpr Word<EnvMode> words[] = {
        {"keep", EnvMode::keep}, {"set", EnvMode::set}, {"off", EnvMode::off}};
    return choose(s.env, key, value, words);
  }
  if (key == "report") {
    constexpr Word<Report> words[] = {{"none", Report::none},
                                      {"summary", Report::summary},
                                      {"full", Report::full},
                                      {"json", Report::json},
                                      {"doctor", Report::doctor}};
    return choose(s.report, key, value, words);
  }
  return fail(
      "unknown key '" + std::string(key.substr(0, 80)) +
          "'; known are bind, policy, visible, cpu, mem, nic, env, report, strict, topology, "
          "topology-check, timeout-ms",
      exit_code::usage);
}

Status read_config(Settings& settings, const std::string& path, bool must_exist) {
  auto text = read_trusted(path, must_exist);
  if (!text) return forward(text);
  std::istringstream lines(*text);
  std::string raw;
  for (int number = 1; std::getline(lines, raw); ++number) {
    const std::string_view line = trim(std::string_view(raw).substr(0, raw.find('#')));
    if (line.empty()) continue;
    const std::string where = path + ":" + std::to_string(number) + ": ";
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos)
      return fail(where + "not of the form key = value", exit_code::usage);
    auto s = set_option(settings, trim(line.substr(0, equals)), trim(line.substr(equals + 1)));
    if (!s) return fail(where + s.error().what, exit_code::usage);
  }
  return {};
}

}  // namespace trainlaunch
