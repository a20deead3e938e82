// Which files gpu_bind.so trusts, and what it reads in them.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "../../spank/files.h"
#include "plugin_parts.h"
#include "temporary.h"

using namespace trainlaunch;
using namespace trainlaunch::plugin;

namespace {

bool site(const std::string& path, Site& s, std::string& why, bool must_exist = false) {
  Reason reason;
  s = Site();
  const bool ok = read_site(path.c_str(), must_exist, s, reason);
  why = reason.view();
  return ok;
}

}  // namespace

TEST_CASE("the site's configuration") {
  Temporary dir;
  Site s;
  std::string why;
  const std::string path = dir / "gpu-bind.conf";
  CHECK(site(path, s, why));
  CHECK_FALSE(s.there);
  CHECK_FALSE(site(path, s, why, true));
  CHECK(s.bind == Site::on_request);
  CHECK(s.timeout_ms == 2000);
  CHECK_FALSE(s.strict);

  write_file(path,
             "# bind = off\n\n  bind = always \r\ntopology=/x\nstrict=yes # "
             "loud\ntimeout-ms=\t250\nwords\n");
  REQUIRE_MESSAGE(site(path, s, why), why);
  CHECK(s.there);
  CHECK(s.bind == Site::always);
  CHECK(s.timeout_ms == 250);
  CHECK(s.strict);

  for (const char* wrong : {"bind=maybe", "strict=1", "timeout-ms=0", "timeout-ms=99999999999",
                            "timeout-ms=2s", "bind="}) {
    CAPTURE(wrong);
    write_file(path, std::string("\n") + wrong + "\n");
    CHECK_FALSE(site(path, s, why));
    CHECK(why.find("gpu-bind.conf:2: ") != std::string::npos);
  }
  write_file(path, "bind=off\ncpu=numa\ncpu=local\nbind=always\n");
  CHECK_FALSE(site(path, s, why));
  CHECK(why.find("gpu-bind.conf:4: bind: given before") != std::string::npos);
  write_file(path, std::string(40 * 1024, '#'));
  CHECK_FALSE(site(path, s, why));
}

TEST_CASE("a file for NCCL is named only if it can be read") {
  Temporary dir;
  const std::string path = dir / "topology.xml", link = dir / "link", fifo = dir / "fifo";
  CHECK_FALSE(plugin::readable_file(path.c_str()));
  write_file(path, "<system/>");
  CHECK(plugin::readable_file(path.c_str()));
  REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
  CHECK(plugin::readable_file(link.c_str()));
  REQUIRE(mkfifo(fifo.c_str(), 0644) == 0);
  CHECK_FALSE(plugin::readable_file(fifo.c_str()));
  CHECK_FALSE(plugin::readable_file(dir.path().c_str()));
  CHECK_FALSE(plugin::readable_file(""));
}

TEST_CASE("only the administrator may have written the configuration or the planner") {
  Temporary dir;
  Site s;
  std::string why;
  const std::string path = dir / "gpu-bind.conf", link = dir / "link";
  Reason reason;
  write_file(path, "bind=always\n");
  CHECK(site(path, s, why));
  REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
  CHECK_FALSE(site(link, s, why));
  CHECK(why == link + ": is a symbolic link; it must be a file that every user can read");

  for (const mode_t mode : {0666, 0664, 0646}) {
    REQUIRE(chmod(path.c_str(), mode) == 0);
    CHECK_FALSE(site(path, s, why));
    CHECK_FALSE(trusted_program(path.c_str(), reason));
  }
  REQUIRE(chmod(path.c_str(), 0711) == 0);
  CHECK(trusted_program(path.c_str(), reason));

  REQUIRE(chmod(dir.path().c_str(), 0777) == 0);
  CHECK_FALSE(site(path, s, why));
  CHECK_FALSE(trusted_program(path.c_str(), reason));
  REQUIRE(chmod(dir.path().c_str(), 01777) == 0);
  CHECK(trusted_program(path.c_str(), reason));

  CHECK_FALSE(trusted_program("gpu-bind", reason));
  CHECK_FALSE(trusted_program("/nonexistent", reason));
  CHECK_FALSE(trusted_program("/", reason));
  CHECK_FALSE(trusted_program("/dev/null", reason));
  CHECK_FALSE(site("/dev/zero", s, why));

  const std::string fifo = dir / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0644) == 0);
  CHECK_FALSE(site(fifo, s, why));  // and does not hang
}

