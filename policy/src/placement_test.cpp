#include "freeride/policy/placement.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

#include "freeride/policy/placer.hpp"

using namespace freeride;
using namespace freeride::policy;
using Kind = Placement::Kind;

namespace {
constexpr int64_t kMiB = 1 << 20;

DeviceView device(const std::string& worker, int64_t free_mib, uint32_t tasks, int stage = -1,
                  const std::string& job = "gpt") {
  DeviceView view{worker, 1000 * kMiB, free_mib * kMiB, tasks, {}};
  if (stage >= 0) view.ranks.push_back({job, static_cast<uint32_t>(stage), 4, 0, 1, true});
  return view;
}
PlacementRequest request(int stage = -1, int64_t memory_mib = 100) {
  PlacementRequest asked;
  asked.stage = stage;
  asked.memory_bytes = memory_mib * kMiB;
  return asked;
}
bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
std::string reason(const Placement& placement) {
  if (placement.kind == Kind::kReject) return placement.what;
  WhyDetail detail;
  detail.what = placement.what;
  return render_why(placement.why, detail);
}
}  // namespace

TEST_CASE("Algorithm 1: enough memory first, then the fewest tasks") {
  const std::vector<DeviceView> devices = {device("a", 50, 0, 0), device("b", 500, 2, 1), device("c", 400, 1, 2),
                                           device("d", 600, 3, 3)};
  CHECK(place(request(), devices).worker == "c");
  CHECK(place(request(-1, 450), devices).worker == "b");
  CHECK(place(request(-1, 600), devices).worker == "d");
  CHECK(place(request(-1, 50), devices).worker == "a");
}

TEST_CASE("equal numbers of tasks: most free memory, then the name, whatever the order of the snapshot") {
  std::vector<DeviceView> devices = {device("b", 500, 1, 0), device("a", 500, 1, 1), device("c", 400, 1, 2)};
  CHECK(place(request(), devices).worker == "a");
  std::swap(devices[0], devices[1]);
  CHECK(place(request(), devices).worker == "a");
}

TEST_CASE("of devices with as few tasks the one where a task was is taken, else one of that host") {
  std::vector<DeviceView> devices = {device("a:gpu-0", 900, 1, 0), device("b:gpu-0", 400, 1, 1),
                                     device("b:gpu-1", 500, 1, 2), device("bb:gpu-0", 950, 1, 3)};
  auto again = request();
  CHECK(place(again, devices).worker == "bb:gpu-0");
  again.last_worker = "b:gpu-0";
  CHECK(place(again, devices).worker == "b:gpu-0");
  again.memory_bytes = 450 * kMiB;  // not there any more
  CHECK(place(again, devices).worker == "b:gpu-1");
  again.memory_bytes = 600 * kMiB;
  CHECK(place(again, devices).worker == "bb:gpu-0");
  again = request(0);  // it must be on another stage now
  again.last_worker = "b:gpu-0";
  CHECK(place(again, devices).worker == "a:gpu-0");
  again = request();
  again.last_worker = "b:gpu-0";
  devices[0].tasks = 0;  // fewer tasks come first
  CHECK(place(again, devices).worker == "a:gpu-0");
  again.last_worker = "gone";
  CHECK(place(again, devices).worker == "a:gpu-0");
}

TEST_CASE("stage, replica and job narrow the choice") {
  std::vector<DeviceView> devices = {device("a", 500, 0, 0), device("b", 500, 5, 3), device("c", 500, 0, 3, "bert")};
  devices[2].ranks[0].replica = 1;
  devices[2].ranks[0].replicas = 2;
  auto asked = request(3);
  asked.job = "gpt";
  CHECK(place(asked, devices).worker == "b");
  asked.job = "bert";
  CHECK(place(asked, devices).worker == "c");
  asked.replica = 0;
  CHECK(place(asked, devices).kind == Kind::kWait);
  asked.replica = 1;
  CHECK(place(asked, devices).worker == "c");
}

