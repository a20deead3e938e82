#include "launcher/checkpoint_text.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/printable.h"
#include "ckpt/architecture.h"
#include "train/words.h"

namespace trainlaunch {

namespace {

using nlohmann::json;
using Row = std::vector<std::string>;

// Columns two spaces apart; the last one is not filled up.
std::string table(const std::vector<Row>& rows) {
  std::vector<size_t> width;
  for (const Row& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c)
      line += row[c] + std::string(width[c] - row[c].size() + 2, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

// Any bytes that a checkpoint holds become valid JSON.
std::string dump(const json& j) {
  return j.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string level_of(const Found& f) {
  return f.level == Level::shared ? "shared" : "local (" + one_line(f.node) + ")";
}

std::string time_text(int64_t seconds) {
  const std::time_t t = seconds;
  std::tm utc{};
  char text[32] = "";
  if (gmtime_r(&t, &utc)) std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string age_text(const Found& f) {
  if (f.modified == 0) return "-";  // it cannot be looked at
  return duration(static_cast<double>(std::max<int64_t>(std::time(nullptr) - f.modified, 0)));
}

// A checkpoint goes by its step; whatever else there is needs its name.
std::string remark(const Found& f) {
  const bool plain = f.step && f.name == checkpoint_name(*f.step);
  std::string text = plain ? "" : one_line(f.name);
  if (!f.why.empty()) text += (text.empty() ? "" : ": ") + one_line(f.why);
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t n : shape) text += (text.empty() ? "" : " x ") + std::to_string(n);
  return text;
}

// Shapes by tensor, as far as the configuration is that of a model we know and its tensors are
// those that are there; else none.
std::map<std::string, std::vector<int64_t>> shapes_of(const Manifest& m) {
  std::map<std::string, std::vector<int64_t>> shapes;
  auto config = architecture_of(m.state);
  if (!config) return shapes;
  auto model = model_of(m.tensors, *config);
  if (!model) return shapes;
  for (const ParamSpec& p : (*model)->params())
    if (auto it = m.tensors.find(p.name); it != m.tensors.end() && it->second == p.size())
      shapes[p.name] = p.shape;
  return shapes;
}

std::map<std::string, std::set<std::string>> slots_of(const Manifest& m) {
  std::map<std::string, std::set<std::string>> slots;
  for (const Run& r : m.runs) slots[r.tensor].insert(r.slot);
  return slots;
}

std::string scientific(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", x);
  return text;
}

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : ", ") + one_line(w);
  return text;
}

uint64_t bytes_of(const Manifest& m) {
  uint64_t bytes = 0;
  for (const ShardFile& f : m.files) bytes += f.bytes;
  return bytes;
}

std::string model_text(const Manifest& m) {
  uint64_t elements = 0;
  for (const auto& [name, n] : m.tensors) elements += static_cast<uint64_t>(n);
  auto c = architecture_of(m.state);
  const std::string count =
      grouped(elements) + " parameters in " + plural(m.tensors.size(), "tensor");
  if (!c) return count;
  return count + ": GPT-2 over bytes, " + plural(static_cast<uint64_t>(c->layers), "layer") + ", " +
         plural(static_cast<uint64_t>(c->heads), "head") + ", width " + std::to_string(c->width) +
         ", context " + std::to_string(c->context);
}

std::vector<Row> range_rows(const Manifest& m) {
  std::vector<const Run*> runs;
  for (const Run& r : m.runs) runs.push_back(&r);
  std::sort(runs.begin(), runs.end(), [](const Run* a, const Run* b) {
    return std::tie(a->file, a->position) < std::tie(b->file, b->position);
  });
  std::vector<Row> rows{{"SHARD", "TENSOR", "SLOT", "ELEMENTS", "AT BYTE"}};
  for (const Run* r : runs)
    rows.push_back({std::to_string(r->file), one_line(r->tensor), one_line(r->slot),
                    std::to_string(r->offset) + " to " + std::to_string(r->offset + r->length),
                    std::to_string(r->position)});
  return rows;
}

}  // namespace

std::string catalog_table(const std::vector<Found>& found) {
  if (found.empty()) return "no checkpoint\n";
  std::vector<Row> rows{{"STEP", "LEVEL", "STATE", "AGE", "SIZE", ""}};
  for (const Found& f : found)
    rows.push_back({f.step ? std::to_string(*f.step) : "-", level_of(f), word_of(f.standing),
                    age_text(f), mebibytes(f.bytes), remark(f)});
  return table(rows);
}

std::string catalog_json(const std::string& run, const std::vector<Found>& found) {
  json all = json::array();
  for (const Found& f : found) {
    json one{{"name", f.name},
             {"path", f.path},
             {"step", nullptr},
             {"level", f.level == Level::shared ? "shared" : "local"},
             {"state", word_of(f.standing)},
             {"verified", f.standing == Standing::verified},
             {"bytes", f.bytes},
             {"modified", nullptr}};
    if (f.modified != 0) one["modified"] = time_text(f.modified);
    if (f.step) one["step"] = *f.step;
    if (f.level == Level::local) one["node"] = f.node;
    if (!f.why.empty()) one["why"] = f.why;
    all.push_back(std::move(one));
  }
  return dump({{"version", 1}, {"run", run}, {"checkpoints", all}});
}

std::string manifest_text(const std::string& path, const Manifest& m, bool ranges) {
  const State& s = m.state;
  std::vector<Row> facts{
      {"checkpoint", one_line(path)},
      {"format", std::to_string(manifest_format) + ", " + mebibytes(bytes_of(m)) + " in " +
                     plural(m.files.size(), "shard")},
      {"digest", m.digest},
      {"step", std::to_string(s.step) + "; Adam has counted " + plural(s.updates, "update")},
      {"position", plural(s.samples, "sample") + " of the text used" +
                       (s.data_digest.empty() ? "" : ", XXH3-128 " + one_line(s.data_digest))},
      {"guard", plural(s.guard.skipped, "step") + " skipped in a row, " +
                    plural(s.guard.rollbacks, "rollback")},
      {"model", model_text(m)}};
  std::vector<Row> config{{"OPTION", "VALUE"}};
  for (const auto& [key, value] : s.config) config.push_back({one_line(key), one_line(value)});

  const auto shapes = shapes_of(m);
  const auto slots = slots_of(m);
  std::vector<Row> tensors{{"TENSOR", "ELEMENTS", "SHAPE", "SLOTS"}};
  for (const auto& [name, size] : m.tensors) {
    const auto shape = shapes.find(name);
    const auto has = slots.find(name);
    tensors.push_back({one_line(name), std::to_string(size),
                       shape == shapes.end() ? "-" : shape_text(shape->second),
                       has == slots.end() ? "-" : joined(has->second)});
  }
  std::vector<Row> shards{{"SHARD", "BYTES", "RANGES", "CHUNKS"}};
  for (size_t f = 0; f < m.files.size(); ++f) {
    const auto runs =
        std::count_if(m.runs.begin(), m.runs.end(), [&](const Run& r) { return r.file == f; });
    shards.push_back(
        {m.files[f].name, std::to_string(m.files[f].bytes), std::to_string(runs),
         std::to_string(m.files[f].digests.size()) + " of up to " + mebibytes(m.files[f].chunk)});
  }
  std::string text =
      table(facts) + "\n" + table(config) + "\n" + table(tensors) + "\n" + table(shards);
  return ranges ? text + "\n" + table(range_rows(m)) : text;
}

std::string manifest_json(const std::string& path, const Manifest& m) {
  const State& s = m.state;
  const auto shapes = shapes_of(m);
  const auto slots = slots_of(m);
  json tensors = json::object(), files = json::array(), runs = json::array();
  for (const auto& [name, size] : m.tensors) {
    json& t = tensors[name] = {{"elements", size}, {"slots", json::array()}, {"shape", nullptr}};
    if (auto has = slots.find(name); has != slots.end()) t["slots"] = has->second;
    if (auto shape = shapes.find(name); shape != shapes.end()) t["shape"] = shape->second;
  }
  for (const ShardFile& f : m.files)
    files.push_back(
        {{"name", f.name}, {"bytes", f.bytes}, {"chunk", f.chunk}, {"xxh3_128", f.digests}});
  for (const Run& r : m.runs)
    runs.push_back({{"tensor", r.tensor},
                    {"slot", r.slot},
                    {"offset", r.offset},
                    {"length", r.length},
                    {"file", r.file},
                    {"position", r.position}});
  return dump({{"version", 1},
               {"path", path},
               {"format", manifest_format},
               {"digest", m.digest},
               {"step", s.step},
               {"samples", s.samples},
               {"updates", s.updates},
               {"guard", {{"skipped", s.guard.skipped}, {"rollbacks", s.guard.rollbacks}}},
               {"data_digest", s.data_digest},
               {"config", s.config},
               {"config_digest", config_digest(s.config)},
               {"bytes", bytes_of(m)},
               {"tensors", tensors},
               {"files", files},
               {"ranges", runs}});
}

std::string verdict_text(const Verified& v) {
  std::string text;
  for (const std::string& line : v.verdict.damage) text += one_line(line) + "\n";
  if (v.verdict.more > 0) text += "and " + plural(v.verdict.more, "more place") + "\n";
  const bool part = v.verdict.files < v.verdict.expected;
  const std::string what = std::to_string(v.verdict.files) +
                           (part ? " of " + plural(v.verdict.expected, "shard") + " (of one node)"
                                 : std::string(v.verdict.files == 1 ? " shard" : " shards")) +
                           ", " + mebibytes(v.verdict.bytes);
  return text + one_line(v.path) + ": " +
         (v.verdict.damage.empty() ? "good, " + what : std::string("DAMAGED")) + "\n";
}

std::string verdicts_json(const std::vector<Verified>& all) {
  json list = json::array();
  bool good = true;
  for (const Verified& v : all) {
    good = good && v.verdict.damage.empty();
    list.push_back({{"path", v.path},
                    {"good", v.verdict.damage.empty()},
                    {"bytes", v.verdict.bytes},
                    {"shards", v.verdict.files},
                    {"shards_expected", v.verdict.expected},
                    {"damage", v.verdict.damage},
                    {"more", v.verdict.more}});
  }
  return dump({{"version", 1}, {"good", good}, {"checkpoints", list}});
}

std::string comparison_text(const Comparison& c) {
  std::string text;
  if (!c.differing.empty()) {
    std::vector<Row> rows{{"TENSOR", "SLOT", "ELEMENTS", "DIFFER", "MAX ABS", "MAX REL"}};
    for (const Comparison::Entry& e : c.differing) {
      const Difference& d = e.difference;
      rows.push_back({one_line(e.tensor), one_line(e.slot), std::to_string(d.elements),
                      std::to_string(d.differing), scientific(d.largest), scientific(d.relative)});
    }
    text += table(rows);
  }
  for (const std::string& line : c.unmatched) text += one_line(line) + "\n";
  for (const std::string& line : c.remarks) text += one_line(line) + "\n";
  for (const auto& [slot, d] : c.slots) {
    text += one_line(slot) + ": ";
    text += d.differing == 0
                ? "bitwise equal, " + plural(d.elements, "element")
                : plural(c.tensors.at(slot), "tensor") + " and " + std::to_string(d.differing) +
                      " of " + plural(d.elements, "element") + " differ, by at most " +
                      scientific(d.largest) + " (relative " + scientific(d.relative) + ")";
    text += "\n";
  }
  return text + (c.equal() ? "bitwise equal\n" : "different\n");
}

std::string comparison_json(const std::string& a, const std::string& b, const Comparison& c) {
  const auto numbers = [](const Difference& d) {
    return json{{"elements", d.elements},
                {"differing", d.differing},
                {"max_abs", d.largest},
                {"max_rel", d.relative}};
  };
  json tensors = json::array(), slots = json::object();
  for (const Comparison::Entry& e : c.differing) {
    json one = numbers(e.difference);
    one["tensor"] = e.tensor;
    one["slot"] = e.slot;
    tensors.push_back(std::move(one));
  }
  for (const auto& [slot, d] : c.slots) {
    slots[slot] = numbers(d);
    slots[slot]["tensors"] = c.tensors.at(slot);
  }
  return dump({{"version", 1},
               {"a", a},
               {"b", b},
               {"equal", c.equal()},
               {"differing", tensors},
               {"slots", slots},
               {"unmatched", c.unmatched},
               {"remarks", c.remarks}});
}

}  // namespace trainlaunch
