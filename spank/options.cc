#include "options.h"

namespace trainlaunch::plugin {
namespace {

constexpr OptionInfo table[option_count] = {
    {"gpu-bind-policy", "GPU_BIND_POLICY", "POLICY",
     "which GPU each rank gets, and with it its cores, memory and NIC: auto, closest, map:<gpus>, "
     "off; help explains",
     "auto, closest, map:<gpus>, off or help",
     "--gpu-bind-policy=POLICY (GPU_BIND_POLICY): which GPU each rank gets\n"
     "  auto        rank i of a node on GPU i in PCI order, so that rails line up across nodes;\n"
     "              cores, memory and NIC follow the GPU (the default when binding)\n"
     "  closest     the job step's cores are split among the ranks in order, and each rank gets\n"
     "              the GPU nearest to its own; each GPU once before any is taken twice\n"
     "  map:<gpus>  rank 0 gets the first GPU of the list, rank 1 the second, and so on, over\n"
     "              again where there are more ranks; for example map:3,2,1,0 or map:0*2,1*2.\n"
     "              GPUs count from 0 within the job step, in PCI order\n"
     "  off         bind nothing, set nothing\n"},
    {"gpu-bind-visible", "GPU_BIND_VISIBLE", "WHICH",
     "the GPUs a rank sees: ordered, own, auto; help explains", "ordered, own, auto or help",
     "--gpu-bind-visible=WHICH (GPU_BIND_VISIBLE): the GPUs a rank sees\n"
     "  ordered  all GPUs of the job step, so ordered that device LOCAL_RANK is the rank's own:\n"
     "           peer-to-peer copies work\n"
     "  own      only the rank's own\n"
     "  auto     ordered where there is one whole GPU per rank, else own (the default)\n"},
    {"gpu-bind-cpu", "GPU_BIND_CPU", "CPUS",
     "the cores of each rank: local, numa, off, and local,smt=1; help explains",
     "local, numa, off, each of the first two with ,smt=1 or ,smt=all, or help",
     "--gpu-bind-cpu=CPUS (GPU_BIND_CPU): the cores of each rank, always within the job step's\n"
     "  local  a fair share of the cores nearest to the GPU, no two ranks on the same core: by\n"
     "         L3 cache, then NUMA node, then socket (the default)\n"
     "  numa   all allowed cores of the GPU's NUMA node\n"
     "  off    as Slurm left them\n"
     "  With ,smt=1 only the first hardware thread of each core, as in local,smt=1; with\n"
     "  ,smt=all every one that the job step has (the default).\n"},
    {"gpu-bind-mem", "GPU_BIND_MEM", "MEMORY",
     "the memory of each rank: preferred, bind, off; help explains", "preferred, bind, off or help",
     "--gpu-bind-mem=MEMORY (GPU_BIND_MEM): where each rank's memory comes from\n"
     "  preferred  the NUMA nodes of its cores while they have room (the default)\n"
     "  bind       these nodes only: an allocation fails when they are full\n"
     "  off        as Slurm left it\n"},
    {"gpu-bind-nic", "GPU_BIND_NIC", "NICS",
     "the network devices to use: auto, closest, all, off, list:<names>; help explains",
     "auto, closest, all, off, list:<names> or help",
     "--gpu-bind-nic=NICS (GPU_BIND_NIC): the network devices that NCCL and UCX are told to use\n"
     "  auto          those near some GPU of the job step; storage and management devices are\n"
     "                left out (the default)\n"
     "  closest       only those nearest to each GPU\n"
     "  all           every usable one\n"
     "  off           set nothing\n"
     "  list:<names>  these, for example list:mlx5_0,mlx5_1:1\n"},
    {"gpu-bind-env", "GPU_BIND_ENV", "MODE",
     "how to treat variables that are set already: keep, set, off; help explains",
     "keep, set, off or help",
     "--gpu-bind-env=MODE (GPU_BIND_ENV): how NCCL_*, UCX_* and GLOO_* variables are set\n"
     "  keep  what the environment or nccl.conf sets stays as it is (the default)\n"
     "  set   the plan overrides both\n"
     "  off   set none\n"},
    {"gpu-bind-report", "GPU_BIND_REPORT", "WHAT",
     "what to print when the job step starts: none, summary, full, json, doctor; help explains",
     "none, summary, full, json, doctor or help",
     "--gpu-bind-report=WHAT (GPU_BIND_REPORT): what is printed when the job step starts\n"
     "  none     warnings only (the default)\n"
     "  summary  one line for each rank\n"
     "  full     the reasons and the distances too\n"
     "  json     the plan of each node as one JSON object\n"
     "  doctor   what is silently wrong, each with the option that mends it\n"},
    {"gpu-bind-strict", "GPU_BIND_STRICT", "yes|no",
     "stop the job step where ranks cannot be bound: yes, no; help explains", "yes, no or help",
     "--gpu-bind-strict=yes|no (GPU_BIND_STRICT): what happens when ranks cannot be bound\n"
     "  yes  the job step fails with the reason\n"
     "  no   one warning, and the job step runs as Slurm started it (the default)\n"},
};

bool one_of(std::string_view value, std::string_view words) {
  std::string_view word;
  while (next_part(words, ' ', word))
    if (value == word) return true;
  return false;
}

// A list that may go into an argument of the planner: what it means is the planner's to say.
bool is_list(std::string_view s) {
  for (const char c : s) {
    const bool letter = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && (c == '\0' || !strchr("_.,:*-", c))) return false;
  }
  return !s.empty();
}

// "0,1*2,3". Which GPUs there are is the planner's to know.
bool is_map(std::string_view list) {
  std::string_view item;
  if (list.empty() || list.back() == ',') return false;
  while (next_part(list, ',', item)) {
    const size_t star = item.find('*');
    const std::string_view gpu(item.data(), star == std::string_view::npos ? item.size() : star);
    uint32_t number = 0;
    if (!parse_number(gpu, 4095, number)) return false;
    if (star == std::string_view::npos) continue;
    item.remove_prefix(star + 1);
    if (!parse_number(item, 1024, number) || number == 0) return false;
  }
  return true;
}

}  // namespace

