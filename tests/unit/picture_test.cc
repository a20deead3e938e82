#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/property_tree/xml_parser.hpp>
#include <set>
#include <sstream>

#include "machines.h"
#include "spank/links.h"
#include "spank/picture.h"
#include "spank/svg.h"
#include "texts.h"

using namespace trainlaunch;
using Tree = boost::property_tree::ptree;

namespace {

std::string picture_of(const Machine& m, const Allocation& a = {}, const Policy& p = {}) {
  const auto made = plan(m, a, p);
  REQUIRE(made.has_value());
  Environment env;
  env.ranks.resize(made->ranks.size());
  auto svg = plan_svg({m, *made, env});
  REQUIRE(svg.has_value());
  return std::move(*svg);
}

std::vector<NicChoice> used(const Machine& m) {
  return std::vector<NicChoice>(m.nics.size(), NicChoice{true, ""});
}

std::string shown(const Machine& m) {
  auto svg = machine_svg(m, used(m));
  REQUIRE(svg.has_value());
  return std::move(*svg);
}

Tree parse(const std::string& svg) {
  std::istringstream in(svg);
  Tree tree;
  REQUIRE_NOTHROW(boost::property_tree::read_xml(in, tree));
  REQUIRE(tree.size() == 1);
  return tree.front().second;
}

template <class F>
void each(const Tree& tree, const std::string& element, const F& act) {
  for (const auto& [name, child] : tree) {
    if (name == element) act(child);
    each(child, element, act);
  }
}

std::vector<std::string> contents(const std::string& svg, const std::string& element) {
  std::vector<std::string> out;
  each(parse(svg), element, [&](const Tree& t) { out.push_back(t.data()); });
  return out;
}

size_t count(const std::vector<std::string>& list, const std::string& word) {
  return static_cast<size_t>(std::count(list.begin(), list.end(), word));
}

// Parts of a text between empty lines.
std::vector<std::string> blocks_of(const std::string& text) {
  std::vector<std::string> out(1);
  for (const std::string& line : lines_of(text)) {
    if (line.empty())
      out.emplace_back();
    else
      out.back() += line + '\n';
  }
  return out;
}

std::string text_of(const Machine& m, const Allocation& a, const TextStyle& style) {
  const auto made = plan(m, a, {});
  REQUIRE(made.has_value());
  const Environment env = environment(m, *made, {});
  return plan_text({m, *made, env}, style);
}

}  // namespace

TEST_CASE("columns are aligned, whatever stands in them") {
  Machine m = dgx_a100();
  m.nics[1].name = std::string(30, 'n');
  m.nics[2].name = "m\xc3\xbclx";  // one column, two bytes
  Allocation shapes[3];
  shapes[1].ranks = 16;
  shapes[2].ranks = 1;
  for (const Allocation& a : shapes) {
    const std::string text = text_of(m, a, {});
    size_t tables = 0;
    for (const std::string& block : blocks_of(text + '\n' + machine_text(m, used(m)))) {
      const auto rows = lines_of(block);
      if (block.empty()) continue;
      const std::string first = rows[0].substr(0, rows[0].find(' '));
      if (!std::set<std::string>{"rank", "#", "GPU", "node"}.contains(first)) continue;
      ++tables;
      for (size_t at = 1; at < rows[0].size(); ++at) {
        if (rows[0][at] == ' ' || rows[0][at - 1] != ' ') continue;
        for (const std::string& row : rows)
          if (row.size() > at) CHECK(row[at - 1] == ' ');
      }
    }
    CHECK(tables == 6);
  }
}

TEST_CASE("text keeps within 80 columns where it can be broken") {
  Machine m = box({2, 4, 16, 2, 4});
  for (int g = 0; g < 16; ++g) add_gpu(m, g / 2);
  for (int n = 0; n < 16; ++n) add_nic(m, n / 2);
  m.gpus[3].place.cpus = *parse_cpus(
      "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,41,43,45,47,49,51,53,55,57,59,61,63");
  Allocation a;
  for (int c = 1; c < 128; c += 2)
    a.cores = a.cores.value_or(std::vector<int>{}), a.cores->push_back(c);
  const std::string text = text_of(m, a, {}) + machine_text(m, used(m));
  for (const std::string& line : lines_of(text))
    if (line.find('=') == std::string::npos) CHECK(line.size() <= 80);  // variables can be copied
  // The matrix of 16 GPUs and 16 ports goes by the ports' numbers, in two parts.
  CHECK(text.find("\nGPU #0   #1   #2 ") != std::string::npos);
  CHECK(text.find("\n15  SYS  SYS ") != std::string::npos);
  // A wider terminal has the ports' names.
  CHECK(machine_text(m, used(m), {false, 200}).find("\nGPU  mlx5_0:1  mlx5_1:1 ") !=
        std::string::npos);
}