TEST_CASE("what is missing is waited for, with the reason") {
  CHECK(says(reason(place(request(3), {})), "waiting for a worker"));
  CHECK(reason(place(request(3), {device("a", 500, 0)})) == "waiting for a trainer with stage 3");
  CHECK(reason(place(request(3), {device("a", 500, 0, 0)})) == "waiting for a trainer with stage 3");
  auto named = request(3);
  named.job = "bert";
  CHECK(reason(place(named, {device("a", 500, 0, 0)})) == "waiting for a trainer with stage 3, of job bert");
  const auto full = place(request(0, 200), {device("a", 100, 1, 0)});
  CHECK(full.kind == Kind::kWait);
  CHECK(reason(full) == "waiting for memory: needs 200 MiB, a has 100 MiB free");
  CHECK(says(reason(place(request(7), {device("a", 500, 0, 0)})), "its stages are 0-3"));
  CHECK(says(reason(place(request(), {device("a", 500, 0, 0), device("b", 500, 0, 0, "bert")})),
             "several jobs are attached (bert, gpt)"));
}

TEST_CASE("more than any matching worker could ever give is rejected, naming the largest") {
  const auto placement = place(request(0, 1001), {device("a", 1000, 0, 0), device("b", 1000, 0, 1)});
  CHECK(placement.kind == Kind::kReject);
  CHECK(reason(placement) == "needs 1001 MiB of memory; the largest matching worker, a, has 1000 MiB");
}

TEST_CASE("a device whose hook is off takes nothing, and says why") {
  auto off = device("a", 500, 0, 0);
  off.ranks[0].hook_on = false;
  CHECK(says(reason(place(request(0), {off})), "training hook of job gpt, stage 0 is off"));
  CHECK(place(request(), {off, device("b", 500, 3, 1)}).worker == "b");
  auto shared = device("c", 500, 0, 1);  // two ranks on one device, one of them off
  shared.ranks.push_back({"gpt", 2, 4, 0, 1, false});
  CHECK(place(request(1), {shared}).kind == Kind::kWait);
}

TEST_CASE("a task for idle devices goes where no trainer is, unless it names a stage") {
  auto idle = request();
  idle.when_idle = true;
  CHECK(place(idle, {device("a", 500, 0)}).worker == "a");
  CHECK(place(idle, {device("a", 500, 1), device("b", 500, 0, 2)}).worker == "b");
  CHECK(place(idle, {device("a", 500, 0), device("b", 500, 1, 0), device("c", 500, 0, 0, "bert")}).worker == "a");
  idle.stage = 2;
  CHECK(place(idle, {device("a", 500, 0)}).kind == Kind::kWait);
  CHECK(place(request(), {device("a", 500, 0)}).kind == Kind::kWait);
}

TEST_CASE("a task for idle devices does not start beside a process that may be a training without the hook") {
  auto idle = request();
  idle.when_idle = true;
  auto in_use = device("a", 500, 0);
  in_use.other_process = true;
  CHECK(place(idle, {in_use, device("b", 400, 1)}).worker == "b");
  CHECK(place(idle, {in_use}).kind == Kind::kWait);
  CHECK(place(idle, {in_use}).why == Why::kOtherProcess);
  CHECK(place(idle, {in_use}).what == "a");
  auto hooked = device("c", 400, 1, 0);  // the process beside a hooked rank may be anything of that training
  hooked.other_process = true;
  CHECK(place(idle, {in_use, hooked}).worker == "c");
}

