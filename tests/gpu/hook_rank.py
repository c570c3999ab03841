"""One rank of hook_checks.py, as bench/gpu/rank.py is one of a measured training."""

import faulthandler
import json
import os
import signal
import time

import torch
import torch.distributed as dist

import nccl_waits
import pipeline
import rank
from freeride import measure
from train_pipelining import expected_waits

SURE = 4  # iterations until the hook knows which receives are posted early


def compared(job, device, result):
    """The same iterations without and with the hook, for each schedule: bitwise the same losses, and waits that are the
    schedule's."""
    other = job.get("other", "data")
    group, beside = pipeline.groups_of(job.get("pipeline") or dist.get_world_size(), other)
    for schedule, stages in job["schedules"]:
        faulthandler.dump_traceback_later(job.get("watchdog_s", 40), exit=True)
        # DualPipeV wants as many micro-batches as it has stages.
        size = pipeline.Size(
            **dict(job["size"], stages=stages, micro_batches=max(4, stages) if schedule == "DualPipeV" else 4)
        )
        losses, seen = {}, {}
        for hooked in (False, True):
            measure.pause(not hooked)
            training = pipeline.Training(
                schedule, size, device, group=group, beside=beside, norm=job.get("norm", False), other=other
            )
            before, begin = measure.counters(), time.monotonic()
            kept, seen[hooked] = [], []
            nccl_waits.take()
            for index in range(job["iterations"]):
                kept.append(training.step())
                nccl_waits.listen()
                seen[hooked].append(nccl_waits.take())
                if hooked and job.get("fail_at") == index and dist.get_rank() == 1:
                    measure.fail(RuntimeError("a test of what happens then"))
            torch.cuda.synchronize()
            losses[hooked] = [float(loss) for losses_of_step in kept for loss in losses_of_step]
            took = time.monotonic() - begin
        after = measure.counters()
        waits, marks = [[one[0] for one in seen[hooked]] for hooked in (False, True)], [one[1] for one in seen[True]]
        result[schedule] = {
            "equal": losses[False] == losses[True],
            "losses": len(losses[True]),
            "last": (losses[True] or [None])[-1],
            "receives": len(expected_waits(training.schedule, training.place, training.mine, stages)),
            "waits": len(waits[0][-1]),
            "waits_equal": waits[0][1:] == waits[1][1:],
            "marks_equal": marks[SURE:] == waits[0][SURE:],
            "s": round(took, 2),
            "counters": {name: after[name] - before[name] for name in after},
            "page": rank.waits_of_page() if rank.page_path() else None,
        }
        if not result[schedule]["marks_equal"]:
            wrong = [i for i in range(SURE, len(marks)) if marks[i] != waits[0][i]]
            result[schedule]["first_difference"] = {
                "iteration": wrong[0],
                "iterations": len(wrong),
                "marks": marks[wrong[0]],
                "waits": waits[0][wrong[0]],
            }
        print(dist.get_rank(), schedule, json.dumps(result[schedule]), flush=True)
        rank.save(job, result)  # of a run that does not come to its end
        faulthandler.cancel_dump_traceback_later()
        del training


def killed(job, device, result):
    """Rank 1 dies in the middle."""
    training = pipeline.Training(job["schedule"], pipeline.Size(**job["size"]), device)
    for index in range(job["iterations"]):
        training.step()
        if index == job["kill_at"] and dist.get_rank() == dist.get_world_size() - 1:
            torch.cuda.synchronize()
            os.kill(os.getpid(), signal.SIGKILL)
        if index % 2 == 0:
            torch.cuda.synchronize()
            print(dist.get_rank(), "iteration", index, flush=True)


if __name__ == "__main__":
    # The waits are listened to behind the hook, which init_process_group arms.
    rank.main(
        {"compared": compared, "killed": killed}, lambda job: nccl_waits.start() if job["what"] == "compared" else None
    )
