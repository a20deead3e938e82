#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "machines.h"
#include "spank/fit.h"
#include "spank/report.h"
#include "spank/settings.h"
#include "spank/wire.h"
#include "temporary.h"
#include "texts.h"

using namespace trainlaunch;
using nlohmann::json;
namespace fs = std::filesystem;
namespace wire = gpu_bind_wire;

namespace {

struct Made {
  Machine machine;
  Plan plan;
  Environment env;
  Answer answer() const { return {machine, plan, env}; }
};

Made make(Machine m, const Allocation& a = {}) {
  auto made = plan(m, a, {});
  REQUIRE(made.has_value());
  EnvOptions o;
  o.route = {"ens3", "leads to n2", false};
  Environment env = environment(m, *made, o);
  return {std::move(m), std::move(*made), std::move(env)};
}

std::string wire_of(const Answer& answer, Report report, const std::string& node) {
  auto text = plan_wire(answer, report, node);
  REQUIRE(text.has_value());
  return std::move(*text);
}

size_t count(const std::string& text, const std::string& start) {
  const auto all = lines_of(text);
  return static_cast<size_t>(std::count_if(
      all.begin(), all.end(), [&](const std::string& line) { return line.starts_with(start); }));
}

// A folder that root owns and no one else can write, or the reason why there is none.
class Folder {
 public:
  Folder() {
    char name[] = "/run/gpu-bind-test-XXXXXX";
    if (getuid() == 0 && mkdtemp(name)) path_ = name;
  }
  ~Folder() {
    std::error_code ec;
    if (there()) fs::remove_all(path_, ec);
  }
  bool there() const {
    if (path_.empty()) MESSAGE("skipped: only root can write what is trusted");
    return !path_.empty();
  }
  std::string file(const std::string& text, mode_t mode = 0644) {
    const std::string name = path_ / "gpu-bind.conf";
    std::ofstream(name) << text;
    chmod(name.c_str(), mode);
    return name;
  }
  fs::path path_;
};

std::string refusal(const std::string& path) {
  Settings s;
  const auto r = read_config(s, path, true, "n1");
  REQUIRE_FALSE(r.has_value());
  CHECK(r.error().exit == exit_code::usage);
  return r.error().what;
}

}  // namespace

TEST_CASE("JSON has what sites script against") {
  const Made made = make(hgx_h100());
  const json j = json::parse(plan_json(made.answer()));
  CHECK(j["version"] == 1);
  CHECK(j["source"]["kind"] == "test");
  CHECK(j["source"]["file"].is_null());
  const json& m = j["machine"];
  CHECK(m["cpus"] == "0-223");
  CHECK(m["numa"][1] == json({{"node", 1}, {"cpus", "56-111,168-223"}}));
  CHECK(m["gpus"][5] == json({{"pci", "0000:15:00.0"},
                              {"partition", nullptr},
                              {"index", 5},
                              {"uuid", nullptr},
                              {"numa", 1},
                              {"cpus", "56-111,168-223"},
                              {"vendor", "nvidia"}}));
  CHECK(m["nics"][0] == json({{"name", "mlx5_0"},
                              {"port", 1},
                              {"pci", "0000:80:00.0"},
                              {"numa", 0},
                              {"link_layer", "infiniband"},
                              {"rate_gbps", 400.0},
                              {"usable", true},
                              {"why", ""}}));
  CHECK(m["nics"][3]["usable"] == false);
  CHECK(m["nics"][3]["why"] != "");
  json rank = j["ranks"][3];
  CHECK_FALSE(rank["why"].empty());
  rank.erase("why");
  CHECK(rank == json({{"local_rank", 3},
                      {"gpus", {"0000:13:00.0"}},
                      {"nics", {"mlx5_5:1"}},
                      {"gpu_nic", "PIX"},
                      {"cpus", "42-55,154-167"},
                      {"mems", "0"}}));
  CHECK(j["env"]["common"]["NCCL_SOCKET_IFNAME"] == "=ens3");
  CHECK(j["env"]["ranks"][3] == json({{"UCX_NET_DEVICES", "mlx5_5:1"}}));
  CHECK(j["warnings"].empty());

  Allocation shared;
  shared.ranks = 16;
  const json w = json::parse(plan_json(make(hgx_h100(), shared).answer()))["warnings"][0];
  CHECK(w["code"] == "gpus-shared");
  CHECK(w["message"].is_string());
  CHECK(w["fix"].is_string());
  const json show = json::parse(machine_json(made.machine, made.plan.nics));
  CHECK(show["machine"] == m);
}

