// An NVML of two GPUs, the second in MIG mode with two instances and a gap between them; for tests.
// FAKE_NVML=broken: does not start; =empty: the second GPU has no instance.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Device {
  unsigned bus;
  const char* uuid;
  bool mig;
};
Device gpus[] = {{0x17, "GPU-a", false}, {0x65, "GPU-b", true}};
Device instances[] = {{0x65, "MIG-one", false}, {0x65, "MIG-two", false}};

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

bool told(const char* word) {
  const char* value = std::getenv("FAKE_NVML");
  return value && std::string(value) == word;
}

constexpr int not_supported = 3, not_found = 6;

}  // namespace

#define NVML extern "C" __attribute__((visibility("default"))) int

NVML nvmlInit_v2() { return told("broken") ? 9 : 0; }
NVML nvmlShutdown() { return 0; }
NVML nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;  // the third has fallen off the bus
  return 0;
}
NVML nvmlDeviceGetHandleByIndex_v2(unsigned i, Device** device) {
  if (i > 1) return 15;
  *device = &gpus[i];
  return 0;
}
NVML nvmlDeviceGetPciInfo_v3(Device* device, PciInfo* pci) {
  pci->domain = 0;
  pci->bus = device->bus;
  pci->device = 0;
  return 0;
}
NVML nvmlDeviceGetUUID(Device* device, char* text, unsigned size) {
  std::snprintf(text, size, "%s", device->uuid);
  return 0;
}
NVML nvmlDeviceGetMinorNumber(Device* device, unsigned* minor) {
  *minor = device == &gpus[0] ? 1 : 0;
  return 0;
}
NVML nvmlDeviceGetMigMode(Device* device, unsigned* now, unsigned* next) {
  if (!device->mig) return not_supported;
  *now = *next = 1;
  return 0;
}
NVML nvmlDeviceGetMaxMigDeviceCount(Device*, unsigned* count) {
  *count = 7;
  return 0;
}
NVML nvmlDeviceGetMigDeviceHandleByIndex(Device*, unsigned i, Device** device) {
  if ((i != 0 && i != 4) || told("empty")) return not_found;
  *device = &instances[i == 4];
  return 0;
}
