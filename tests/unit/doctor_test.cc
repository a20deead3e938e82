// The doctor's findings, each made from a case that people met and wrote about.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "healthy_jobs.h"
#include "spank/doctor.h"
#include "temporary.h"
#include "texts.h"

using namespace trainlaunch;

namespace {

// As Slurm alone starts it: nothing of ours is there.
void unbind(RankFacts& f) {
  f.plan_applied.clear();
  f.planned.reset();
}

// What `diagnose` finds of one code; a failing test shows all findings.
std::vector<Finding> found(const std::vector<RankFacts>& facts, const std::string& code) {
  const auto all = diagnose(facts);
  INFO(findings_text(all, facts));
  std::vector<Finding> out;
  for (const Finding& f : all)
    if (f.code == code) out.push_back(f);
  return out;
}

// One finding of this code, about `who`, whose message and fix hold these.
void one(const std::vector<RankFacts>& facts, const std::string& code, const std::string& who,
         const std::string& message, const std::string& fix) {
  const auto all = diagnose(facts);
  const std::string text = findings_text(all, facts);
  CAPTURE(text);
  const auto hits = found(facts, code);
  REQUIRE(hits.size() == 1);
  CHECK(hits[0].who == who);
  CHECK_MESSAGE(has(hits[0].message, message), hits[0].message);
  CHECK_MESSAGE(has(hits[0].fix, fix), hits[0].fix);
}

}  // namespace

TEST_CASE("a job as it should be has nothing to mend") {
  CHECK(diagnose(job()).empty());
  CHECK(diagnose(job(1)).empty());
  CHECK(findings_text({}, job()) == "nothing to mend: 16 ranks on 2 nodes\n");
  CHECK(diagnose({}).empty());
}

// --- GPUs. ---

TEST_CASE("GPUs bound per task (NVIDIA/nccl issue 1066, open-mpi/ompi issue 11949)") {
  auto facts = job(1);
  for (RankFacts& f : facts) {
    f.env["SLURMD_TRES_BIND"] = "gpu:per_task:1";
    f.visible = {pci(f.local_rank)};
  }
  one(facts, "gpus-per-task", "n1 ranks 0-7", "peer-to-peer is off", "--gpus-per-node");
  // --gpu-bind=none is how to have it right.
  for (RankFacts& f : facts) f.env["SLURMD_TRES_BIND"] = "gpu:none";
  CHECK(found(facts, "gpus-per-task").empty());
  for (RankFacts& f : facts) f.env["SLURMD_TRES_BIND"] = "gpu:verbose,closest";
  CHECK(found(facts, "gpus-per-task").size() == 1);
}

TEST_CASE("two ranks on one GPU (gpu-bind=single gave all the first: NVIDIA/deepops issue 1102)") {
  auto facts = job(1);
  for (RankFacts& f : facts) unbind(f);
  for (RankFacts& f : facts) f.visible = {pci(f.local_rank == 3 ? 2 : f.local_rank)};
  one(facts, "gpus-shared", "n1 ranks 2-3", "NCCL refuses", "--ntasks-per-node");
  // Ranks that see all GPUs take the one at the place of their local rank.
  for (RankFacts& f : facts) f.visible = {pci(0), pci(1), pci(2), pci(3)};
  one(facts, "gpus-shared", "n1 ranks 0-7", "several ranks", "--ntasks-per-node");
  for (RankFacts& f : facts) f.env["CUDA_MPS_PIPE_DIRECTORY"] = "/tmp/mps";
  CHECK(found(facts, "gpus-shared").empty());
}

TEST_CASE("two ranks with one MIG slice's name, of a GPU that is not known by it") {
  auto facts = job(1);
  for (RankFacts& f : facts) unbind(f);
  for (RankFacts& f : facts) f.visible = {"MIG-" + std::to_string(f.local_rank / 2)};
  CHECK(found(facts, "gpus-shared").size() == 1);
  for (RankFacts& f : facts) f.visible = {"MIG-" + std::to_string(f.local_rank)};
  CHECK(found(facts, "gpus-shared").empty());
}

