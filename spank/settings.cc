#include "settings.h"

#include <algorithm>
#include <charconv>
#include <sstream>

namespace trainlaunch {
namespace {

constexpr int max_step_gpus = 4096;  // their numbers are below this

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

bool whole_number(std::string_view text, int limit, int& n) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return !text.empty() && text.front() != '-' && error == std::errc() &&
         end == text.data() + text.size() && n < limit;
}

// "0,1*2,3": GPUs of the step for rank after rank, *N for several times.
Status set_map(Settings& s, std::string_view list) {
  const auto bad = [&](const std::string& why) {
    return fail("policy=map:" + std::string(list.substr(0, 80)) + ": " + why, exit_code::usage);
  };
  std::vector<int> map;
  for (std::string_view rest = list;;) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    const size_t star = std::min(item.find('*'), item.size());
    int gpu = 0, times = 1;
    if (!whole_number(item.substr(0, star), max_step_gpus, gpu) ||
        (star < item.size() &&
         (!whole_number(item.substr(star + 1), max_local_ranks + 1, times) || times == 0)))
      return bad("use GPU numbers such as map:0,1*2,3, which count from 0 within the job step");
    if (map.size() + static_cast<size_t>(times) > max_local_ranks)
      return bad("longer than the " + std::to_string(max_local_ranks) + " ranks of a node");
    map.insert(map.end(), static_cast<size_t>(times), gpu);
    if (comma == rest.size()) break;
    rest.remove_prefix(comma + 1);
  }
  s.policy.gpu = GpuMode::map;
  s.policy.map = std::move(map);
  return {};
}

Status set_policy(Settings& s, std::string_view value) {
  if (value.starts_with("map:")) return set_map(s, value.substr(4));
  constexpr Word<GpuMode> words[] = {{"auto", GpuMode::automatic},
                                     {"closest", GpuMode::closest},
                                     {"map:LIST", GpuMode::map},
                                     {"off", GpuMode::off}};
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

}  // namespace

Status set_option(Settings& s, std::string_view key, std::string_view value, Source from) {
  if (key == "policy") return set_policy(s, value);
  if (key == "cpu") return set_cpu(s, value);
  if (key == "nic") {
    s.nic_from = from;
    return set_nic(s, value);
  }
  if (key == "timeout-ms") return set_timeout(s, value);
  if (key == "strict") return choose(s.strict, key, value, yes_no);
  if (key == "topology-check") return choose(s.topology_check, key, value, on_off);
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
  return fail("unknown key '" + std::string(key.substr(0, 80)) +
                  "'; known are bind, policy, visible, cpu, mem, nic, env, report, strict, "
                  "timeout-ms, topology, topology-check, nccl-topology, nic-include, nic-exclude, "
                  "env.NAME, env.KIND.NAME",
              exit_code::usage);
}

}  // namespace trainlaunch
