#include "train/ledger.h"

#include <filesystem>

namespace trainlaunch {

namespace {

std::string path_of(const std::string& run, int rank) {
  return run + "/ledger-" + std::to_string(rank) + ".jsonl";
}

}  // namespace

Result<SampleLedger> SampleLedger::open(const std::string& run, int rank, int ranks,
                                        uint64_t step) {
  // Each rank cuts its own file: two hosts must not see different ones under one name.
  std::error_code unknown;
  for (int gone = ranks; rank == 0 && std::filesystem::exists(path_of(run, gone), unknown); ++gone)
    if (auto cut = StepLines::open(path_of(run, gone), step); !cut) return forward(cut);
  auto lines = StepLines::open(path_of(run, rank), step);
  if (!lines) return forward(lines);
  SampleLedger ledger;
  ledger.open_ = true;
  ledger.lines_ = std::move(*lines);
  return ledger;
}

Status SampleLedger::add(uint64_t step, uint64_t first, std::span<const uint64_t> samples) {
  if (!open_) return {};
  return lines_.add({{"step", step}, {"first", first}, {"samples", samples}});
}

}  // namespace trainlaunch