TEST_CASE("names that are no text do not break the JSON") {
  Machine m = hgx_h100();
  m.nics[0].name = "mlx\xff\x01\"";
  m.file = "\xc3(";
  CHECK(json::accept(plan_json(make(m).answer())));
}

TEST_CASE("the wire form is the contract's") {
  const Made made = make(hgx_h100());
  const std::string text = wire_of(made.answer(), Report::none, "n1");
  const auto all = lines_of(text);
  CHECK(all[0] == "gpu-bind-wire 1");
  CHECK(all[1].starts_with("digest "));
  CHECK(all.back() == "end");
  CHECK(count(text, "rank ") == 8);
  CHECK(count(text, "say ") == 0);
  CHECK(count(text, "warn ") == 0);
  for (const std::string& line : all) {
    CHECK(line.size() <= wire::max_line);
    if (!line.starts_with("env ")) continue;
    const size_t name = line.find(' ', 4) + 1;
    const std::string variable = line.substr(name, line.find('=') - name);
    CHECK((wire::is_device_variable(variable) || wire::is_network_variable(variable)));
  }
  const auto rank3 = std::find(all.begin(), all.end(), "rank 3");
  REQUIRE(rank3 != all.end());
  CHECK(rank3[1] == "cpus 42-55,154-167");
  CHECK(rank3[2] == "mems preferred 0");
  CHECK(std::find(rank3, all.end(), "env keep UCX_NET_DEVICES=mlx5_5:1") != all.end());
  CHECK(std::find(rank3, all.end(), "env set CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7") != all.end());
}

TEST_CASE("what is left alone has no line") {
  Allocation a;
  a.asked = {.cpu = true, .mem = true};
  const std::string text = wire_of(make(hgx_h100(), a).answer(), Report::none, "n1");
  CHECK(count(text, "rank ") == 8);
  CHECK(count(text, "cpus ") == 0);
  CHECK(count(text, "mems ") == 0);
  CHECK(lines_of(empty_wire()).size() == 3);
}

TEST_CASE("reports: a line per rank, the reasons, an object, or what to mend") {
  const Made made = make(hgx_h100());
  const std::string summary = wire_of(made.answer(), Report::summary, "n1");
  CHECK(count(summary, "say ") == 8);
  CHECK(summary.find(
            "say gpu-bind: n1 rank 3 (local): GPU 3 0000:13:00.0, CPUs 42-55,154-167, memory "
            "node 0, NIC mlx5_5:1 (PIX)\n") != std::string::npos);
  const std::string full = wire_of(made.answer(), Report::full, "n1");
  CHECK(count(full, "say ") > 24);
  CHECK(full.find("port mlx5_3:1 left out") != std::string::npos);
  for (const std::string& line : lines_of(wire_of(made.answer(), Report::json, "n1"))) {
    if (!line.starts_with("say ")) continue;
    const json j = json::parse(line.substr(4));
    CHECK(j["node"] == "n1");
    CHECK(j["env"].contains("NCCL_IB_HCA"));
    CHECK(j["env_from"]["NCCL_IB_HCA"].get<std::string>() == "topology");
    CHECK(j["cpus"].is_string());
  }
  CHECK(wire_of(made.answer(), Report::doctor, "n1").find("nothing to mend") != std::string::npos);

  // Warnings are always told, advice only when a report is asked for.
  Machine small = box({2, 1, 1, 1, 1});
  add_gpu(small, 0);
  add_gpu(small, 1);
  const Made one_core = make(small);
  CHECK(wire_of(one_core.answer(), Report::none, "n1").find("cores-one") == std::string::npos);
  CHECK(wire_of(one_core.answer(), Report::doctor, "n1").find("cores-one") != std::string::npos);
  Allocation shared;
  shared.ranks = 16;
  CHECK(count(wire_of(make(hgx_h100(), shared).answer(), Report::none, "n1"), "warn ") == 1);
}

TEST_CASE("the largest answer keeps within the contract's bounds") {
  Machine m = box({2, 4, 64, 2, 8});
  for (int g = 0; g < 64; ++g) add_gpu(m, g % 8);
  for (int n = 0; n < 32; ++n) add_nic(m, n % 8);
  Allocation a;
  a.ranks = 256;
  for (Report report : {Report::none, Report::summary, Report::full, Report::json}) {
    const std::string text = wire_of(make(m, a).answer(), report, std::string(200, 'n'));
    CHECK(text.ends_with("end\n"));
    CHECK(count(text, "rank ") == 256);
    for (const std::string& line : lines_of(text)) REQUIRE(line.size() <= wire::max_line);
    CHECK(text.size() <= wire::max_bytes);
  }
  // More would be cut by the plugin, and a part of a plan is none.
  a.ranks = max_local_ranks;
  CHECK_FALSE(plan_wire(make(m, a).answer(), Report::none, "n1").has_value());
}

