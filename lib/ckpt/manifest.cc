#include "ckpt/manifest.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

namespace trainlaunch {

namespace {

using nlohmann::json;

constexpr std::string_view head = "{\"digest\":\"";
constexpr std::string_view neck = "\",";
constexpr size_t digest_length = 32;
constexpr uint64_t most_chunk_bytes = uint64_t{1} << 30;
constexpr int64_t most_elements = int64_t{1} << 56;

// Reads fields of a JSON object; the first that is missing or of another type is remembered, so
// that one check at the end is enough.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  uint64_t number(const char* key) {
    const json* v = find(key);
    if (v && v->is_number_unsigned()) return v->get<uint64_t>();
    return missing(key), 0;
  }
  std::string text(const char* key) {
    const json* v = find(key);
    if (v && v->is_string()) return v->get<std::string>();
    return missing(key), "";
  }
  std::vector<double> numbers(const char* key) {
    const json* v = find(key);
    const bool all = v && v->is_array() &&
                     std::all_of(v->begin(), v->end(), [](const json& x) { return x.is_number(); });
    if (all) return v->get<std::vector<double>>();
    return missing(key), std::vector<double>();
  }
  const json& object(const char* key) { return of_type(key, json::value_t::object); }
  const json& array(const char* key) { return of_type(key, json::value_t::array); }

  const std::string& wrong() const { return wrong_; }

 private:
  const json* find(const char* key) const {
    if (!object_.is_object()) return nullptr;
    auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }
  const json& of_type(const char* key, json::value_t type) {
    static const json nothing;
    const json* v = find(key);
    if (v && v->type() == type) return *v;
    missing(key);
    return nothing;
  }
  void missing(const char* key) {
    if (wrong_.empty()) wrong_ = key;
  }

  const json& object_;
  std::string wrong_;
};

// Options may hold any bytes (file names do); what is not UTF-8 is replaced.
std::string text_of(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

json to_json(const Guard& g) {
  return {{"skipped", g.skipped},     {"rollbacks", g.rollbacks}, {"rolled_from", g.rolled_from},
          {"rolled_to", g.rolled_to}, {"losses", g.losses},       {"norms", g.norms}};
}

json to_json(const State& s) {
  return {{"step", s.step},
          {"samples", s.samples},
          {"updates", s.updates},
          {"guard", to_json(s.guard)},
          {"data_digest", s.data_digest},
          {"config", s.config},
          {"config_digest", config_digest(s.config)}};
}

Result<State> state_from(const json& j) {
  Fields f(j);
  Fields guard(f.object("guard"));
  State s{
      f.number("step"), f.number("samples"), f.number("updates"), {}, f.text("data_digest"), {}};
  s.guard = {guard.number("skipped"),   guard.number("rollbacks"), guard.number("rolled_from"),
             guard.number("rolled_to"), guard.numbers("losses"),   guard.numbers("norms")};
  const std::string config = f.text("config_digest");
  for (auto& [key, value] : f.object("config").items()) {
    if (!value.is_string()) return fail("state.config." + key + " is no text");
    s.config[key] = value.get<std::string>();
  }
  if (!guard.wrong().empty())
    return fail("state.guard." + guard.wrong() + " is missing or of another type");
  if (!f.wrong().empty()) return fail("state." + f.wrong() + " is missing or of another type");
  if (config != config_digest(s.config)) return fail("state.config has another digest");
  return s;
}

Result<TensorSizes> tensors_from(const json& j) {
  TensorSizes sizes;
  for (auto& [name, size] : j.items()) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{most_elements})
      return fail("the size of tensor " + name + " is no size");
    sizes[name] = size.get<int64_t>();
  }
  return sizes;
}

bool is_digest(const json& j) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (!j.is_string()) return false;
  const auto& text = j.get_ref<const std::string&>();
  return text.size() == digest_length && std::all_of(text.begin(), text.end(), hex);
}

Result<ShardFile> file_from(const json& j, const std::string& name) {
  Fields f(j);
  ShardFile file{f.text("name"), f.number("bytes"), f.number("chunk"), {}};
  const json& digests = f.array("xxh3_128");
  if (!f.wrong().empty()) return fail("files." + f.wrong() + " is missing or of another type");
  // By construction of the name no path can leave the checkpoint's directory.
  if (file.name != name) return fail("file " + file.name + " is not called " + name);
  const uint64_t whole = file.chunk == 0 ? 0 : file.bytes / file.chunk;
  if (file.chunk == 0 || file.chunk % 64 != 0 || file.chunk > most_chunk_bytes ||
      digests.size() != whole + (file.bytes % file.chunk != 0))
    return fail(name + " is not divided into chunks that have a digest each");
  for (const json& d : digests) {
    if (!is_digest(d)) return fail("a digest of " + name + " is none");
    file.digests.push_back(d.get<std::string>());
  }
  return file;
}

Result<std::vector<ShardFile>> files_from(const json& j) {
  std::vector<ShardFile> files;
  for (const json& each : j) {
    auto file = file_from(each, shard_name(static_cast<int>(files.size())));
    if (!file) return forward(file);
    files.push_back(std::move(*file));
  }
  return files;
}

