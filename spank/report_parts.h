// Shared by the writers behind report.h.
#pragma once

#include <string>

#include "report.h"

namespace trainlaunch {

// One rank on one line.
std::string rank_json(const Answer& answer, size_t rank, const std::string& node);
std::string rank_line(const Answer& answer, size_t rank, const std::string& node);

std::string source_of(const Variable& variable);  // "site: for efa"
std::string gpu_names(const Machine& machine,
                      const std::vector<int>& gpus);  // "GPU 0 0000:06:00.0"
std::string nic_names(const Machine& machine, const std::vector<int>& nics);  // "mlx5_0:1,mlx5_1:1"

}  // namespace trainlaunch