TEST_CASE("control characters stay out of the wire form") {
  Machine m = hgx_h100();
  m.nics[0].name = "mlx\n\x1b[2J";
  const std::string text = wire_of(make(m).answer(), Report::full, "n\n1");
  for (char c : text) CHECK((c == '\n' || static_cast<unsigned char>(c) >= 32));
  for (const std::string& line : lines_of(text)) {
    const std::string word = line.substr(0, line.find(' '));
    CHECK(std::set<std::string>{"gpu-bind-wire", "digest", "say", "warn", "rank", "cpus", "mems",
                                "env", "end"}
              .contains(word));
  }
}

TEST_CASE("text explains, in columns") {
  const Made made = make(hgx_h100());
  const std::string text = plan_text(made.answer());
  CHECK(text.find("\n3     3    0000:13:00.0  mlx5_5:1  PIX   0       42-55,154-167\n") !=
        std::string::npos);
  CHECK(text.find("left out: farther from every GPU than others") != std::string::npos);
  for (const std::string& line : lines_of(text)) CHECK_FALSE(line.ends_with(" "));
}

TEST_CASE("what this kernel lacks is reported, not applied") {
  Made made = make(hgx_h100());
  for (RankPlan& r : made.plan.ranks) r.mem = 1000;
  made.plan.ranks[7].cpus = *parse_cpus("0,8000");
  made.plan.ranks[6].cpus = *parse_cpus("8000-8010");
  fit_to_kernel(made.plan);
  CHECK(to_list(made.plan.ranks[7].cpus) == "0");
  CHECK_FALSE(made.plan.ranks[7].keep_cpus);
  CHECK(made.plan.ranks[6].keep_cpus);
  for (const RankPlan& r : made.plan.ranks) CHECK_FALSE(r.mem.has_value());
  REQUIRE(made.plan.warnings.size() == 1);
  CHECK(made.plan.warnings[0].code == "not-applied");
  CHECK(made.plan.warnings[0].message.find("memory nodes of ranks 0-7") != std::string::npos);
}

TEST_CASE("strict takes no plan of which a part is left alone") {
  Made made = make(hgx_h100());
  CHECK(all_applied(made.plan).has_value());
  // What any machine has, but for one rank.
  for (RankPlan& r : made.plan.ranks) {
    r.cpus = *parse_cpus("0");
    r.mem.reset();
  }
  made.plan.ranks[6].cpus = *parse_cpus("8000-8010");
  fit_to_kernel(made.plan);
  auto s = all_applied(made.plan);
  REQUIRE_FALSE(s.has_value());
  CHECK(s.error().what.find("CPUs of ranks 6 are not on this machine") != std::string::npos);
  CHECK(s.error().what.find("[not-applied; mend it with: ") != std::string::npos);
  Allocation a;
  a.cores = {4000};
  const auto unknown = plan(hgx_h100(), a, {});
  REQUIRE(unknown.has_value());
  CHECK_FALSE(all_applied(*unknown).has_value());
}

TEST_CASE("a site's file is of the machine if its CPUs and GPUs are") {
  const Machine file = hgx_h100();
  Machine live = file;
  CHECK(why_unlike(file, live).empty());
  live.gpus[3].pci.bus = 0x99;
  CHECK(why_unlike(file, live) == "has a GPU 0000:13:00.0, which this machine has not");
  Machine pasted = file;
  pasted.made_up_ids = true;
  CHECK(why_unlike(pasted, live).empty());
  live.gpus.pop_back();
  CHECK(why_unlike(pasted, live) == "has 8 GPUs, this machine 7");
  live.gpus.clear();  // hidden like their places
  CHECK(why_unlike(file, live).empty());
  live.cpus.set(4000);
  CHECK(why_unlike(file, live).starts_with("has CPUs 0-223, this machine 0-223,4000"));
}

