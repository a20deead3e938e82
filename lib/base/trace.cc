#include "base/trace.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace trainlaunch {

void Trace::span(std::string_view track, std::string_view name, Clock::time_point begin,
                 Clock::time_point end) {
  std::lock_guard lock(mutex_);
  auto total = totals_.find(track);
  if (total == totals_.end()) total = totals_.emplace(track, Seconds(0)).first;
  total->second += end - begin;
  if (keep_ == Keep::spans) spans_.push_back({std::string(track), std::string(name), begin, end});
}

Seconds Trace::total(std::string_view track) const {
  std::lock_guard lock(mutex_);
  const auto found = totals_.find(track);
  return found == totals_.end() ? Seconds(0) : found->second;
}

Status Trace::write(const std::string& path) const {
  auto us = [](Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); };
  nlohmann::json events = nlohmann::json::array();
  const auto named = [&](const char* what, int thread, const std::string& name) {
    events.push_back({{"name", what},
                      {"cat", "__metadata"},
                      {"ph", "M"},
                      {"ts", 0},
                      {"pid", rank_},
                      {"tid", thread},
                      {"args", {{"name", name}}}});
  };
  std::lock_guard lock(mutex_);
  // Viewers tell rows apart by number. Where that is a word, some put all into one row.
  std::map<std::string, int, std::less<>> row;
  named("process_name", 0, "rank " + std::to_string(rank_));
  for (const auto& [track, time] : totals_) {
    const int number = static_cast<int>(row.size()) + 1;
    row[track] = number;
    named("thread_name", number, track);
  }
  for (const Span& s : spans_) {
    events.push_back({{"name", s.name},
                      {"cat", s.track},
                      {"ph", "X"},
                      {"pid", rank_},
                      {"tid", row[s.track]},
                      {"ts", us(s.begin - zero_)},
                      {"dur", us(s.end - s.begin)}});
  }
  std::ofstream out(path);
  out << nlohmann::json{{"traceEvents", events}} << "\n";
  out.close();
  if (!out) return fail_errno("cannot write the trace to " + path);
  return {};
}

}  // namespace trainlaunch
