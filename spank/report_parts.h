// Shared by the writers behind report.h and picture.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report.h"

namespace trainlaunch {

// One rank on one line.
std::string rank_json(const Answer& answer, size_t rank, const std::string& node);
std::string rank_line(const Answer& answer, size_t rank, const std::string& node);

std::string source_of(const Variable& variable);  // "site: for efa"
// The PCI function, with what tells apart the GPUs of one; empty where the source has none.
std::string pci_name(const Machine& machine, const Gpu& gpu);
std::string pci_name(const Machine& machine, const Nic& nic);
std::string gpu_names(const Machine& machine,
                      const std::vector<int>& gpus);  // "GPU 0 0000:06:00.0"
std::string nic_names(const Machine& machine, const std::vector<int>& nics);  // "mlx5_0:1,mlx5_1:1"
std::string rate_name(const Nic& nic);                                        // "400 Gb/s", or ""
// "8 GPUs, 10 ports", and what else there is
std::string machine_counts(const Machine& machine);

// Names come from files: without control characters, a question mark for each byte beyond ASCII.
// One byte is one column on every terminal then.
std::string plain(std::string_view words);

}  // namespace trainlaunch