TEST_CASE("every key takes its values and names them when it is given another") {
  const std::pair<const char*, std::vector<const char*>> keys[] = {
      {"bind", {"on-request", "always", "off"}},
      {"policy", {"auto", "off", "closest", "map:0", "map:3,2*4,0"}},
      {"visible", {"auto", "ordered", "own"}},
      {"cpu", {"local", "numa", "off", "local,smt=1", "numa,smt=all"}},
      {"mem", {"preferred", "bind", "off"}},
      {"nic", {"auto", "closest", "all", "off", "list:mlx5_0,mlx5_1"}},
      {"env", {"keep", "set", "off"}},
      {"report", {"none", "summary", "full", "json", "doctor"}},
      {"strict", {"yes", "no"}},
      {"topology-check", {"on", "off"}},
      {"timeout-ms", {"50", "2000", "60000"}},
  };
  for (const auto& [key, values] : keys) {
    CAPTURE(key);
    for (const char* value : values) {
      Settings s;
      CHECK(set_option(s, key, value).has_value());
    }
    for (const char* bad : {"", "?", "AUTO", "auto ", "list:", "local,smt=2", "1e3", "-1"}) {
      Settings s;
      const auto r = set_option(s, key, bad);
      REQUIRE_FALSE(r.has_value());
      CHECK(r.error().what.starts_with(key));
      CHECK(r.error().exit == exit_code::usage);
    }
  }
  Settings s;
  REQUIRE(set_option(s, "policy", "map:3,2*3,0").has_value());
  CHECK(s.policy.gpu == GpuMode::map);
  CHECK(s.policy.map == std::vector<int>{3, 2, 2, 2, 0});
  for (const char* bad : {"map:", "map:,", "map:0,", "map:,0", "map:0,,1", "map:-1", "map:0-3",
                          "map:0*", "map:*2", "map:0*0", "map:0*1025", "map:4096", "map:0*2*2",
                          "map:99999999999", "map:0 ", "map:0x1", "map:0*1024,0", "map:LIST"}) {
    CAPTURE(bad);
    CHECK(set_option(s, "policy", bad).error().what.starts_with("policy=map:"));
  }
  CHECK(set_option(s, "policy", "nearest").error().what ==
        "policy=nearest: use one of auto, closest, map:LIST, off");
  CHECK(set_option(s, "colour", "x").error().what.find("unknown key 'colour'") !=
        std::string::npos);
  REQUIRE(set_option(s, "cpu", "local,smt=1").has_value());
  CHECK(s.policy.one_thread);
  REQUIRE(set_option(s, "nic", "list:a,b:2").has_value());
  CHECK(s.policy.nics == std::vector<std::string>{"a", "b:2"});
}

TEST_CASE("the site's file is read with its comments and blanks, errors have their line") {
  Folder folder;
  if (!folder.there()) return;
  Settings s;
  REQUIRE(read_config(
              s, folder.file("# site\n\n bind = always # here\ncpu=numa\n\ttopology=/x y.xml\r\n"),
              true, "n1")
              .has_value());
  CHECK(s.bind == BindSwitch::always);
  CHECK(s.policy.cpu == CpuMode::numa);
  CHECK(s.topology == "/x y.xml");
  CHECK(s.topology_check);
  CHECK(refusal(folder.file("bind=always\n\ncolour=red\n")).find("gpu-bind.conf:3: unknown key") !=
        std::string::npos);
  CHECK(refusal(folder.file("mem=near\n")).find("gpu-bind.conf:1: mem=near: use one of") !=
        std::string::npos);
  CHECK(refusal(folder.file("bind\n")).find(":1: not of the form") != std::string::npos);
}

namespace {

Settings parsed(const std::string& text, const std::string& node = "n1") {
  Settings s;
  const auto r = parse_config(s, text, "f", node);
  REQUIRE_MESSAGE(r.has_value(), r.error().what);
  return s;
}

std::string wrong(const std::string& text) {
  Settings s;
  const auto r = parse_config(s, text, "f", "n1");
  REQUIRE_MESSAGE(!r.has_value(), text);
  CHECK(r.error().exit == exit_code::usage);
  return r.error().what;
}

}  // namespace

TEST_CASE("a key given twice is an error that names both lines") {
  CHECK(wrong("cpu = numa\n\ncpu=local\n") == "f:3: cpu: given before, in line 1");
  CHECK(wrong("topology.n1=/a\ntopology.n1 = /b") == "f:2: topology.n1: given before, in line 1");
  CHECK(wrong("env.NCCL_DEBUG=WARN\nenv.NCCL_DEBUG=INFO").starts_with("f:2: env.NCCL_DEBUG: "));
  // Another kind's is another key.
  CHECK(parsed("env.efa.FI_PROVIDER=efa\nenv.slingshot.FI_PROVIDER=cxi").variables.size() == 2);
}