TEST_CASE("colours are only added: without them the text is the same") {
  const Machine m = hgx_h100();
  const std::string without = text_of(m, {}, {}), with = text_of(m, {}, {true, 80});
  CHECK(without.find('\x1b') == std::string::npos);
  CHECK(with.find("\x1b[32mPIX\x1b[0m") != std::string::npos);
  std::string stripped;
  for (size_t i = 0; i < with.size(); ++i) {
    if (with[i] == '\x1b')
      i = with.find('m', i);
    else
      stripped += with[i];
  }
  CHECK(stripped == without);
}

TEST_CASE("reasons stand below their rank") {
  const std::string text = text_of(hgx_h100(), {}, {});
  CHECK(text.find("\n  rank 3\n    GPU 3 0000:13:00.0") != std::string::npos);
  CHECK(text.find("\n  rank 4\n    GPU 4 0000:14:00.0") != std::string::npos);
}

TEST_CASE("names from files cannot write to a terminal") {
  Machine m = hgx_h100();
  m.file = "\x1b]0;title\x07.xml";
  m.nics[0].name = "\x1b[31m\xc2\x9b";
  m.nics[3].name = "mlx\n5_3";
  for (const std::string& text : {text_of(m, {}, {}), machine_text(m, used(m))})
    CHECK(std::all_of(text.begin(), text.end(),
                      [](char c) { return c == '\n' || (c >= ' ' && c < 127); }));
}

TEST_CASE("lines are broken between words, and in long lists after commas") {
  using Lines = std::vector<std::string>;
  CHECK(broken("", 10) == Lines{""});
  CHECK(broken("a bb ccc", 4) == Lines{"a bb", "ccc"});
  CHECK(broken("1,2,3,4,5", 4) == Lines{"1,2,", "3,4,", "5"});
  CHECK(broken("on 10,20,30,40", 8) == Lines{"on 10,", "20,30,40"});
  CHECK(broken("abcdefgh", 4) == Lines{"abcdefgh"});
  CHECK(paragraph("a bb cccc ddddd", 2, 4, {false, 22}) == "  a bb cccc ddddd\n");
}

TEST_CASE("every rank, GPU and port is in the picture") {
  for (const Machine& m : {hgx_h100(), dgx_a100()}) {
    const std::string svg = picture_of(m);
    const auto words = contents(svg, "text");
    for (size_t i = 0; i < 8; ++i) {
      CHECK(count(words, "rank " + std::to_string(i)) >= 1);
      CHECK(count(words, "GPU " + std::to_string(i)) == 1);
      CHECK(count(words, to_string(m.gpus[i].pci)) == 1);
    }
    for (const Nic& n : m.nics) CHECK(count(words, to_string(n)) == 1);
    for (const NumaNode& n : m.numa)
      CHECK(svg.find("emory node " + std::to_string(n.node)) != std::string::npos);
    CHECK(picture_of(m) == svg);
  }
}

TEST_CASE("how near a GPU and its port are is written, and what the picture shows is explained") {
  const auto h100 = contents(picture_of(hgx_h100()), "text");
  CHECK(count(h100, "PIX") == 9);  // one for each GPU, and the legend
  CHECK(count(h100, "below one PCI switch") == 1);
  CHECK(count(h100, "one PCI switch (PIX)") == 1);
  CHECK(count(h100, "below several switches") == 0);
  CHECK(count(contents(picture_of(dgx_a100()), "text"), "PXB") == 9);

  Machine m = box({});
  add_gpu(m, 0);
  add_nic(m, 1);
  CHECK(count(contents(picture_of(m), "text"), "SYS") == 2);
}

