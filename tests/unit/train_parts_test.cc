// The parts of lib/train that need no ranks.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "base/printable.h"
#include "temporary.h"
#include "train/metrics.h"
#include "train/plot.h"
#include "train/progress.h"
#include "train/sample.h"
#include "train/settings.h"
#include "train/words.h"

using namespace trainlaunch;

namespace {

std::string printed(std::string_view bytes) {
  Printable p;
  std::string out;
  for (char c : bytes) out += p.put(static_cast<uint8_t>(c));
  return out + p.finish();
}

size_t characters(const std::string& utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

TEST_CASE("printable text passes, everything else is a question mark") {
  CHECK(printed("To be,\n\tor not") == "To be,\n\tor not");
  CHECK(printed("naïve €5 😀") == "naïve €5 😀");
  CHECK(printed("\x1b[31m") == "?[31m");
  CHECK(printed(std::string_view("\0\r\x7f", 3)) == "???");
  CHECK(printed("\xff\xfe") == "??");
  CHECK(printed("\x80 \xc0\x80") == "? ??");  // no beginning
  CHECK(printed("\xc2\x9b"
                "1m") == "??1m");                // CSI, as one control character
  CHECK(printed("\xed\xa0\x80") == "???");       // a surrogate
  CHECK(printed("\xf4\x90\x80\x80") == "????");  // beyond U+10FFFF
  CHECK(printed("\xe2\x82") == "?");             // unfinished
  CHECK(printed("\xe2\x82"
                "a\xe2"
                "\xc3\xa9") == "?a?é");  // interrupted
}

TEST_CASE("tokens are drawn as the softmax says") {
  const std::vector<float> logits{0.0f, std::log(2.0f), std::log(5.0f), -1e30f};
  GenerateOptions options;
  options.temperature = 1;
  std::vector<int> seen(4);
  const int draws = 8000;
  for (int i = 0; i < draws; ++i) ++seen[choose(logits, options, static_cast<uint64_t>(i))];
  CHECK(seen[3] == 0);
  double chi = 0;
  for (int t = 0; t < 3; ++t) {
    const double expected = draws * (t == 0 ? 1 : t == 1 ? 2 : 5) / 8.0;
    chi += (seen[t] - expected) * (seen[t] - expected) / expected;
  }
  CHECK(chi < 13.8);  // two degrees of freedom: exceeded once in a thousand

  options.temperature = 0;
  CHECK(choose(logits, options, 1) == 2);
  options.temperature = 1;
  options.top_k = 1;
  for (uint64_t i = 0; i < 50; ++i) CHECK(choose(logits, options, i) == 2);
  options.top_k = 2;
  std::set<int32_t> two;
  for (uint64_t i = 0; i < 200; ++i) two.insert(choose(logits, options, i));
  CHECK(two == std::set<int32_t>{1, 2});

  // Probabilities 5/8, 2/8 and 1/8.
  const auto drawn = [&](int64_t k, double p) {
    options.top_k = k;
    options.top_p = p;
    std::set<int32_t> tokens;
    for (uint64_t i = 0; i < 400; ++i) tokens.insert(choose(logits, options, i));
    return tokens;
  };
  CHECK(drawn(0, 0) == std::set<int32_t>{2});
  CHECK(drawn(0, 0.62) == std::set<int32_t>{2});
  CHECK(drawn(0, 0.63) == std::set<int32_t>{1, 2});
  CHECK(drawn(0, 0.88) == std::set<int32_t>{0, 1, 2});
  CHECK(drawn(2, 0.70) == std::set<int32_t>{2});  // of the two, 5/7 and 2/7
  CHECK(drawn(2, 0.72) == std::set<int32_t>{1, 2});
  CHECK(choose(std::vector<float>(5, 1.0f), GenerateOptions{.temperature = 0}, 0) == 0);
}

TEST_CASE("the record of a run is cut where the run goes on") {
  Temporary dir;
  {
    auto m = Metrics::open(dir.path(), 0);
    REQUIRE(m);
    CHECK(m->add_validation(0, 5.5));
    for (uint64_t s = 1; s <= 4; ++s)
      CHECK(m->add({s, 5.0 - static_cast<double>(s), 1e-3, 1, 100}));
  }
  write_file(dir / "metrics.jsonl", read_file(dir / "metrics.jsonl") + "{\"step\":5,\"lo");
  {
    auto m = Metrics::open(dir.path(), 3);
    REQUIRE(m);
    CHECK(m->add({4, 0.5, 1e-3, 1, 100}));
    CHECK(m->add_validation(4, 0.75));
  }
  auto curves = read_metrics(dir.path());
  REQUIRE(curves);
  REQUIRE(curves->training.size() == 4);
  CHECK(curves->training[2].loss == 2.0);
  CHECK(curves->training[3].loss == 0.5);
  REQUIRE(curves->validation.size() == 2);
  CHECK(curves->validation[1].loss == 0.75);
  REQUIRE(Metrics::open(dir.path(), 0));
  CHECK(read_file(dir / "metrics.jsonl") == "");
}

TEST_CASE("a line that lost its end to a full disk takes no other with it") {
  Temporary dir;
  write_file(dir / "metrics.jsonl", R"({"step":1,"validation_loss":2.0})");
  {
    auto m = Metrics::open(dir.path(), 1);
    REQUIRE(m);
    CHECK(m->add_validation(2, 1.5));
  }
  auto curves = read_metrics(dir.path());
  REQUIRE(curves);
  REQUIRE(curves->validation.size() == 2);
  CHECK(curves->validation[0].loss == 2.0);
  CHECK(curves->validation[1].loss == 1.5);
}

TEST_CASE("a record behind a link is not written to") {
  Temporary dir;
  write_file(dir / "elsewhere", "");
  std::filesystem::create_symlink(dir / "elsewhere", dir / "metrics.jsonl");
  CHECK(!Metrics::open(dir.path(), 0));
}

TEST_CASE("axes have round numbers") {
  using V = std::vector<double>;
  CHECK(round_numbers(0, 10, 5) == V{0, 2, 4, 6, 8, 10});
  CHECK(round_numbers(0, 2000, 5) == V{0, 500, 1000, 1500, 2000});
  const V tenths = round_numbers(1.43, 2.02, 5);
  REQUIRE(tenths.size() == 3);
  CHECK(tenths[0] == doctest::Approx(1.6));
  CHECK(tenths[2] == doctest::Approx(2.0));
  CHECK(round_numbers(3, 3, 5) == V{3});
}

TEST_CASE("drawings keep to their width and survive any curve") {
  Curves falling, one, flat, odd;
  for (uint64_t s = 1; s <= 500; ++s) falling.training.push_back({s, 5.0 / static_cast<double>(s)});
  falling.validation = {{0, 5.5}, {250, 0.1}, {500, 0.05}};
  one.validation = {{7, 2.5}};
  flat.training = {{10, 1.0}, {20, 1.0}};
  odd.training = {{1, -3e5}, {2, 4e9}};
  for (const Curves& c : {falling, one, flat, odd, Curves{}}) {
    for (int columns : {20, 80, 200}) {
      for (bool unicode : {false, true}) {
        const std::string text = draw_text(c, columns, 12, unicode);
        std::istringstream lines(text);
        int n = 0;
        for (std::string line; std::getline(lines, line); ++n)
          if (n > 0 && columns >= 80) CHECK(characters(line) <= static_cast<size_t>(columns));
        CHECK(n == 15);
      }
    }
    CHECK(draw_svg(c, "a <b> & \"c\"").find("a &lt;b&gt; &amp; &quot;c&quot;") !=
          std::string::npos);
    CHECK(draw_svg(c, "t").find("nan") == std::string::npos);
  }
}

TEST_CASE("the model comes back from a checkpoint's state") {
  RunConfig c;
  c.model = {3, 5, 40, 77};
  State s;
  s.config = settings_of(c);
  auto back = config_of(s, "x");
  REQUIRE(back);
  CHECK(back->model.layers == 3);
  CHECK(back->model.heads == 5);
  CHECK(back->model.width == 40);
  CHECK(back->model.context == 77);
  s.config["model.width"] = "40x";
  CHECK(!config_of(s, "x"));
}

TEST_CASE("numbers for people") {
  CHECK(grouped(7) == "7");
  CHECK(grouped(1115394) == "1,115,394");
  CHECK(grouped(100000) == "100,000");
  CHECK(duration(8.4) == "8s");
  CHECK(duration(80) == "1m 20s");
  CHECK(duration(7500) == "2h 05m");
  CHECK(duration(INFINITY) == "unknown");
  CHECK(plural(1, "rank") == "1 rank");
  CHECK(plural(2, "rank") == "2 ranks");
  CHECK(mebibytes(1536 << 10) == "1.5 MiB");
  CHECK(binary_size(uint64_t{9} << 30) == "9216.0 MiB");
  CHECK(binary_size(uint64_t{21} << 29) == "10.5 GiB");
  CHECK(fixed(2.5, 1) == "2.5");
  CHECK(fixed(-1234567890123.25, 2) == "-1234567890123.25");
  CHECK(fixed(1e300, 1) == "1.0e+300");
  CHECK(fixed(INFINITY, 1) == "inf");
  CHECK(grouped_whole(1115394.7) == "1,115,394");
  CHECK(grouped_whole(1e300) == "1e+300");
  for (const double x : {NAN, -NAN}) {
    CHECK(fixed(x, 4) == "nan");
    Progress progress(10, {});
    StepRecord record{.step = 1, .loss = x, .grad_norm = x};
    progress.took(std::chrono::seconds(1));
    CHECK(progress.line(record).find("loss nan") != std::string::npos);
    CHECK(record.loss != record.loss);
  }
}

TEST_CASE("a progress line is whole, whatever its numbers") {
  const double huge = 1.7e308;
  for (const double loss : {1e-300, -huge, huge, double{INFINITY}})
    for (const double peak : {1e-300, 1.0, huge})
      for (const int64_t time : {0, 1, 1'000'000'000}) {
        Progress progress(UINT64_MAX, {huge, huge, peak});
        StepRecord record{.step = 1, .loss = loss, .learning_rate = huge, .grad_norm = huge};
        progress.took(std::chrono::nanoseconds(time));
        const std::string line = progress.line(record);
        CAPTURE(line);
        CHECK(line.size() < 200);
        for (const char* part : {"step 1/18446744073709551615  loss ", "  lr 1.70e+308  norm ",
                                 " tokens/s  mfu ", "%  left "})
          CHECK(line.find(part) != std::string::npos);
      }
}