TEST_CASE("a GPU whose device node is closed, or all of them (NVIDIA/pyxis issue 73)") {
  auto facts = job(1);
  facts[2].gpus[pci(2)].opens = false;
  one(facts, "gpu-closed", "n1 rank 2", pci(2) + ", /dev/nvidia2", "gres.conf");
  facts[3].env["SLURM_STEP_GPUS"] = "0-7";
  facts[3].visible.clear();
  one(facts, "gpu-none", "n1 rank 3", "sees none", "--gpu-bind-policy=auto");
}

TEST_CASE("ROCR and HIP masks at once: no GPU is left (Parsl/parsl issue 3858)") {
  auto facts = job(1);
  for (auto& f : facts) {
    for (auto& [id, gpu] : f.gpus) gpu.vendor = "amd";
    f.env.erase("CUDA_VISIBLE_DEVICES");
    f.env["ROCR_VISIBLE_DEVICES"] = std::to_string(f.local_rank);
    f.env["HIP_VISIBLE_DEVICES"] = std::to_string(f.local_rank);
  }
  // Rank 0 has 0 of both, which is right by chance.
  one(facts, "mask-twice", "n1 ranks 1-7", "ROCR_VISIBLE_DEVICES=1, HIP_VISIBLE_DEVICES=1",
      "unset HIP_VISIBLE_DEVICES");
  for (auto& f : facts) f.env.erase("HIP_VISIBLE_DEVICES");
  CHECK(found(facts, "mask-twice").empty());
  facts[4].env["CUDA_VISIBLE_DEVICES"] = "4";
  one(facts, "mask-twice", "n1 rank 4", "CUDA_VISIBLE_DEVICES=4", "unset CUDA_VISIBLE_DEVICES");
  // Slurm sets the masks of all vendors where gres.conf does not say which the GPUs are.
  auto nvidia = job(1);
  for (auto& f : nvidia) f.env["ROCR_VISIBLE_DEVICES"] = "2";
  CHECK(found(nvidia, "mask-twice").empty());
}

