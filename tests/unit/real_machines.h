// Topology files of real machines. They are no part of this project: TL_SHARED names their folder.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "topo/topo.h"

namespace trainlaunch {

// The folder that has them, or nothing, with the reason said.
inline std::filesystem::path real_machines() {
  namespace fs = std::filesystem;
  const char* shared = std::getenv("TL_SHARED");
  const fs::path dir = fs::path(shared && *shared ? shared : TL_SRCDIR "/../shared") / "topologies";
  if (fs::is_directory(dir)) return dir;
  MESSAGE("skipped: no topology files; TL_SHARED names the folder that has them");
  return {};
}

inline Machine read_machine(const std::filesystem::path& path) {
  auto m = load_file(path);
  REQUIRE_MESSAGE(m.has_value(), (m ? "" : m.error().what));
  return std::move(*m);
}

}  // namespace trainlaunch
