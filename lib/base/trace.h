// What ran when, for people: spans of time on named tracks, written as a Chrome trace file
// (chrome://tracing, Perfetto), or only added up. Every user takes a Trace* that may be null; then
// nothing is kept.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace trainlaunch {

class Trace {
 public:
  enum class Keep : uint8_t { spans, totals };
  explicit Trace(int rank, Keep keep = Keep::spans)
      : rank_(rank), keep_(keep), zero_(Clock::now()) {}

  // Any thread may call it. `track` names a row ("compute", "comm").
  void span(std::string_view track, std::string_view name, Clock::time_point begin,
            Clock::time_point end);
  // Of all spans of a track that have ended.
  Seconds total(std::string_view track) const;
  Status write(const std::string& path) const;

 private:
  struct Span {
    std::string track, name;
    Clock::time_point begin, end;
  };
  const int rank_;
  const Keep keep_;
  const Clock::time_point zero_;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::map<std::string, Seconds, std::less<>> totals_;  // by track
};

// A span as long as the object lives.
class Traced {
 public:
  Traced(Trace* trace, std::string_view track, std::string_view name)
      : trace_(trace),
        track_(track),
        name_(name),
        begin_(trace ? Clock::now() : Clock::time_point()) {}
  ~Traced() {
    if (trace_) trace_->span(track_, name_, begin_, Clock::now());
  }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

 private:
  Trace* trace_;
  std::string_view track_;
  std::string name_;
  Clock::time_point begin_;
};

}  // namespace trainlaunch