const OptionInfo& option_info(int id) { return table[id]; }

std::string_view planner_name(int id) { return table[id].name + strlen("gpu-bind-"); }

bool valid_option(int id, std::string_view value) {
  if (value.empty() || value.size() >= Options::max_value) return false;
  switch (id) {
    case policy:
      return one_of(value, "auto closest off") || (take(value, "map:") && is_map(value));
    case visible:
      return one_of(value, "ordered own auto");
    case cpu:
      return one_of(value, "local numa off local,smt=1 numa,smt=1 local,smt=all numa,smt=all");
    case mem:
      return one_of(value, "preferred bind off");
    case nic:
      return one_of(value, "auto closest all off") || (take(value, "list:") && is_list(value));
    case env:
      return one_of(value, "keep set off");
    case report:
      return one_of(value, "none summary full json doctor");
    case strict:
      return one_of(value, "yes no");
    default:
      return false;
  }
}

bool Options::set(int id, std::string_view value) {
  any_ = true;
  if (!valid_option(id, value)) return false;
  values_[id].set(value);
  return true;
}

Reason refusal(int id, bool from_variable, std::string_view value) {
  char shown[64];
  size_t n = 0;
  for (; n < value.size() && n + 1 < sizeof shown; ++n)
    shown[n] = printable(value[n]) ? value[n] : '?';
  Reason why;
  why += from_variable ? table[id].variable : "--";
  if (!from_variable) why += table[id].name;
  why += "=";
  why += std::string_view(shown, n);
  if (n < value.size()) why += "...";
  why += ": no such value; use ";
  why += table[id].values;
  return why;
}

}  // namespace trainlaunch::plugin
