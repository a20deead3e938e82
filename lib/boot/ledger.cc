#include "boot/ledger.h"

#include <algorithm>
#include <cstdio>

namespace trainlaunch {
namespace {

constexpr size_t max_store = size_t{256} << 20;
// For all to leave after a failure: twice what a worker gets to end, and its supervisor to sweep.
constexpr Seconds leave_limit{20};

Clock::time_point until(int64_t milliseconds, Clock::time_point now) {
  if (milliseconds < 0) return Clock::time_point::max();
  return now + std::chrono::milliseconds(std::min<int64_t>(milliseconds, 1'000'000'000));
}

std::string seconds(Clock::duration d) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", Seconds(d).count());
  return text;
}

}  // namespace

std::string name_ranks(const World& world, const std::vector<int>& ranks) {
  constexpr size_t most = 8;
  std::string out;
  for (size_t i = 0; i < ranks.size() && i < most; ++i) {
    if (i) out += ", ";
    out += std::to_string(ranks[i]) + " (" + world.node_name(ranks[i]) + ")";
  }
  if (ranks.size() > most) out += " and " + std::to_string(ranks.size() - most) + " more";
  return out;
}

Ledger::Ledger(World world, Pace pace)
    : world_(std::move(world)), pace_(pace), ranks_(static_cast<size_t>(world_.size)) {}

void Ledger::handle(int rank, Message m, Clock::time_point now) {
  using Kind = Message::Kind;
  Rank& r = ranks_[rank];
  switch (m.kind) {
    case Kind::ping:
      r.step = m.number;
      r.phase = m.name;
      return;
    case Kind::failed:
      return report({m.name, static_cast<int>(m.number)}, m.number > 128, now);
    case Kind::left:
      if (!r.left) r.left = static_cast<int>(m.number);
      return maybe_finish();
    case Kind::put:
    case Kind::get:
    case Kind::gather:
      break;
    default:
      return lost(rank, "sent a message that only the hub may send", now);
  }
  if (m.generation != static_cast<uint32_t>(world_.generation))
    return refuse(rank, m.id, "'" + m.name + "': a call of an earlier generation");
  if (failure_) return refuse(rank, m.id, failure_->what);
  if (m.kind == Kind::put) return put(rank, std::move(m));
  if (m.kind == Kind::get) return get(rank, m, now);
  gather(rank, std::move(m), now);
}

void Ledger::put(int rank, Message m) {
  if (m.values.size() != 1) return refuse(rank, m.id, "a put without a value");
  std::string& value = m.values.front();
  if (store_.contains(m.name)) return refuse(rank, m.id, "'" + m.name + "' was put twice");
  if (stored_ + value.size() > max_store)
    return refuse(rank, m.id, "'" + m.name + "': the control channel holds 256 MiB already");
  stored_ += value.size();
  Message reply;
  reply.kind = Message::Kind::reply;
  reply.id = m.id;
  out_.push_back({rank, reply});
  if (auto waiting = gets_.extract(m.name)) {
    reply.values = {value};
    for (const Wait& w : waiting.mapped()) {
      reply.id = w.id;
      out_.push_back({w.rank, reply});
    }
  }
  store_.emplace(std::move(m.name), std::move(value));
}

void Ledger::get(int rank, const Message& m, Clock::time_point now) {
  const auto it = store_.find(m.name);
  if (it == store_.end()) {
    gets_[m.name].push_back({rank, m.id, now, until(m.number, now)});
    return;
  }
  Message reply;
  reply.kind = Message::Kind::reply;
  reply.id = m.id;
  reply.values = {it->second};
  out_.push_back({rank, std::move(reply)});
}

void Ledger::gather(int rank, Message m, Clock::time_point now) {
  if (m.values.size() != 1) return refuse(rank, m.id, "a gather without a value");
  const size_t size = ranks_.size();
  auto& turns = turns_[m.name];
  turns.resize(size);
  const uint64_t turn = turns[rank]++;
  Gather& g = gathers_[{m.name, turn}];
  g.values.resize(size);
  g.values[rank] = std::move(m.values.front());
  ++g.arrived;
  if (!g.failed.empty()) {
    refuse(rank, m.id, g.failed);
  } else {
    g.waits.push_back({rank, m.id, now, until(m.number, now)});
    ranks_[rank].in.insert(m.name);
    if (g.arrived == world_.size) {
      Message reply;
      reply.kind = Message::Kind::reply;
      for (auto& v : g.values) reply.values.push_back(std::move(*v));
      for (const Wait& w : g.waits) {
        reply.id = w.id;
        out_.push_back({w.rank, reply});
        ranks_[w.rank].in.erase(m.name);
      }
    }
  }
  if (g.arrived == world_.size) end_gather(m.name, turn);
}

// Forgets a gather that every rank has come to; and its name, when no rank is ahead of another.
void Ledger::end_gather(const std::string& name, uint64_t turn) {
  gathers_.erase({name, turn});
  const auto it = turns_.find(name);
  const auto& turns = it->second;
  if (std::adjacent_find(turns.begin(), turns.end(), std::not_equal_to<>()) == turns.end())
    turns_.erase(it);
}

// Who has not come, with what is known of each: "1 (n1, in 'loss'), 3 (n2, at step 7, backward)".
std::string Ledger::late(const Gather& g) const {
  constexpr int most = 8;
  std::string out;
  int named = 0;
  for (int r = 0; r < world_.size; ++r) {
    if (g.values[r]) continue;
    if (++named > most) continue;
    if (named > 1) out += ", ";
    const Rank& rank = ranks_[r];
    out += std::to_string(r) + " (" + world_.node_name(r);
    if (!rank.joined)
      out += ", never joined";
    else if (rank.left)
      out += ", ended";
    else if (!rank.in.empty())
      out += ", in '" + *rank.in.begin() + "'";
    else if (!rank.phase.empty())
      out += ", at step " + std::to_string(rank.step) + ", " + rank.phase;
    out += ")";
  }
  if (named > most) out += " and " + std::to_string(named - most) + " more";
  return out;
}

void Ledger::lost(int rank, const std::string& how, Clock::time_point now) {
  Rank& r = ranks_[rank];
  if (r.lost || finished_) return;
  r.lost = true;
  report({"rank " + name_ranks(world_, {rank}) + ": its supervisor " + how, exit_code::failed},
         true, now);
  maybe_finish();
}

void Ledger::report(Failure what, bool at_once, Clock::time_point now) {
  if (failure_) return;
  if (at_once || !suspect_) suspect_ = std::move(what);
  if (at_once) return announce(now);
  settle_until_ =
      std::min(settle_until_, now + std::chrono::duration_cast<Clock::duration>(pace_.settle));
}

void Ledger::announce(Clock::time_point now) {
  if (failure_ || !suspect_) return;
  failure_ = std::exchange(suspect_, std::nullopt);
  settle_until_ = Clock::time_point::max();
  finish_by_ = now + std::chrono::duration_cast<Clock::duration>(leave_limit);
  for (const auto& [name, waits] : gets_)
    for (const Wait& w : waits) refuse(w.rank, w.id, failure_->what);
  for (const auto& [key, g] : gathers_)
    for (const Wait& w : g.waits) refuse(w.rank, w.id, failure_->what);
  gets_.clear();
  gathers_.clear();
  Message m;
  m.kind = Message::Kind::failure;
  m.name = failure_->what;
  m.number = failure_->code;
  tell_all(m);
  maybe_finish();
}

void Ledger::maybe_finish() {
  if (finished_ || suspect_) return;
  int code = 0;
  for (const Rank& r : ranks_) {
    // After a failure, a rank that never came is not waited for.
    if (failure_ && (r.lost || !r.joined)) continue;
    if (!r.left) return;
    code = std::max(code, *r.left);
  }
  finish(failure_ ? failure_->code : code);
}

void Ledger::finish(int code) {
  finished_ = true;
  finish_by_ = Clock::time_point::max();
  Message m;
  m.kind = Message::Kind::finish;
  m.number = code;
  tell_all(m);
}

void Ledger::expire(Clock::time_point now) {
  if (now >= settle_until_) announce(now);
  // A worker that cannot be killed (it hangs in a driver, or on a dead file server) holds up
  // nobody.
  if (now >= finish_by_) finish(failure_->code);
  for (auto it = gets_.begin(); it != gets_.end();) {
    std::erase_if(it->second, [&](const Wait& w) {
      if (w.until > now) return false;
      refuse(w.rank, w.id, "no rank has put '" + it->first + "' in " + seconds(now - w.asked));
      return true;
    });
    it = it->second.empty() ? gets_.erase(it) : std::next(it);
  }
  for (auto& [key, g] : gathers_) {
    const auto over =
        std::find_if(g.waits.begin(), g.waits.end(), [&](const Wait& w) { return w.until <= now; });
    if (over == g.waits.end()) continue;
    g.failed = "'" + key.first + "': waited " + seconds(now - over->asked) + " for rank " + late(g);
    for (const Wait& w : g.waits) {
      refuse(w.rank, w.id, g.failed);
      ranks_[w.rank].in.erase(key.first);
    }
    g.waits.clear();
  }
}

Clock::time_point Ledger::due() const {
  Clock::time_point first = std::min(settle_until_, finish_by_);
  for (const auto& [name, waits] : gets_)
    for (const Wait& w : waits) first = std::min(first, w.until);
  for (const auto& [key, g] : gathers_)
    for (const Wait& w : g.waits) first = std::min(first, w.until);
  return first;
}

void Ledger::refuse(int rank, uint64_t id, std::string what) {
  Message m;
  m.kind = Message::Kind::error;
  m.id = id;
  m.name = std::move(what);
  out_.push_back({rank, std::move(m)});
}

void Ledger::tell_all(const Message& m) {
  for (int r = 0; r < world_.size; ++r)
    if (ranks_[r].joined && !ranks_[r].lost) out_.push_back({r, m});
}

}  // namespace trainlaunch
