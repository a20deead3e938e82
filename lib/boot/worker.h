// Between a supervisor and its worker: a socketpair on which the worker asks what Control offers
// and the supervisor, which forwards, answers. The worker inherits its end, and finds its number in
// an environment variable; nothing there is secret.
#pragma once

#include "boot/boot.h"
#include "boot/message.h"

namespace trainlaunch {

inline constexpr const char* control_variable = "TRAIN_LAUNCH_CONTROL";

// True in a process that a supervisor started as its worker (until it makes its WorkerControl).
bool is_worker();

// The first message to the worker. The sockets are its descriptors, by local rank.
Message welcome(const World& world, const std::vector<int>& local_sockets);
struct Welcome {
  World world;
  std::vector<int> local_sockets;
};
Result<Welcome> read_welcome(const Message& m);

// As make_single_control, for callers that need the worker's interface.
std::unique_ptr<WorkerControl> make_single_worker_control();

// Over a connected socket whose other end says welcome; takes it.
Result<std::unique_ptr<WorkerControl>> make_worker_control(int socket);

}  // namespace trainlaunch