TEST_CASE("what a user owns, or could replace, is not the administrator's") {
  if (getuid() != 0) {
    MESSAGE("skipped: only root can give files away");
    return;
  }
  Temporary dir;
  Site s;
  std::string why;
  Reason reason;
  const std::string path = dir / "gpu-bind.conf";
  write_file(path, "bind=always\n");
  REQUIRE(chown(path.c_str(), nobody, 0) == 0);
  CHECK_FALSE(site(path, s, why));
  CHECK_FALSE(trusted_program(path.c_str(), reason));
  REQUIRE(chown(path.c_str(), 0, 0) == 0);
  REQUIRE(chown(dir.path().c_str(), nobody, 0) == 0);
  CHECK_FALSE(site(path, s, why));
  CHECK(why == path + ": its directory " + dir.path() + " does not belong to root");
  REQUIRE(chown(dir.path().c_str(), 0, 0) == 0);
  CHECK(site(path, s, why));

  // As named, too: the way there must be root's.
  Temporary theirs;
  const std::string way = theirs / "way", through = way + "/gpu-bind.conf";
  REQUIRE(symlink(dir.path().c_str(), way.c_str()) == 0);
  CHECK(site(through, s, why));
  CHECK(trusted_program(through.c_str(), reason));
  REQUIRE(lchown(way.c_str(), nobody, 0) == 0);
  CHECK_FALSE(site(through, s, why));
  CHECK(why == through + ": its directory " + way + " does not belong to root");
  CHECK_FALSE(trusted_program(through.c_str(), reason));
  REQUIRE(lchown(way.c_str(), 0, 0) == 0);
  REQUIRE(chmod(theirs.path().c_str(), 0777) == 0);
  CHECK_FALSE(site(through, s, why));
  CHECK(why == through + ": others than root can write its directory " + theirs.path());
  CHECK_FALSE(trusted_program(through.c_str(), reason));
  REQUIRE(chmod(theirs.path().c_str(), 0755) == 0);
  // A link to root's program is root's only where the link is.
  const std::string link = theirs / "link";
  REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
  CHECK(trusted_program(link.c_str(), reason));
  REQUIRE(lchown(link.c_str(), nobody, 0) == 0);
  CHECK_FALSE(trusted_program(link.c_str(), reason));
}

TEST_CASE("what nccl.conf sets is found as NCCL finds it") {
  Temporary dir;
  static NcclConf conf;
  write_file(dir / ".nccl.conf", "#NCCL_IB_HCA=x\n NCCL_TOPO_FILE=/y\nNCCL_SOCKET_IFNAME==eth0\n");
  conf.read(nullptr, dir.path().c_str());
  CHECK(conf.sets("NCCL_SOCKET_IFNAME"));
  CHECK_FALSE(conf.sets("NCCL_SOCKET"));
  CHECK_FALSE(conf.sets("NCCL_IB_HCA"));
  CHECK_FALSE(conf.sets("NCCL_TOPO_FILE"));

  write_file(dir / "mine", "NCCL_IB_HCA=mlx5_9");
  conf.read((dir / "mine").c_str(), dir.path().c_str());
  CHECK(conf.sets("NCCL_IB_HCA"));
  CHECK_FALSE(conf.sets("NCCL_SOCKET_IFNAME"));

  const std::string fifo = dir / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0644) == 0);
  for (const char* odd : {fifo.c_str(), "/dev/zero", "/", "/nonexistent", ""}) {
    CAPTURE(odd);
    conf.read(odd, nullptr);
    CHECK_FALSE(conf.sets("NCCL_SOCKET_IFNAME"));
  }
  write_file(dir / "huge", std::string(1 << 20, 'x') + "\nNCCL_IB_HCA=1\n");
  conf.read((dir / "huge").c_str(), nullptr);
  CHECK_FALSE(conf.sets("NCCL_IB_HCA"));
}