TEST_CASE("a port that is left out says why") {
  const std::string svg = picture_of(hgx_h100());
  size_t told = 0;
  for (const std::string& t : contents(svg, "title"))
    told += t.starts_with("not used: mlx5_3:1") || t.starts_with("not used: mlx5_4:1");
  CHECK(told == 2);
  // Many of one reason are one box, which names them all.
  Machine m = hgx_h100();
  for (int i = 0; i < 30; ++i) add_nic(m, 0, LinkLayer::ethernet, 10);
  const std::string many = picture_of(m);
  CHECK(count(contents(many, "text"), "30 ports not used") == 1);
  for (const std::string& t : contents(many, "title"))
    if (t.find("mlx5_10:1") != std::string::npos) CHECK(t.find("mlx5_39:1") != std::string::npos);
}

TEST_CASE("ranks in any number, with and without GPUs") {
  for (const int ranks : {1, 3, 8, 16, 40}) {
    Allocation a;
    a.ranks = ranks;
    const auto words = contents(picture_of(dgx_a100(), a), "text");
    for (int r = 0; r < ranks; ++r) CHECK(count(words, "rank " + std::to_string(r)) >= 1);
    CHECK(count(contents(picture_of(box({}), a), "text"), "rank " + std::to_string(ranks - 1)) >=
          1);
  }
  Allocation two;
  two.ranks = 2;
  two.gpus = {{2, 5}};
  const auto words = contents(picture_of(dgx_a100(), two), "text");
  CHECK(count(words, "no rank") == 6);
}

TEST_CASE("a rank without a GPU is joined to its port") {
  Machine m = box({});
  add_nic(m, 1);
  Allocation a;
  a.ranks = 2;
  const auto made = plan(m, a, {});
  REQUIRE(made.has_value());
  size_t ends = 0;
  for (const RankPlan& r : made->ranks) ends += r.nics.size();
  REQUIRE(ends > 0);
  size_t points = 0;
  each(parse(picture_of(m, a)), "circle", [&](const Tree& t) {
    points += t.get<double>("<xmlattr>.cx") > 600;  // at ports, not at memory nodes
  });
  CHECK(points == ends);
}

TEST_CASE("PCI functions that a source does not have are not shown") {
  Machine m = hgx_h100();
  m.made_up_ids = true;
  for (const std::string& shown : {shown(m), machine_text(m, used(m))})
    CHECK(shown.find("0000:") == std::string::npos);
  CHECK(count(contents(picture_of(m), "text"), "GPU 3") == 1);
}

TEST_CASE("the machine alone has no ranks") {
  const auto words = contents(shown(dgx_a100()), "text");
  CHECK(count(words, "GPU 7") == 1);
  CHECK(count(words, "mlx5_7:1") == 1);
  for (const std::string& w : words) CHECK(w.find("rank") == std::string::npos);
}

TEST_CASE("devices whose place is unknown stand apart") {
  Machine m = box({});
  add_gpu(m, -1);
  add_nic(m, -1);
  const auto words = contents(picture_of(m), "text");
  CHECK(count(words, "Place unknown") == 1);
  CHECK(count(words, "GPU 0") == 1);
  Machine none;
  none.cpus.set(0);
  CHECK(count(contents(shown(none), "text"), "This machine") == 1);
}

TEST_CASE("boxes of ranks, GPUs and ports do not overlap, and stay on the page") {
  struct Box {
    double x, y, w, h;
  };
  Allocation three, sixteen;
  three.ranks = 3;
  sixteen.ranks = 16;
  for (const std::string& svg :
       {picture_of(hgx_h100()), picture_of(dgx_a100()), picture_of(dgx_a100(), three),
        picture_of(hgx_h100(), sixteen), shown(hgx_h100())}) {
    const Tree root = parse(svg);
    const double width = root.get<double>("<xmlattr>.width"),
                 height = root.get<double>("<xmlattr>.height");
    CHECK(width <= 900);
    std::vector<Box> boxes;
    each(root, "rect", [&](const Tree& t) {
      if (t.get("<xmlattr>.rx", "") != "5") return;
      boxes.push_back({t.get<double>("<xmlattr>.x"), t.get<double>("<xmlattr>.y"),
                       t.get<double>("<xmlattr>.width"), t.get<double>("<xmlattr>.height")});
    });
    CHECK(boxes.size() >= 18);
    for (size_t i = 0; i < boxes.size(); ++i) {
      const Box& a = boxes[i];
      CHECK(a.x >= 0);
      CHECK(a.x + a.w <= width);
      CHECK(a.y + a.h <= height);
      for (size_t j = 0; j < i; ++j) {
        const Box& b = boxes[j];
        CHECK((a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y));
      }
    }
  }
}