Result<Run> run_from(const json& j, const std::vector<ShardFile>& files) {
  const bool shaped =
      j.is_array() && j.size() == 6 && j[0].is_string() && j[1].is_string() &&
      std::all_of(j.begin() + 2, j.end(), [](const json& n) { return n.is_number_unsigned(); });
  if (!shaped) return fail("a run is not [tensor, slot, offset, length, file, position]");
  const uint64_t offset = j[2].get<uint64_t>(), length = j[3].get<uint64_t>();
  Run run{j[0].get<std::string>(),      j[1].get<std::string>(), static_cast<int64_t>(offset),
          static_cast<int64_t>(length), j[4].get<uint64_t>(),    j[5].get<uint64_t>()};
  const std::string name = run.tensor + "/" + run.slot + "@" + std::to_string(offset);
  if (offset > uint64_t{most_elements} || length > uint64_t{most_elements})
    return fail("run " + name + " is too large");
  if (run.file >= files.size()) return fail("run " + name + " is in no file");
  const uint64_t bytes = files[run.file].bytes;
  if (run.position % sizeof(float) != 0 || run.position > bytes ||
      length > (bytes - run.position) / sizeof(float))
    return fail("run " + name + " does not lie within " + files[run.file].name);
  return run;
}

Result<Manifest> manifest_from(const json& j) {
  Fields f(j);
  const uint64_t format = f.number("format");
  if (f.wrong().empty() && format != manifest_format)
    return fail("format " + std::to_string(format) + " is not known to this version, which reads " +
                std::to_string(manifest_format));
  const json &state = f.object("state"), &tensors = f.object("tensors"), &files = f.array("files"),
             &runs = f.array("runs");
  if (!f.wrong().empty()) return fail("\"" + f.wrong() + "\" is missing or of another type");
  Manifest m;
  auto s = state_from(state);
  if (!s) return forward(s);
  m.state = std::move(*s);
  auto sizes = tensors_from(tensors);
  if (!sizes) return forward(sizes);
  m.tensors = std::move(*sizes);
  auto list = files_from(files);
  if (!list) return forward(list);
  m.files = std::move(*list);
  for (const json& each : runs) {
    auto run = run_from(each, m.files);
    if (!run) return forward(run);
    m.runs.push_back(std::move(*run));
  }
  if (auto covered = check_cover(m.runs, m.tensors); !covered) return forward(covered);
  return m;
}

}  // namespace

std::string shard_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof name, "shard-%05d.safetensors", rank);
  return name;
}

std::string digest_of(std::string_view text) {
  Digest digest;
  digest.update(text.data(), text.size());
  return digest.hex();
}

// Of the text that is in the manifest, where bytes may have been replaced.
std::string config_digest(const std::map<std::string, std::string>& config) {
  return digest_of(text_of(config));
}

std::string write_manifest(const Manifest& m) {
  json files = json::array(), runs = json::array();
  for (const ShardFile& f : m.files)
    files.push_back(
        {{"name", f.name}, {"bytes", f.bytes}, {"chunk", f.chunk}, {"xxh3_128", f.digests}});
  for (const Run& r : m.runs)
    runs.push_back({r.tensor, r.slot, r.offset, r.length, r.file, r.position});
  const json whole{{"format", manifest_format},
                   {"state", to_json(m.state)},
                   {"tensors", m.tensors},
                   {"files", files},
                   {"runs", runs}};
  const std::string body = text_of(whole).substr(1) + "\n";
  return std::string(head) + digest_of(body) + std::string(neck) + body;
}

std::string manifest_digest(std::string_view text) {
  return std::string(text.substr(head.size(), digest_length));
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& what) {
  const size_t body_begin = head.size() + digest_length + neck.size();
  if (text.size() < body_begin || !text.starts_with(head) ||
      text.substr(head.size() + digest_length, neck.size()) != neck)
    return fail(what + " is no manifest of a checkpoint");
  const std::string digest = manifest_digest(text);
  if (digest_of(text.substr(body_begin)) != digest)
    return fail(what + " is damaged: its digest is wrong");
  const json j = json::parse(text, nullptr, false);
  if (j.is_discarded()) return fail(what + " is no JSON");
  auto manifest = manifest_from(j);
  if (!manifest) return fail(what + ": " + manifest.error().what);
  manifest->digest = digest;
  return manifest;
}

Result<Manifest> read_manifest(const Directory& checkpoint) {
  auto text = checkpoint.read_text(manifest_name, manifest_limit);
  if (!text) return forward(text);
  return parse_manifest(*text, checkpoint.path_of(manifest_name));
}

Status check_cover(const std::vector<Run>& runs, const TensorSizes& tensors) {
  std::set<std::string> slots{"weight"};
  std::map<std::pair<std::string, std::string>, std::vector<std::pair<int64_t, int64_t>>> ranges;
  for (const Run& r : runs) {
    slots.insert(r.slot);
    ranges[{r.tensor, r.slot}].push_back({r.offset, r.length});
    if (!tensors.contains(r.tensor)) return fail("tensor " + r.tensor + " is not listed");
  }
  for (const auto& [tensor, size] : tensors) {
    for (const std::string& slot : slots) {
      auto& parts = ranges[{tensor, slot}];
      std::sort(parts.begin(), parts.end());
      int64_t covered = 0;
      for (auto [offset, length] : parts) {
        if (offset != covered || length <= 0 || length > size - covered) {
          covered = -1;
          break;
        }
        covered += length;
      }
      if (covered != size)
        return fail("the runs of " + tensor + "/" + slot + " do not cover its " +
                    std::to_string(size) + " elements exactly once");
    }
  }
  return {};
}

}  // namespace trainlaunch