TEST_CASE("files by node: the first list that has the node, else the one for all") {
  const std::string text =
      "topology.gpu[001-100] = /etc/a.xml\n"
      "topology = /etc/all.xml\n"
      "topology.gpu[050-060],login1 = /etc/b.xml\n"
      "nccl-topology.gpu[001-002].cluster.org = /etc/nccl.xml\n";
  CHECK(parsed(text, "gpu001").topology == "/etc/a.xml");
  CHECK(parsed(text, "gpu055").topology == "/etc/a.xml");
  CHECK(parsed(text, "login1").topology == "/etc/b.xml");
  CHECK(parsed(text, "gpu101").topology == "/etc/all.xml");
  CHECK(parsed(text, "gpu01").topology == "/etc/all.xml");
  CHECK(parsed(text, "gpu002.cluster.org").nccl_topology == "/etc/nccl.xml");
  CHECK(parsed(text, "gpu002").nccl_topology.empty());

  CHECK(wrong("topology = gpu.xml").find("absolute path") != std::string::npos);
  CHECK(wrong("topology =").find("absolute path") != std::string::npos);
  CHECK(wrong("topology.n[1-4 = /a") ==
        "f:1: topology.'n[1-4': not a host list such as n[1-4],login");
  CHECK(wrong("topology. = /a").find("needs a host list") != std::string::npos);
  CHECK(wrong("topologyx = /a").find("unknown key 'topologyx'") != std::string::npos);
  CHECK(wrong("nccl-topology.n$x = /a").find("not a host list") != std::string::npos);
}

TEST_CASE("ports by name and pattern") {
  const Settings s = parsed("nic-exclude = mlx5_3, mlx5_bond_*\nnic-include=mlx5_[0-9]:1");
  CHECK(s.policy.nic_exclude == std::vector<std::string>{"mlx5_3", "mlx5_bond_*"});
  CHECK(s.policy.nic_include == std::vector<std::string>{"mlx5_[0-9]:1"});
  CHECK(s.nic_from == Source::site);
  CHECK(parsed("cpu=numa").nic_from == Source::topology);
  CHECK(parsed("nic=closest").nic_from == Source::site);
  Settings option = parsed("nic=closest");
  REQUIRE(set_option(option, "nic", "all").has_value());
  CHECK(option.nic_from == Source::option);
  for (const char* bad :
       {"nic-exclude=", "nic-include=a,,b", "nic-exclude=a b", "nic-include=$(x)"})
    CHECK_MESSAGE(wrong(bad).find("f:1: nic-") == 0, bad);
}

TEST_CASE("the site's variables: known libraries' names, plain values") {
  const Settings s = parsed(
      "env.efa.FI_PROVIDER = efa\nenv.NCCL_DEBUG=WARN # loud\nenv.roce.UCX_TLS = rc, cuda\n");
  REQUIRE(s.variables.size() == 3);
  CHECK(s.variables[0].kind == "efa");
  CHECK(s.variables[0].name == "FI_PROVIDER");
  CHECK(s.variables[0].value == "efa");
  CHECK(s.variables[1].kind.empty());
  CHECK(s.variables[1].value == "WARN");
  CHECK(s.variables[2].value == "rc, cuda");
  CHECK(s.env == EnvMode::keep);

  for (const char* name :
       {"LD_PRELOAD", "PATH", "NCCL_CONF_FILE", "GPU_BIND_SET", "CUDA_VISIBLE_DEVICES", "NCCL_",
        "nccl_debug", "", "SLURM_CONF", "NCCL_A B"})
    CHECK_MESSAGE(wrong(std::string("env.") + name + "=x").find("not a variable that can be set") !=
                      std::string::npos,
                  name);
  CHECK(wrong("env.NCCL_TOPO_FILE=/x").find("use nccl-topology") != std::string::npos);
  CHECK(wrong("env.myrinet.NCCL_DEBUG=x").find("use one of infiniband, roce") != std::string::npos);
  CHECK(wrong("env.NCCL_DEBUG=").find("is empty") != std::string::npos);
  CHECK(wrong("env.NCCL_DEBUG=a\x1b[2J").find("printable") != std::string::npos);
  CHECK(wrong("env.NCCL_DEBUG=" + std::string(2000, 'x')).find("printable") != std::string::npos);
  std::string many;
  for (int i = 0; i < 33; ++i) many += "env.NCCL_V" + std::to_string(i) + "=1\n";
  CHECK(wrong(many).starts_with("f:33: "));
}