TEST_CASE("numbers of GPUs in CUDA's own order (flux-framework/flux-core issue 1591)") {
  auto facts = job(1);
  for (auto& f : facts) f.env.erase("CUDA_DEVICE_ORDER");
  one(facts, "cuda-order", "n1 ranks 0-7", "fastest first", "CUDA_DEVICE_ORDER=PCI_BUS_ID");
  for (auto& f : facts) f.env["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST";
  CHECK(found(facts, "cuda-order").size() == 1);
  for (auto& f : facts) f.env["CUDA_VISIBLE_DEVICES"] = "GPU-6a3b,GPU-77aa";
  CHECK(found(facts, "cuda-order").empty());
}

// --- CPUs and memory. ---

TEST_CASE("one CPU for a GPU (Lightning-AI issue 18650: sbatch's -c does not reach srun)") {
  auto facts = job(1);
  facts[1].cpus = "14";
  facts[1].cores = 1;
  one(facts, "cores-one", "n1 rank 1", "one CPU for a GPU", "--cpus-per-task");
  facts[1].cpus = "14,126";
  facts[1].gpus[pci(1)].cpus = "0-55,112-167";
  one(facts, "cores-one", "n1 rank 1", "one core for a GPU", "--cpus-per-task");
}

TEST_CASE("cores on the far socket (argonne-lcf/GettingStarted pull 13: Polaris is reversed)") {
  auto facts = job(1);
  for (RankFacts& f : facts) {
    unbind(f);
    const int other = 7 - f.local_rank;
    f.cpus = std::to_string(14 * other) + '-' + std::to_string(14 * other + 13);
  }
  one(facts, "cores-far", "n1 ranks 0-7", "another socket than its GPU (the first: CPUs 98-111",
      "--gpu-bind-policy=auto");
}

TEST_CASE("CPUs of one socket only, GPUs on both (rapidsai/dask-cuda issue 1381)") {
  auto facts = job(1);
  for (RankFacts& f : facts) {
    f.cpus = f.planned->cpus.emplace(std::to_string(7 * f.local_rank) + '-' +
                                     std::to_string(7 * f.local_rank + 6));
    f.mem_policy = "default";
    f.planned->mems.reset();
  }
  // It was planned so: there is nothing better in this allocation.
  one(facts, "cores-far", "n1 ranks 4-7", "another socket", "--gres-flags=enforce-binding");
}

TEST_CASE("CPUs of the right socket, but not beside the GPU (LUMI's order: DLA-Future pull 786)") {
  auto facts = job(1);
  for (auto& [id, gpu] : facts[0].gpus) gpu.cpus = gpu.index % 2 ? "14-27" : "28-41";
  facts[0].planned->cpus = facts[0].cpus;
  one(facts, "cores-outside", "n1 rank 0", "none of its CPUs is beside its GPU", "--exclusive");
  CHECK(found(facts, "cores-far").empty());
  // A mask wider than what is near: sglang issue 39552, uccl issue 956.
  auto wide = job(1);
  for (RankFacts& f : wide) {
    unbind(f);
    f.cpus = "0-111";
  }
  one(wide, "cores-loose", "n1 ranks 0-7", "not beside its GPU", "--gpu-bind-policy=auto");
}

TEST_CASE("ranks that share CPUs while each is bound (flux-framework/flux-core issue 4527)") {
  auto facts = job(1);
  facts[1].cpus = "10-23";
  one(facts, "cores-shared", "n1 ranks 0-1", "ranks 0 and 1 on CPU 10", "--cpus-per-task");
}

TEST_CASE("memory interleaved, or bound strictly (JustVugg/colibri pull 82, NeMo-RL pull 2613)") {
  auto facts = job(1);
  facts[0].mem_policy = "interleave";
  facts[0].mem_nodes = "0-1";
  facts[1].planned->mems.reset();
  facts[1].mem_policy = "bind";
  one(facts, "mem-interleaved", "n1 rank 0", "interleave 0-1", "--gpu-bind-mem=preferred");
  one(facts, "mem-strict", "n1 rank 1", "bind 0", "--gpu-bind-mem=preferred");
  CHECK(found(facts, "mem-far").empty());
  facts[1].mem_nodes = "1";
  one(facts, "mem-far", "n1 rank 1", "bind 1", "--gpu-bind-mem=preferred");
}

TEST_CASE("too little memory may be locked (NVIDIA/nccl-tests issue 206: 64 KiB below slurmd)") {
  auto facts = job();
  for (RankFacts& f : facts)
    if (f.node == "n2") f.memlock = 65536;
  one(facts, "memlock-low", "n2 ranks 8-15", "64 KiB", "LimitMEMLOCK=infinity");
  for (RankFacts& f : facts)
    for (auto& [name, p] : f.ports) p.verbs = false;
  CHECK(found(facts, "memlock-low").empty());
}

// --- Ports. ---

TEST_CASE("a port beside a GPU is down (NVIDIA/nccl issue 224)") {
  auto facts = job();
  for (RankFacts& f : facts)
    if (f.node == "n2") {
      f.ports[port(5)].up = false;
      f.ports[port(5)].used = false;
    }
  one(facts, "nic-down", "n2", port(5) + " beside GPU " + pci(5), "ibstat");
  // That one node has a port less is one more finding: two nodes' sets differ.
  CHECK(found(facts, "nics-differ").size() == 1);
}

TEST_CASE("a port that lost half of its rate") {
  auto facts = job(1);
  for (RankFacts& f : facts) {
    f.ports[port(2)].gbps = 200;
    f.ports[port(2)].used = false;
  }
  one(facts, "nic-slow", "n1", port(2) + " beside GPU " + pci(2) + ", 200 of 400 Gb/s", "ibstat");
  // An Ethernet port beside a GPU among InfiniBand is another network, not a slow one.
  for (RankFacts& f : facts) f.ports[port(2)].link_layer = "ethernet";
  CHECK(found(facts, "nic-slow").empty());
}

TEST_CASE("a port that the job's user cannot open (NVIDIA/nccl issue 2428)") {
  auto facts = job(1);
  for (RankFacts& f : facts) f.ports[port(0)].opens = false;
  one(facts, "nic-closed", "n1", port(0), "/dev/infiniband");
}

TEST_CASE("no port of a node can be used: sockets only (NVIDIA/nccl issue 601)") {
  auto facts = job();
  for (RankFacts& f : facts)
    for (auto& [name, p] : f.ports) {
      p.used = false;
      p.why = "of another network than its peers";
    }
  one(facts, "nic-none", "n1, n2", "of another network", "--gpu-bind-nic=list:");
}

TEST_CASE("a list for another node's names (NVIDIA/nccl issue 1277: mlx5_0/3/5/8 and 0/1/4/5)") {
  auto facts = job();
  for (RankFacts& f : facts) f.env["NCCL_IB_HCA"] = "=mlx5_0,mlx5_11";
  one(facts, "nic-missing", "n1, n2 ranks 0-15", "NCCL_IB_HCA names mlx5_11",
      "--gpu-bind-nic=auto");
  auto ucx = job(1);
  ucx[1].env["UCX_NET_DEVICES"] = "mlx5_30:1";
  one(ucx, "nic-missing", "n1 rank 1", "UCX_NET_DEVICES names mlx5_30:1", "UCX_NET_DEVICES");
}

TEST_CASE("NCCL_IB_HCA=mlx5_1 takes mlx5_10 too (NVIDIA-NeMo/nemo-platform pull 922)") {
  auto facts = job(1);
  for (RankFacts& f : facts) {
    f.env["NCCL_IB_HCA"] = "mlx5_1";
    f.ports[port(10)] = f.ports[port(1)];
    f.ports[port(11)] = f.ports[port(1)];
  }
  one(facts, "hca-prefix", "n1 ranks 0-7", "and so mlx5_10:1, mlx5_11:1 too",
      "NCCL_IB_HCA==mlx5_1");
  for (RankFacts& f : facts) f.env["NCCL_IB_HCA"] = "=mlx5_1";
  CHECK(found(facts, "hca-prefix").empty());
  CHECK(found(facts, "hca-inexact").empty());
  for (RankFacts& f : facts) f.env["NCCL_IB_HCA"] = "mlx5_2:1,mlx5_3:1";
  CHECK(found(facts, "hca-prefix").empty());
  CHECK(found(facts, "hca-inexact").size() == 1);
  for (RankFacts& f : facts) f.env["NCCL_IB_HCA"] = "^mlx5_4";
  CHECK(found(facts, "hca-inexact").empty());
}

TEST_CASE("a list for each rank (NVIDIA/nccl issue 1478: you should not set it differently)") {
  auto facts = job(1);
  for (RankFacts& f : facts) f.env["NCCL_IB_HCA"] = "=mlx5_" + std::to_string(f.local_rank);
  one(facts, "hca-per-rank", "n1 ranks 0-7", "rank 0: =mlx5_0, rank 1: =mlx5_1", "UCX_NET_DEVICES");
  // Different nodes may have different lists.
  auto nodes = job();
  for (RankFacts& f : nodes) f.env["NCCL_IB_HCA"] = f.node == "n1" ? "=mlx5_0" : "=mlx5_1";
  CHECK(found(nodes, "hca-per-rank").empty());
}

TEST_CASE("sets of ports that differ between nodes (NVIDIA/nccl issue 2428)") {
  auto facts = job(3);
  for (RankFacts& f : facts)
    if (f.node == "n2")
      for (int i = 4; i < 8; ++i) f.ports.erase(port(i));
  one(facts, "nics-differ", "", "n2: 4 x infiniband 400 Gb/s; n1, n3: 8 x infiniband 400 Gb/s",
      "--exclude");
  // Other names on another node are no difference: NVIDIA/nccl issue 1277.
  auto named = job();
  for (RankFacts& f : named)
    if (f.node == "n2") {
      auto p = f.ports.extract(port(7));
      p.key() = "mlx5_12:1";
      f.ports.insert(std::move(p));
    }
  CHECK(found(named, "nics-differ").empty());
}

TEST_CASE("ports that serve other ranks on another node (NVIDIA/nccl issue 820)") {
  auto facts = job(3);
  for (RankFacts& f : facts)
    if (f.node == "n3")
      f.plan_applied = f.planned->digest =
          std::string(32, 'a') + std::string(16, 'b') + std::string(16, 'a');
  one(facts, "rails-differ", "", "n1, n2 against n3", "gpu-bind plan");
  // Without the plugin the plan made for the allocation tells.
  for (RankFacts& f : facts) f.plan_applied.clear();
  CHECK(found(facts, "rails-differ").size() == 1);
}

// --- The environment. ---

TEST_CASE("NCCL_SOCKET_IFNAME that leaves nothing (marin-community/marin issue 7018)") {
  auto facts = job();
  facts[0].env["NCCL_SOCKET_IFNAME"] = "^lo,docker,eth0";
  one(facts, "socket-interface", "n1 rank 0", "leaves no interface",
      "leave NCCL_SOCKET_IFNAME out");
  // The variable's value with a '=' too many, as in that issue.
  facts[0].env["NCCL_SOCKET_IFNAME"] = "==eth0";
  CHECK(found(facts, "socket-interface").size() == 1);
  facts[0].env["NCCL_SOCKET_IFNAME"] = "eth1";
  one(facts, "socket-interface", "n1 rank 0", "eth1 does not", "leave NCCL_SOCKET_IFNAME out");
  facts[0].env["NCCL_SOCKET_IFNAME"] = "eth";
  CHECK(found(facts, "socket-interface").empty());
}

TEST_CASE("NCCL_SOCKET_IFNAME=^docker0 leaves lo (horovod pull 700)") {
  auto facts = job();
  facts[0].interfaces = {{"lo", true}, {"docker0", true}, {"eth0", false}};
  facts[0].env["NCCL_SOCKET_IFNAME"] = "^docker0";
  one(facts, "socket-interface", "n1 rank 0", "lo only", "leave NCCL_SOCKET_IFNAME out");
}

TEST_CASE("GLOO_SOCKET_IFNAME in NCCL's syntax, or an address (aws-do-eks pull 51)") {
  auto facts = job();
  facts[0].env["GLOO_SOCKET_IFNAME"] = "=eth0";
  facts[1].env["GLOO_SOCKET_IFNAME"] = "^lo";
  facts[2].env["GLOO_SOCKET_IFNAME"] = "10.0.0.1";
  CHECK(found(facts, "gloo-syntax").size() == 3);
  facts = job();
  for (RankFacts& f : facts) f.env["GLOO_SOCKET_IFNAME"] = "eth";
  one(facts, "gloo-interface", "n1, n2 ranks 0-15", "names eth, which this node does not have",
      "plain name");
}

TEST_CASE("a topology file that is not in the container: NCCL says nothing of it") {
  auto facts = job(1);
  for (RankFacts& f : facts) {
    f.env["NCCL_TOPO_FILE"] = "/opt/ndv4-topo.xml";
    f.files["NCCL_TOPO_FILE"] = f.local_rank != 1;
  }
  one(facts, "topo-file-missing", "n1 rank 1", "/opt/ndv4-topo.xml", "mount");
}

TEST_CASE("switches that turn off what is fast") {
  auto facts = job(1);
  facts[0].env["NCCL_IB_DISABLE"] = "1";
  facts[1].env["NCCL_P2P_DISABLE"] = "1";
  facts[2].env["OMP_PROC_BIND"] = "close";
  facts[3].env["NCCL_IB_DISABLE"] = "0";
  facts[4].env["OMP_PROC_BIND"] = "false";
  one(facts, "ib-off", "n1 rank 0", "NCCL_IB_DISABLE", "unset");
  one(facts, "p2p-off", "n1 rank 1", "NCCL_P2P_DISABLE", "unset");
  one(facts, "omp-pinned", "n1 rank 2", "OMP_PROC_BIND", "unset");
}

TEST_CASE("NCCL variables that differ between nodes (a login script on some of them)") {
  auto facts = job();
  for (RankFacts& f : facts)
    if (f.node == "n2") f.env["NCCL_PROTO"] = "LL128";
  one(facts, "env-differs", "", "NCCL_PROTO differs between nodes (n2: =LL128; n1: not set)",
      "before srun");
}

// --- The machine and the job. ---

TEST_CASE("a virtual machine without memory nodes (NVIDIA/nccl issues 1464 and 1674)") {
  auto facts = job(1);
  for (RankFacts& f : facts) {
    f.virtual_machine = true;
    f.numa_nodes = 1;
    for (auto& [id, gpu] : f.gpus) {
      gpu.numa.reset();
      for (auto& [name, level] : gpu.near) level = "PHB";
    }
  }
  one(facts, "locality-unknown", "n1", "8 GPUs, 1 memory nodes", "NCCL_TOPO_FILE");
  // One that shows its switches is as good as a real one.
  for (RankFacts& f : facts)
    for (auto& [id, gpu] : f.gpus)
      for (auto& [name, level] : gpu.near) level = "PIX";
  CHECK(found(facts, "locality-unknown").empty());
  // Several memory nodes, and nobody says in which the GPUs are: aws-ofi-nccl issue 873.
  auto bare = job(1);
  for (RankFacts& f : bare)
    for (auto& [id, gpu] : f.gpus) gpu.cpus.clear();
  CHECK(found(bare, "locality-unknown").size() == 1);
}

TEST_CASE("the site's topology file is of another machine (Azure/azhpc-images issue 327)") {
  auto facts = job(1);
  for (RankFacts& f : facts) f.warnings["topology-mismatch"] = "ndv4.xml has CPUs 0-95";
  one(facts, "topology-mismatch", "n1", "ndv4.xml has CPUs 0-95", "lstopo");
}

TEST_CASE("started without PMIx: every rank is rank 0 of 1") {
  auto facts = job(1);
  for (RankFacts& f : facts) f.env.erase("PMIX_RANK");
  one(facts, "no-pmix", "n1 ranks 0-7", "rank 0 of 1", "--mpi=pmix");
  for (RankFacts& f : facts) f.env["PMI_RANK"] = std::to_string(f.rank);
  CHECK(found(facts, "no-pmix").empty());
}

TEST_CASE("a container changes what was bound (NVIDIA/pyxis overwrites variables of ranks)") {
  auto facts = job(1);
  facts[1].differs["UCX_NET_DEVICES"] = "planned mlx5_1:1, has mlx5_0:1";
  one(facts, "not-as-planned", "n1 rank 1", "UCX_NET_DEVICES: planned mlx5_1:1, has mlx5_0:1",
      "listed after gpu_bind.so");
  for (RankFacts& f : facts) {
    f.plan_applied.clear();
    f.planned->from = "allocation";
  }
  CHECK(found(facts, "not-as-planned").empty());
  CHECK(found(facts, "unbound").size() == 1);
}

TEST_CASE("nodes that are not alike: bound or not, versions, ranks that did not answer") {
  auto facts = job();
  for (RankFacts& f : facts)
    if (f.node == "n2") {
      f.program = "0.9";
      f.plan_applied.clear();
    }
  one(facts, "versions-differ", "", "n2: 0.9; n1: 1.0", "one version");
  one(facts, "plan-partial", "", "n2: not planned; n1: planned", "plugstack.conf");
  facts.resize(10);
  one(facts, "ranks-unheard", "", "of 16 ranks 10", "--kill-on-bad-exit=0");
}

// --- Form. ---

TEST_CASE("many nodes are counted, not listed") {
  auto facts = job(20);
  for (RankFacts& f : facts) f.memlock = 65536;
  one(facts, "memlock-low", "n1, n2, n3, n4, n5, n6, n7, n8 and 12 more ranks 0-159", "64 KiB",
      "LimitMEMLOCK");
}

TEST_CASE("errors come first, control characters do not come at all") {
  auto facts = job(1);
  facts[0].env.erase("CUDA_DEVICE_ORDER");
  facts[1].env["GLOO_SOCKET_IFNAME"] = "^\033[2Jlo";
  const auto all = diagnose(facts);
  REQUIRE(all.size() == 2);
  CHECK(all[0].severity == Severity::error);
  CHECK(all[1].severity == Severity::advice);
  CHECK(findings_text(all, facts).find('\033') == std::string::npos);
  CHECK(has(findings_json(all, facts), R"("code": "gloo-syntax")"));
}

TEST_CASE("gpu-bind(1) has every code with its severity") {
  const char* source = std::getenv("TL_SOURCE");
  if (!source) {
    MESSAGE("skipped: TL_SOURCE is not set");
    return;
  }
  const std::string page = read_file(std::string(source) + "/man/gpu-bind.1");
  for (const FindingCode& c : finding_codes()) {
    CAPTURE(c.code);
    CHECK(has(page, std::string(".It Cm ") + c.code + " Pq " + name_of(c.severity) + '\n'));
  }
}
