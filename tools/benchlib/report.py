"""Medians with their spread, pairs and hashes, as a Markdown table, JSON or a plot."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchlib.command import METRICS, Run


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def case_report(runs: list[Run], other: list[Run] | None) -> dict[str, Any]:
    """The figures of one case; `other` are the runs of the program compared with, each made right after its pair."""
    report: dict[str, Any] = {"runs": [_run_report(run) for run in runs]}
    report["metrics"] = {
        name: spread([run.metrics[name] for run in runs if run.metrics]) for name in METRICS if runs[0].metrics
    }
    report["wall_s"] = spread([run.wall_s for run in runs])
    if other:
        # A program's own clock leaves out its start; compare like with like.
        printed = all(run.metrics and run.metrics["e2e_rtf"] > 0 for run in [*runs, *other])
        pairs = [(_rtf(a, printed), _rtf(b, printed)) for a, b in zip(runs, other, strict=True)]
        report["vs"] = {
            "runs": [_run_report(run) for run in other],
            "basis": "e2e_rtf" if printed else "wall_rtf",
            "pairs": [{"a": a, "b": b, "b_over_a": b / a} for a, b in pairs],
            "b_over_a": spread([b / a for a, b in pairs]),
        }
    return report


def _rtf(run: Run, printed: bool) -> float:
    return run.metrics["e2e_rtf"] if printed and run.metrics else run.wall_rtf


def _run_report(run: Run) -> dict[str, Any]:
    return {**(run.metrics or {}), "wall_s": run.wall_s, "audio_s": run.audio_s, "sha256": run.sha256}


def heading(report: dict[str, Any]) -> list[str]:
    """What was measured, where and when, as Markdown lines."""
    machine = report["machine"]
    settings = "greedy" if report["greedy"] else f"seed {report['seed']}"
    return [
        f"- {report['date']}, {machine['cpu']}, {machine['cores']} cores"
        + (f", {machine['gpu']}" if machine["gpu"] else ""),
        f"- {report['build']}; device {report['device']}, {settings}",
        f"- models: {report['models']}",
        f"- idle before each case: {report['idle']}",
    ]


def markdown_timing(report: dict[str, Any]) -> str:
    """The timing table: one row a case, each cell the median and in brackets the least and greatest."""
    rows = [["case", "runs", *METRICS, "wall_s"]]
    for case in report["cases"]:
        cells = [_cell(case["metrics"].get(name)) for name in METRICS]
        rows.append([case["name"], str(len(case["runs"])), *cells, _cell(case["wall_s"])])
    lines = [*heading(report), "", *_table(rows)]
    if report["vs"]:
        pairs = [["case", "pair", "basis", "A", "B", "B / A"]]
        for case in report["cases"]:
            vs = case["vs"]
            for number, pair in enumerate(vs["pairs"], 1):
                figures = [_number(pair[key]) for key in ("a", "b", "b_over_a")]
                pairs.append([case["name"], str(number), vs["basis"], *figures])
            pairs.append([case["name"], "median", vs["basis"], "", "", _cell(vs["b_over_a"])])
        lines += ["", f"A: {report['command']}  ", f"B: {report['vs']}", "", *_table(pairs)]
    return "\n".join(lines)


def markdown_check(report: dict[str, Any]) -> str:
    """The hashes of every run, and whether those of one program agree."""
    rows = [["case", "program", "run", "sha256 of the samples"]]
    for case in report["cases"]:
        for label, hashes in case["sha256"].items():
            rows += [[case["name"], label, str(number), digest] for number, digest in enumerate(hashes, 1)]
            rows.append([case["name"], label, "all", "equal" if len(set(hashes)) == 1 else "**differ**"])
    return "\n".join([*heading(report), "", *_table(rows)])


def plot(report: dict[str, Any], path: Path) -> None:
    """Medians with their spread, one panel a metric. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [case["name"] for case in report["cases"]]
    figure, panels = pyplot.subplots(1, len(METRICS), figsize=(3.2 * len(METRICS), 3.4), layout="constrained")
    for panel, metric in zip(panels, METRICS, strict=True):
        figures = [case["metrics"].get(metric) for case in report["cases"]]
        known = [(name, figure) for name, figure in zip(names, figures, strict=True) if figure]
        middles = [figure["median"] for _, figure in known]
        below = [figure["median"] - figure["min"] for _, figure in known]
        above = [figure["max"] - figure["median"] for _, figure in known]
        panel.errorbar([name for name, _ in known], middles, yerr=[below, above], fmt="o", capsize=4)
        panel.set_title(metric)
        panel.set_ylim(bottom=0)
        panel.margins(x=0.2)
    figure.suptitle(f"{report['build']}, {report['device']}, {report['date']}", fontsize="small")
    figure.savefig(path)
    pyplot.close(figure)


def _cell(values: dict[str, float] | None) -> str:
    if values is None:
        return ""
    if values["min"] == values["max"]:
        return _number(values["median"])
    return f"{_number(values['median'])} ({_number(values['min'])} .. {_number(values['max'])})"


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


def _table(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
