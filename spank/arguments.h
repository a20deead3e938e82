// What gpu-bind is told on its command line.
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "settings.h"

namespace trainlaunch {

enum class Format : uint8_t { text, json, svg, nccl_xml, wire };

struct Arguments {
  std::string command;
  Format format = Format::text;
  Allocation allocation;
  Settings settings;
  std::string topology;  // given here, not in the configuration: taken as it is
  std::vector<std::string> devices;
  std::string node, nodelist;
  bool requested = true;
  std::map<std::string, std::string> environment;  // of the ranks, for the doctor's report
  std::string plan;                                // for check: a plan that was printed as JSON
  bool plan_asked = false;                         // an option says what is to be planned
  std::vector<std::string> files;                  // for doctor
  std::string cache;  // the directory of the topology cache; empty: none
};

boost::program_options::options_description describe_options();

// Errors are usage errors.
Result<Arguments> parse_arguments(int argc, char** argv,
                                  const boost::program_options::options_description& options);

}  // namespace trainlaunch
