"""A fake Python interpreter with lmms-eval: it answers slowly, keeps a journal, and writes results as lmms-eval does.

With `-c …` it reports that nothing is missing; with `-m lmms_eval …` it runs. It does not import eadp, so it starts
quickly. In its own folder it logs its process ids (pids), its starts (starts), every answered sample (answered) and its
ends (ends). Tasks in BROKEN end with 3. Tasks in FAILING end with 0 without results,
as those of the real lmms-eval do, after half of the answers. PACE is the number of seconds per answer.
"""

import fcntl
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

SAMPLES = 12
NEWLINES = 24


def right(task, number, method, keep):
    """Return whether an answer is right. More tokens give more right answers; a smaller image gives fewer."""
    return (7 * number + len(task)) % 10 < {"none": 9, "downsample": 3}.get(method, 4 + int(keep) // 32)


def main(arguments):
    if arguments[0] == "-c":
        return
    assert arguments[:2] == ["-m", "lmms_eval"]
    given = {name: value for name, value in pairwise(arguments) if name.startswith("--")}
    model = dict(pair.split("=", 1) for pair in given["--model_args"].split(","))
    working = Path(__file__).parent
    note(working / "pids", os.getpid())
    setting = f"{model['method']} {model.get('keep', '')} {given['--tasks']}"
    note(working / "starts", setting)
    if given["--tasks"] in os.environ.get("BROKEN", "").split():
        print("something\nthe disk of task is full")
        sys.exit(3)
    answers = answer(Path(model["journal"]), given, model, working)
    if given["--tasks"] in os.environ.get("FAILING", "").split():
        print("\x1b[31m\x1b[1mError during evaluation: the scorer\x1b[0m has no memory")
        return
    write(Path(given["--output_path"]) / model["pretrained"], answers)
    note(working / "ends", setting)


def note(path, line):
    """Append a line in one write, so that lines of processes that run at the same time do not mix."""
    with open(path, "a") as file:
        file.write(f"{line}\n")


def answer(journal, given, model, working):
    journal.mkdir(parents=True, exist_ok=True)
    (journal / "manifest.json").write_text(json.dumps({"settings": model}))
    found = {}
    with open(journal / "samples.jsonl", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.seek(0)
        known = {json.loads(line)["key"] for line in file if line.endswith("\n")}
        for task in given["--tasks"].split(","):
            total = int(given.get("--limit", SAMPLES))
            found[task] = [right(task, number, model["method"], model.get("keep", 0)) for number in range(total)]
            failing = task in os.environ.get("FAILING", "").split()
            for number in range(total // 2 if failing else total):
                key = f"{task}/{number}"
                if key in known:
                    continue
                time.sleep(float(os.environ.get("PACE", "0.02")))
                kept = int(model.get("keep", 576))
                used = {"tokens": kept, "sent": kept + NEWLINES, "layer_mean": float(kept)}
                record = {"key": key, "task": task, **used, "prepare_seconds": 0.0, "generate_seconds": 0.02}
                record["answer"] = "yes" if found[task][number] else "no"
                file.write(json.dumps(record) + "\n")
                file.flush()
                note(working / "answered", f"{model['method']} {model.get('keep', '')} {key}")
    return found


def write(folder, answers):
    folder.mkdir(parents=True, exist_ok=True)
    results = {task: {"alias": task, "hits,none": sum(each) / len(each)} for task, each in answers.items()}
    stamp = time.strftime("%Y%m%d_%H%M%S")
    for task, each in answers.items():
        lines = [json.dumps({"doc_id": number, "hits": hit}) + "\n" for number, hit in enumerate(each)]
        (folder / f"{stamp}_samples_{task}.jsonl").write_text("".join(lines))
    counts = {task: {"original": len(each), "effective": len(each)} for task, each in answers.items()}
    (folder / f"{stamp}_results.json").write_text(json.dumps({"results": results, "n-samples": counts}))


if __name__ == "__main__":
    main(sys.argv[1:])