TEST_CASE("what can be said at once is said at once") {
  const std::vector<DeviceView> gpt = {device("a", 500, 0, 0), device("b", 500, 0, 1)};
  CHECK(check_request(request(3), gpt).ok());  // rank 3 may attach any moment
  const auto unknown = check_request(request(4), gpt);
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().code == Code::kInvalidArgument);
  CHECK(unknown.error().message == "job gpt has no stage 4: its stages are 0-3");
  auto replica = request();
  replica.replica = 1;
  CHECK(says(check_request(replica, gpt).error().message, "its replicas are 0"));
  const auto large = check_request(request(-1, 2000), gpt);
  CHECK(large.error().code == Code::kRejected);
  CHECK(says(large.error().message, "the largest worker, a, has 1000 MiB"));
  const auto several = check_request(request(), {device("a", 500, 0, 0), device("b", 500, 0, 1, "bert")});
  CHECK(several.error().message == "several training jobs are attached: bert, gpt");
  CHECK(check_request(request(9), {}).ok());
  CHECK(check_request(request(9), {device("a", 500, 0)}).ok());
}

TEST_CASE("where any job will do, the emptiest device of all of them is taken") {
  const std::vector<DeviceView> two = {device("a", 500, 1, 0), device("b", 500, 0, 1, "bert"), device("c", 500, 0)};
  CHECK(place(request(), two).kind == Kind::kWait);
  auto any = request();
  any.any_job = true;
  CHECK(check_request(any, two).ok());
  CHECK(place(any, two).worker == "b");
  any.stage = 0;
  CHECK(place(any, two).worker == "a");
  any.stage = 7;
  CHECK(place(any, two).why == Why::kNoTrainer);
  any.stage = -1;
  any.job = "gpt";
  CHECK(place(any, two).worker == "a");
}

TEST_CASE("ranks that lie about their numbers do no harm") {
  auto liar = device("a", -5, 0, 0);
  liar.ranks[0].stage = UINT32_MAX;
  liar.ranks[0].stages = 0;
  CHECK(place(request(3), {liar}).kind == Kind::kWait);
  CHECK(place(request(), {liar}).kind == Kind::kWait);
  CHECK(check_request(request(3), {liar}).ok());
}

TEST_CASE("a job's name alone means it, whosever it is, as long as there is one of that name") {
  std::vector<DeviceView> devices = {device("a", 500, 0, 0, "1000/gpt"), device("b", 500, 5, 0, "bert")};
  auto asked = request(0);
  asked.job = "gpt";
  CHECK(place(asked, devices).worker == "a");
  CHECK(check_request(asked, devices).ok());
  devices.push_back(device("c", 500, 0, 0, "1001/gpt"));
  CHECK(place(asked, devices).kind == Kind::kWait);
  CHECK(says(reason(place(asked, devices)), "several jobs are called gpt (1000/gpt, 1001/gpt)"));
  CHECK(check_request(asked, devices).error().code == Code::kInvalidArgument);
  asked.job = "1001/gpt";
  CHECK(place(asked, devices).worker == "c");
  // The worker's own user's is meant by its name, whoever else has one of that name.
  devices.push_back(device("d", 500, 9, 0, "gpt"));
  asked.job = "gpt";
  CHECK(place(asked, devices).worker == "d");
  asked.job = "1002/gpt";
  CHECK(place(asked, devices).kind == Kind::kWait);
}

TEST_CASE("a job whose devices are left out is still the one that is meant by its name") {
  PlacementRequest asked = request();
  asked.job = "gpt";
  const std::vector<DeviceView> alices{device("a", 500, 0, 0, "1000/gpt")};
  CHECK(Placer(alices).place(asked).worker == "a");
  for (const std::string left_out : {"gpt", "1001/gpt"}) {
    INFO(left_out);
    Placer placer(alices, {left_out, "1000/gpt"});
    CHECK(placer.place(asked).kind == Kind::kWait);
    asked.job = "1000/gpt";
    CHECK(placer.place(asked).worker == "a");
    asked.job = "gpt";
  }
  CHECK(Placer(alices, {"bert"}).place(asked).worker == "a");
  asked.job.clear();
  CHECK(Placer(alices, {"bert"}).place(asked).kind == Kind::kWait);  // which of the two was never said
  asked.any_job = true;
  CHECK(Placer(alices, {"bert"}).place(asked).worker == "a");
}
