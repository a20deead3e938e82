// What the control channels of tests are made of.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "boot/boot.h"

namespace trainlaunch::testing {

// The world of one rank, with so many ranks on each of these nodes.
inline World world_of(const std::vector<int>& per_node, std::vector<std::string> nodes, int rank) {
  World world;
  world.rank = rank;
  world.size = std::accumulate(per_node.begin(), per_node.end(), 0);
  world.nodes = std::move(nodes);
  world.node_of.clear();
  for (size_t n = 0; n < per_node.size(); ++n)
    world.node_of.insert(world.node_of.end(), static_cast<size_t>(per_node[n]),
                         static_cast<int>(n));
  world.node = world.node_of[static_cast<size_t>(rank)];
  world.local_size = per_node[static_cast<size_t>(world.node)];
  world.local_rank = rank - std::accumulate(per_node.begin(), per_node.begin() + world.node, 0);
  return world;
}

// Hands everything on to another channel; tests override what they watch or change.
template <class Base = Control>
class PassedOn : public Base {
 public:
  explicit PassedOn(Control& inner) : inner_(inner) {}
  const World& world() const override { return inner_.world(); }
  Status put(std::string_view key, std::string_view value) override {
    return inner_.put(key, value);
  }
  Result<std::string> get(std::string_view key, Deadline deadline) override {
    return inner_.get(key, deadline);
  }
  Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                          Deadline deadline) override {
    return inner_.gather(name, mine, deadline);
  }

 private:
  Control& inner_;
};

}  // namespace trainlaunch::testing
