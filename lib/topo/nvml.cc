#include "topo/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <memory>

#include "topo/assemble.h"

namespace trainlaunch {
namespace {

// NVML's interface, as far as it is used. It is stable: functions get a new suffix when they
// change.
namespace nvml {
using Device = struct Opaque*;
using Return = int;
constexpr Return success = 0;
constexpr unsigned mig_enabled = 1;
constexpr size_t uuid_size = 96;
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
}  // namespace nvml

struct Close {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, Close>;

template <class Function>
Function* symbol(const Library& library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library.get(), name));
}

class Nvml {
 public:
  explicit Nvml(Library library) : library_(std::move(library)) {
    load(init_, "nvmlInit_v2");
    load(shutdown_, "nvmlShutdown");
    load(count_, "nvmlDeviceGetCount_v2");
    load(handle_, "nvmlDeviceGetHandleByIndex_v2");
    load(pci_, "nvmlDeviceGetPciInfo_v3");
    load(uuid_, "nvmlDeviceGetUUID");
    load(minor_, "nvmlDeviceGetMinorNumber");
    // Drivers of before MIG do not have these.
    mig_mode_ = symbol<Mode>(library_, "nvmlDeviceGetMigMode");
    mig_count_ = symbol<Number>(library_, "nvmlDeviceGetMaxMigDeviceCount");
    mig_handle_ = symbol<Part>(library_, "nvmlDeviceGetMigDeviceHandleByIndex");
  }

  Result<std::vector<NvmlGpu>> read() const {
    if (!missing_.empty()) return fail("NVML has no " + missing_);
    if (init_() != nvml::success) return fail("NVML does not start");
    const std::unique_ptr<const Nvml, Stop> running(this);
    unsigned count = 0;
    if (count_(&count) != nvml::success) return fail("NVML does not count its GPUs");
    std::vector<NvmlGpu> gpus;
    for (unsigned i = 0; i < std::min<unsigned>(count, max_gpus); ++i) {
      nvml::Device device = nullptr;
      nvml::PciInfo pci{};
      // A GPU that has failed, or that a cgroup forbids: the others still count.
      if (handle_(i, &device) != nvml::success || pci_(device, &pci) != nvml::success) continue;
      gpus.push_back(read_gpu(device, pci));
    }
    return gpus;
  }

 private:
  using Init = nvml::Return();
  using Number = nvml::Return(nvml::Device, unsigned*);
  using Count = nvml::Return(unsigned*);
  using Handle = nvml::Return(unsigned, nvml::Device*);
  using Pci = nvml::Return(nvml::Device, nvml::PciInfo*);
  using Text = nvml::Return(nvml::Device, char*, unsigned);
  using Mode = nvml::Return(nvml::Device, unsigned*, unsigned*);
  using Part = nvml::Return(nvml::Device, unsigned, nvml::Device*);
  struct Stop {
    void operator()(const Nvml* n) const { n->shutdown_(); }
  };

  template <class Function>
  void load(Function*& function, const char* name) {
    function = symbol<Function>(library_, name);
    if (!function) missing_ = name;
  }

  NvmlGpu read_gpu(nvml::Device device, const nvml::PciInfo& pci) const {
    NvmlGpu gpu;
    gpu.pci = {pci.domain, static_cast<uint8_t>(pci.bus), static_cast<uint8_t>(pci.device), 0};
    gpu.uuid = uuid_of(device);
    if (unsigned minor = 0; minor_(device, &minor) == nvml::success)
      gpu.minor = static_cast<int>(minor);
    unsigned mode = 0, pending = 0, most = 0;
    gpu.mig_mode = mig_mode_ && mig_mode_(device, &mode, &pending) == nvml::success &&
                   mode == nvml::mig_enabled;
    if (!gpu.mig_mode || !mig_count_ || !mig_handle_) return gpu;
    if (mig_count_(device, &most) != nvml::success) return gpu;
    for (unsigned i = 0; i < std::min<unsigned>(most, max_gpus); ++i) {
      nvml::Device part = nullptr;
      if (mig_handle_(device, i, &part) != nvml::success) continue;  // numbers have gaps
      if (std::string uuid = uuid_of(part); !uuid.empty()) gpu.mig.push_back(std::move(uuid));
    }
    return gpu;
  }

  std::string uuid_of(nvml::Device device) const {
    std::array<char, nvml::uuid_size> text{};
    if (uuid_(device, text.data(), text.size()) != nvml::success) return {};
    text.back() = '\0';
    return text.data();
  }

  Library library_;
  std::string missing_;
  Init* init_ = nullptr;
  Init* shutdown_ = nullptr;
  Count* count_ = nullptr;
  Handle* handle_ = nullptr;
  Pci* pci_ = nullptr;
  Text* uuid_ = nullptr;
  Number* minor_ = nullptr;
  Mode* mig_mode_ = nullptr;
  Number* mig_count_ = nullptr;
  Part* mig_handle_ = nullptr;
};

}  // namespace

Result<std::vector<NvmlGpu>> read_nvml(const std::string& library) {
  Library opened(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!opened) return fail("no NVML here: " + library + " cannot be opened");
  return Nvml(std::move(opened)).read();
}

void add_nvml_facts(Machine& machine, const std::vector<NvmlGpu>& known) {
  split_gpus(machine, [&](const Gpu& whole) {
    const auto found = std::find_if(known.begin(), known.end(), [&](const NvmlGpu& n) {
      return n.pci == whole.pci && whole.vendor == Vendor::nvidia;
    });
    std::vector<Gpu> gpus{whole};
    if (found == known.end()) return gpus;
    if (!found->uuid.empty()) gpus[0].uuid = found->uuid;
    if (found->minor) gpus[0].minor = found->minor;
    if (!found->mig_mode) return gpus;
    const Gpu parent = gpus[0];
    gpus.clear();
    for (const std::string& uuid : found->mig) {
      gpus.push_back(parent);
      gpus.back().mig = uuid;
    }
    if (gpus.empty())
      machine.warnings.push_back(
          {"mig-empty", "GPU " + to_string(parent.pci) + " is in MIG mode and has no instance",
           "make instances (nvidia-smi mig -cgi ... -C) or leave MIG mode"});
    return gpus;
  });
}

}  // namespace trainlaunch
