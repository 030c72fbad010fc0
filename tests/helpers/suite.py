"""A suite of three small benchmarks, and the command that runs it with the fake lmms-eval."""

MODEL = "llava-1.5-7b-hf"
SUITE = {
    "model": MODEL,
    "benchmarks": [
        {"name": "GQA", "harness": "lmms-eval", "tasks": ["first"], "metrics": ["hits,none"], "scale": 100},
        {"name": "MME", "harness": "lmms-eval", "tasks": ["one", "two"], "metrics": ["hits*"], "combine": "sum"},
        {"name": "POPE", "harness": "lmms-eval", "tasks": ["third"], "metrics": ["hits,none"], "needs": "judge"},
    ],
}


def arguments(working, *more, out="out"):
    given = {"--methods": "eadp,topk", "--keep": "128,64", "--python": working / "python", "--out": working / out}
    return ["eval", str(working / "suite.json"), *(str(word) for pair in given.items() for word in pair), *more]