TEST_CASE("names from files are only words") {
  Machine m = hgx_h100();
  m.file = "/tmp/\"><script>alert(1)</script>&\x1b[31m\xff.xml";
  m.nics[0].name = "]]><image href='http://x/'/>";
  m.nics[1].name = std::string(5000, 'x');
  m.nics[2].name = "\x01\xe2\x80\xae";
  m.gpus[0].uuid = "<&\"'>";
  const std::string svg = picture_of(m);
  CHECK(svg.find("<script") == std::string::npos);
  CHECK(svg.find("<image") == std::string::npos);
  CHECK(svg.find("http:") == svg.find("http://www.w3.org/2000/svg"));
  CHECK(std::all_of(svg.begin(), svg.end(),
                    [](char c) { return c == '\n' || (c >= ' ' && c < 127); }));
  std::set<std::string> elements;
  const auto collect = [&](const auto& self, const Tree& tree) -> void {
    for (const auto& [name, child] : tree) {
      if (name == "<xmlattr>") continue;
      elements.insert(name);
      self(self, child);
    }
  };
  collect(collect, parse(svg));
  CHECK(elements == std::set<std::string>{"circle", "g", "path", "rect", "text", "title"});
}

TEST_CASE("what is too large to be read is refused") {
  Machine m = box({});
  for (int g = 0; g < 300; ++g) add_gpu(m, 0);
  const auto svg = machine_svg(m, {});
  REQUIRE_FALSE(svg.has_value());
  CHECK(svg.error().what.find("300 GPUs") == 0);
  CHECK(svg.error().what.find('\n') == std::string::npos);
  // The largest that is drawn stays a file that a browser opens at once.
  Machine full = box({16, 1, 512, 1, 8});
  for (int g = 0; g < 256; ++g) add_gpu(full, g / 16);
  for (int n = 0; n < 256; ++n) add_nic(full, n / 16);
  CHECK(picture_of(full).size() < (2 << 20));
}

TEST_CASE("a rank's GPUs and ports are shown in pairs") {
  Allocation one;
  one.ranks = 1;
  const Machine m = hgx_h100();
  const auto made = plan(m, one, {});
  REQUIRE(made.has_value());
  const auto links = links_of(m, made->ranks[0]);
  REQUIRE(links.size() == 8);
  const int pair[] = {0, 1, 2, 5, 6, 7, 8, 9};
  for (int g = 0; g < 8; ++g) {
    CHECK(links[static_cast<size_t>(g)].gpu == g);
    CHECK(links[static_cast<size_t>(g)].nic == pair[g]);
    CHECK(links[static_cast<size_t>(g)].level == Level::pix);
  }
  // Equally near ones are dealt in turn, and none is left out.
  Machine flat = box({1, 1, 8, 1, 8});
  for (int g = 0; g < 3; ++g) add_gpu(flat, 0);
  for (int n = 0; n < 4; ++n) add_nic(flat, 0);
  RankPlan r;
  r.gpus = {0, 1, 2};
  r.nics = {0, 1, 2, 3};
  std::vector<std::pair<int, int>> got;
  for (const Link& l : links_of(flat, r)) got.emplace_back(l.gpu, l.nic);
  CHECK(got == std::vector<std::pair<int, int>>{{0, 0}, {0, 3}, {1, 1}, {2, 2}});
}

TEST_CASE("words are broken and cut to the room there is") {
  const svg::Font f{10, false, true};
  CHECK(svg::fit("abcdefghij", svg::width_of("abcdefghij", f), f) == "abcdefghij");
  CHECK(svg::fit("abcdefghijk", svg::width_of("abcdefghij", f), f) == "abcdefg...");
  CHECK(svg::wrap("ab cd ef", svg::width_of("ab cd", f), f) ==
        std::vector<std::string>{"ab cd", "ef"});
}