TEST_CASE("where each variable comes from is in every report") {
  Machine m = hgx_h100();
  for (Gpu& g : m.gpus) g.vendor = Vendor::amd;
  auto made = plan(m, {}, {});
  REQUIRE(made.has_value());
  EnvOptions o;
  o.variables = {{"infiniband", "NCCL_IB_SL", "1"}};
  const Environment env = environment(m, *made, o);
  const Answer answer{m, *made, env};
  const json j = json::parse(plan_json(answer))["env"];
  CHECK(j["why"]["NCCL_IB_HCA"]["source"].get<std::string>() == "topology");
  CHECK(j["why"]["NCCL_IB_SL"]["source"].get<std::string>() == "site");
  CHECK(j["why"]["NCCL_IB_SL"]["why"].get<std::string>() == "the site's for infiniband");
  CHECK(j["why"]["UCX_NET_DEVICES"]["source"].get<std::string>() == "topology");
  CHECK(j["unset"].get<std::vector<std::string>>() ==
        std::vector<std::string>{"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"});
  const std::string text = plan_text(answer);
  CHECK(text.find("NCCL_IB_SL=1  (site: the site's for infiniband)") != std::string::npos);
  CHECK(text.find("unset: CUDA_VISIBLE_DEVICES") != std::string::npos);
  const std::string wire_text = wire_of(answer, Report::full, "n1");
  CHECK(count(wire_text, "env unset CUDA_VISIBLE_DEVICES") == 8);
  CHECK(count(wire_text, "env keep NCCL_IB_SL=1") == 8);
  CHECK(wire_text.find("say gpu-bind: n1: NCCL_IB_SL: site: the site's for infiniband\n") !=
        std::string::npos);
}

TEST_CASE("the example in etc shows every key, and each line of it is right") {
  const std::string plain = read_file(TL_SRCDIR "/etc/gpu-bind.conf.example");
  REQUIRE_FALSE(plain.empty());
  // As it is shipped it sets nothing.
  const Settings none = parsed(plain);
  CHECK(none.bind == BindSwitch::on_request);
  CHECK(none.variables.empty());
  // "#key = value" is a setting to take up; "# words" are words.
  std::string text;
  std::set<std::string> keys;
  for (const std::string& line : lines_of(plain)) {
    text += line.starts_with('#') && !line.starts_with("# ") ? line.substr(1) : line;
    text += '\n';
    if (line.size() > 1 && line[0] == '#' && line[1] != ' ') {
      const std::string key = line.substr(1, line.find_first_of(" =") - 1);
      keys.insert(key.substr(0, key.find('.')));
    }
  }
  const Settings all = parsed(text);
  CHECK_FALSE(all.variables.empty());
  for (const char* key :
       {"bind", "policy", "visible", "cpu", "mem", "nic", "env", "report", "strict", "timeout-ms",
        "topology", "topology-check", "nccl-topology", "nic-include", "nic-exclude"})
    CHECK_MESSAGE(keys.contains(key), key);
}

TEST_CASE("a file that others could change is not the site's") {
  Folder folder;
  if (!folder.there()) return;
  const std::string name = folder.file("bind=off\n", 0664);
  CHECK(refusal(name).find("others than root can write it") != std::string::npos);
  chmod(name.c_str(), 0646);
  CHECK(refusal(name).find("others than root can write it") != std::string::npos);
  chmod(name.c_str(), 0644);
  REQUIRE(chown(name.c_str(), 65534, 0) == 0);
  CHECK(refusal(name).find("does not belong to root") != std::string::npos);
  REQUIRE(chown(name.c_str(), 0, 0) == 0);

  const std::string link = folder.path_ / "link.conf";
  fs::create_symlink(name, link);
  CHECK(refusal(link).find("symbolic link") != std::string::npos);
  CHECK(refusal(folder.path_).find("not a regular file") != std::string::npos);
  chmod(folder.path_.c_str(), 0777);
  CHECK(refusal(name).find("can write its directory") != std::string::npos);
  chmod(folder.path_.c_str(), 0755);

  Settings s;
  CHECK(read_config(s, name, true, "n1").has_value());
  CHECK(s.bind == BindSwitch::off);
  CHECK(read_config(s, folder.path_ / "none", false, "n1").has_value());
  CHECK(refusal(folder.path_ / "none").find("No such file") != std::string::npos);
}
