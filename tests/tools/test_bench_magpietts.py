"""The benchmark: its own logic with a program that makes noise at once, a fake ``nvidia-smi``, and the real command."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_magpietts
import pytest
from benchlib import command, gate
from benchlib.cases import CASES
from benchlib.models import write_synthetic

from pymagpie.ggml import GGUFFile, type_name

FAKE = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('fake_speaker.py')))}"
UUIDS = ["GPU-11112222-aaaa-bbbb-cccc-000000000001", "GPU-1111ffff-aaaa-bbbb-cccc-000000000002"]


class Outcome:
    def __init__(self, code: int, out: str, err: str, calls: list[dict[str, Any]]) -> None:
        self.code, self.out, self.err, self.calls = code, out, err, calls


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Runs the benchmark on `FAKE`; the arguments are those of its command line."""
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("FAKE_LOG", str(log))
    for name in ("PYMAGPIE_MODEL", "PYMAGPIE_CODEC", "PYMAGPIE_ASSETS", "PYMAGPIE_DEVICE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def bench(*arguments: str, program: str = FAKE) -> Outcome:
        log.write_text("")
        code = bench_magpietts.main(["--command", program, *arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err, [json.loads(line) for line in log.read_text().splitlines()])

    return bench


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a ``nvidia-smi`` on PATH that prints one answer a call, the last one for ever; returns its call log."""

    def install(*answers: str, code: int = 0) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        script, calls = folder / "nvidia-smi", folder / "calls"
        calls.write_text("")
        script.write_text(
            f"#!{sys.executable}\n"
            "import sys\n"
            f"answers = {list(answers)!r}\n"
            f"calls = open({str(calls)!r}, 'a+')\n"
            "calls.write(' '.join(sys.argv[1:]) + '\\n')\n"
            "calls.seek(0)\n"
            "print(answers[min(len(calls.readlines()), len(answers)) - 1], end='')\n"
            f"sys.exit({code})\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return calls

    return install


def smi(*utilizations: object, names: tuple[str, ...] = ("NVIDIA H200",)) -> str:
    """What ``nvidia-smi`` prints for GPUs with these utilizations."""
    return "".join(f"{i}, {UUIDS[i]}, {names[i % len(names)]}, {use}\n" for i, use in enumerate(utilizations))


QUICK = ("--idle-interval", "0.01", "--idle-timeout", "60")


# --- timing


def test_medians_and_table(bench: Callable[..., Outcome]) -> None:
    done = bench("--reps", "2", "--greedy", "--allow-busy-gpu", "--json", "--device", "cpu", "--extra", "--voice 'A B'")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert [case["name"] for case in report["cases"]] == ["line", "paragraph", "script"]
    assert [case["sentences"] for case in report["cases"]] == [1, 5, 20]
    for case in report["cases"]:
        assert case["metrics"]["e2e_rtf"] == {"median": 0.5, "min": 0.5, "max": 0.5}
        assert set(case["metrics"]) == set(command.METRICS) and len(case["runs"]) == 2
    assert len(done.calls) == 3 * (1 + 2)  # one run a case does not count
    first = done.calls[0]
    assert first["greedy"] and first["verbose"] and first["seed"] == 1234 and first["device"] == "cpu"
    assert first["voice"] == "A B" and first["cwd"] != os.getcwd()
    assert report["greedy"] and report["idle"].startswith("not waited for")


def test_markdown_names_machine_build_date_and_models(bench: Callable[..., Outcome]) -> None:
    done = bench("--reps", "1", "--case", "line", "--allow-busy-gpu")
    assert done.code == 0, done.err
    assert "| case | runs | e2e_rtf | decoder_itl_avg_ms | codec_rtfx | codec_ttfa_ms | e2e_audio_s |" in done.out
    assert "| line | 1 | 0.5000 | 20.00 | 8.25 | 4.50 |" in done.out
    assert "cores" in done.out and "fake_speaker.py" in done.out and "seed 1234" in done.out
    assert bench_magpietts.datetime.date.today().isoformat() in done.out


def test_spread_is_median_least_greatest() -> None:
    from benchlib.report import spread

    assert spread([3.0, 1.0, 10.0, 2.0]) == {"median": 2.5, "min": 1.0, "max": 10.0}


def test_cases_have_one_five_and_twenty_sentences() -> None:
    assert [len(case.sentences) for case in CASES] == [1, 5, 20]
    assert all(sentence[-1] in ".?!" for case in CASES for sentence in case.sentences)
    assert len({sentence for case in CASES for sentence in case.sentences}) == 26


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("fail", "A: exit code 1: fake: error: no such voice"),
        ("silent", "cannot read the audio"),
        ("mute", "printed no line with e2e_rtf"),
    ],
)
def test_a_run_that_fails_ends_the_benchmark(
    mode: str, message: str, bench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    done = bench("--reps", "1", "--case", "line", "--allow-busy-gpu")
    assert done.code == 1 and message in done.err and done.out == ""


def test_missing_program(bench: Callable[..., Outcome]) -> None:
    done = bench("--allow-busy-gpu", program="/nonexistent/speaker")
    assert done.code == 1 and "cannot start '/nonexistent/speaker'" in done.err


def test_known_line_of_metrics() -> None:
    line = (
        "generated 12 codec frames and streamed 12288 samples in 0.50 s; encoder_ms=3.10 decoder_ttft_ms=9 "
        "decoder_itl_avg_ms=18.42 decoder_rtfx=2.5 codec_ttfa_ms=31.00 codec_rtfx=7.9 e2e_audio_s=0.557 "
        "e2e_elapsed_s=0.50 e2e_rtf=0.8977 e2e_rtfx=1.11 codec_chunks=3"
    )
    assert command.parse_metrics(f"x\n{line}\nsaved=1\n") == {
        "e2e_rtf": 0.8977,
        "decoder_itl_avg_ms": 18.42,
        "codec_rtfx": 7.9,
        "codec_ttfa_ms": 31.0,
        "e2e_audio_s": 0.557,
    }
    assert command.parse_metrics(line.replace("e2e_rtf=0.8977", "e2e_rtf=?")) is None


# --- arguments


@pytest.mark.parametrize("reps", ["0", "-1", "2.5", "many", ""])
def test_reps_are_positive_integers(reps: str, bench: Callable[..., Outcome]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench("--reps", reps)
    assert stop.value.code == 2


@pytest.mark.parametrize(
    ("extra", "owned"),
    [
        ("--seed 3", "--seed"),
        ("--see=3", "--seed"),
        ("--voice Aria --seed=3", "--seed"),
        ("-o x.wav", "--output"),
        ("-ox.wav", "--output"),
        ("--out x.wav", "--output"),
        ("--dev cpu", "--device"),
        ("--device=cpu", "--device"),
        ("--codec-dev=cpu", "--codec-device"),
        ("--codec_device cpu", "--codec-device"),
        ("--top-k 3", "--top-k"),
        ("--top_k=3", "--top-k"),
        ("--greedy", "--greedy"),
        ("--gre", "--greedy"),
        ("-i other.txt", "--input"),
        ("-- text", "--"),
    ],
)
def test_extra_may_not_override(
    extra: str, owned: str, bench: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        bench(f"--extra={extra}")
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "--extra may not" in error and owned in error


def test_extra_passes_the_rest() -> None:
    words = ["--voice", "Aria", "--cfg-scale=1.5", "--chunk-frames", "8", "--temperature", "0.7"]
    assert command.check_extra(shlex.join(words)) == words


@pytest.mark.parametrize("given", ["program", "argument", "environment"])
def test_outtype_is_for_synthetic_models(
    given: str, bench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if given == "environment":
        monkeypatch.setenv("PYMAGPIE_CODEC", "codec.gguf")
    more = ["--model", "m.gguf"] if given == "argument" else []
    program = FAKE if given == "program" else bench_magpietts.DEFAULT_COMMAND
    with pytest.raises(SystemExit) as stop:
        bench("--outtype", "q8_0", *more, program=program)
    assert stop.value.code == 2 and "--outtype chooses among synthetic models" in capsys.readouterr().err


def test_outtype_of_the_synthetic_model(tmp_path: Path) -> None:
    models = write_synthetic(tmp_path, size="tiny", base_channels=96, outtype="q8_0")
    assert "(tiny q8_0, codec of 96 channels)" in models.description
    with GGUFFile.open(str(models.model)) as file:
        assert "q8_0" in {type_name(tensor.type) for tensor in file.tensors.values()}


# --- the same audio in each run


def test_check_equal_and_perturbed(bench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    done = bench("--check", "--greedy", "--reps", "3", "--case", "line", "--allow-busy-gpu", "--json")
    assert done.code == 0
    hashes = json.loads(done.out)["cases"][0]["sha256"]["A"]
    assert len(hashes) == 3 and len(set(hashes)) == 1 and len(done.calls) == 3
    monkeypatch.setenv("FAKE_MODE", "perturb")
    done = bench("--check", "--greedy", "--reps", "3", "--case", "line", "--allow-busy-gpu")
    assert done.code == 1 and "differs from run to run: line (A)" in done.err and "**differ**" in done.out
    shown = [line.split("|")[4].strip() for line in done.out.splitlines() if line.startswith("| line | A |")]
    assert len(shown) == 4 and all(len(digest) == 64 for digest in shown[:3])
    sampled = bench("--check", "--reps", "2", "--case", "line", "--allow-busy-gpu")
    assert sampled.code == 0 and "**differ**" in sampled.out


def test_the_hash_is_of_the_samples(tmp_path: Path) -> None:
    """Known answer: sha256 of the four bytes 01 00 FF 7F, whatever the header holds."""
    import wave

    for name, rate in (("a.wav", 22050), ("b.wav", 44100)):
        with wave.open(str(tmp_path / name), "wb") as audio:
            audio.setparams((1, 2, rate, 0, "NONE", ""))
            audio.writeframes(b"\x01\x00\xff\x7f")
    assert command.read_audio("A", tmp_path / "a.wav") == (
        2 / 22050,
        "bb24a8120e7b039de7eae98f7e3dd8b8f731bed98e657a09b0945599c4a89fa9",
    )
    assert command.read_audio("A", tmp_path / "b.wav")[1] == command.read_audio("A", tmp_path / "a.wav")[1]


# --- against another program


def test_vs_alternates_and_prints_ratios(bench: Callable[..., Outcome]) -> None:
    done = bench(
        "--vs", f"{FAKE} --name other --rtf 1.0", "--reps", "2", "--case", "line", "--allow-busy-gpu", "--json"
    )
    assert done.code == 0, done.err
    assert [call["name"] for call in done.calls] == ["fake", "other"] * 3
    vs = json.loads(done.out)["cases"][0]["vs"]
    assert vs["basis"] == "e2e_rtf" and [pair["b_over_a"] for pair in vs["pairs"]] == [2.0, 2.0]
    table = bench("--vs", f"{FAKE} --name other --rtf 1.0", "--reps", "2", "--case", "line", "--allow-busy-gpu").out
    assert "| line | 2 | e2e_rtf | 0.5000 | 1.00 | 2.00 |" in table


def test_vs_with_placeholders_and_without_metrics(
    bench: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = (
        f"env FAKE_MODE=mute {FAKE} --name {{device}} -i {{input}} -o {{output}} --seed {{seed}} --voice {{unknown}}"
    )
    done = bench("--vs", other, "--reps", "1", "--case", "line", "--allow-busy-gpu", "--json", "--device", "cpu")
    assert done.code == 0, done.err
    second = done.calls[1]
    assert second["name"] == "cpu" and second["seed"] == 1234 and second["voice"] == "{unknown}"
    assert not second["verbose"]
    vs = json.loads(done.out)["cases"][0]["vs"]
    assert vs["basis"] == "wall_rtf" and vs["pairs"][0]["b_over_a"] > 0


def test_paths_in_commands_are_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("")
    monkeypatch.chdir(tmp_path)
    assert command.split_command("./bin/tool bin a/b -m tool") == (
        str(tmp_path / "bin/tool"),
        "bin",
        "a/b",
        "-m",
        "tool",
    )
    with pytest.raises(ValueError, match="empty"):
        command.split_command(" ")


# --- the idle gate


def test_busy_then_idle(bench: Callable[..., Outcome], nvidia_smi: Callable[..., Path]) -> None:
    calls = nvidia_smi(smi(97), smi(3), smi(0), smi(4), smi(3))
    done = bench("--device", "cuda", "--reps", "1", "--case", "line", *QUICK)
    assert done.code == 0, done.err
    assert "GPU 0 (NVIDIA H200" in done.out
    # 97 3 0 4 and then four of 3 %; one more call names the machine's GPU.
    assert len(calls.read_text().splitlines()) == 8 + 1


def test_never_idle(bench: Callable[..., Outcome], nvidia_smi: Callable[..., Path]) -> None:
    nvidia_smi(smi(55))
    done = bench("--device", "cuda", "--reps", "1", "--idle-interval", "0.01", "--idle-timeout", "0.2")
    assert done.code == 1 and not done.calls and done.out == ""
    assert "at the start: GPU 0" in done.err and "reads 55, not <= 3" in done.err and "--allow-busy-gpu" in done.err
    allowed = bench("--device", "cuda", "--reps", "1", "--case", "line", "--allow-busy-gpu")
    assert allowed.code == 0 and "not waited for" in allowed.out


def test_busy_between_cases(bench: Callable[..., Outcome], nvidia_smi: Callable[..., Path]) -> None:
    nvidia_smi(smi(0), smi(0), smi(0), smi(0), smi(80))
    done = bench("--device", "cuda", "--reps", "1", "--idle-interval", "0.01", "--idle-timeout", "0.2")
    assert done.code == 1 and done.out == "" and len(done.calls) == 2
    assert "before case 'paragraph': GPU 0" in done.err


@pytest.mark.parametrize(
    ("visible", "device", "read"),
    [
        (None, "cuda:1", 1),
        (None, "CUDA1", 1),
        ("1", "cuda", 1),
        ("1,0", "cuda:1", 0),
        (UUIDS[1], "cuda:0", 1),
        ("GPU-1111f", "cuda", 1),
        ("gpu-1111F", "cuda", 1),
        (f"{UUIDS[1]},{UUIDS[0]}", "cuda:1", 0),
    ],
)
def test_which_gpu_is_read(visible: str | None, device: str, read: int, nvidia_smi: Callable[..., Path]) -> None:
    nvidia_smi(smi(*[20 + index for index in range(2)]))
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    reading, what = gate.gpu_probe([device], environment)()
    assert reading == 20 + read and what.startswith(f"GPU {read} ")


@pytest.mark.parametrize(
    ("visible", "names", "device"),
    [
        ("MIG-0a1b", ("NVIDIA H200",), "cuda"),  # a slice of a GPU
        (None, ("NVIDIA A10", "NVIDIA H200"), "cuda"),  # CUDA counts the fastest first
        ("0", ("NVIDIA A10", "NVIDIA H200"), "cuda"),
        (None, ("NVIDIA H200",), "Vulkan1"),  # not CUDA's numbering
    ],
)
def test_the_busiest_where_it_cannot_be_told(
    visible: str | None, names: tuple[str, ...], device: str, nvidia_smi: Callable[..., Path]
) -> None:
    nvidia_smi(smi(7, 61, names=names))
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gate.gpu_probe([device], environment)()[0] == 61
    if device == "cuda" and visible != "MIG-0a1b":
        ordered = {**environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert gate.gpu_probe([device], ordered)()[0] == 7


def test_two_devices_are_both_read(nvidia_smi: Callable[..., Path]) -> None:
    nvidia_smi(smi(7, 61))
    assert gate.gpu_probe(["cuda:0", "cuda:1"], {})()[0] == 61
    assert gate.gpu_probe(["cuda:0"], {})()[0] == 7


@pytest.mark.parametrize(
    ("visible", "seen"), [("", 0), ("-1", 0), ("1,7,0", 1), ("GPU-1111", 0), ("GPU-ffff,0", 0), (" 1 , 0 ", 2)]
)
def test_cuda_ends_its_list_at_the_first_bad_entry(visible: str, seen: int, nvidia_smi: Callable[..., Path]) -> None:
    nvidia_smi(smi(0, 0))
    environment = {"CUDA_VISIBLE_DEVICES": visible}
    gpus = gate.visible_gpus(gate.query_gpus(), environment)
    assert gpus is not None and len(gpus) == seen
    with pytest.raises(gate.GateError, match=rf"cuda:{seen}: CUDA sees {seen} GPUs"):
        gate.gpu_probe([f"cuda:{seen}"], environment)()


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ("no devices were found\n", 6, "nvidia-smi failed: 'no devices were found'"),
        ("\n", 0, "lists no GPU"),
        ("<html>\n", 0, "cannot read this line of nvidia-smi: '<html>'"),
        ("x, y, z, 1\n", 0, "cannot read this line"),
        (smi("[N/A]"), 0, "no utilization of GPU 0"),
        (smi("-5"), 0, "no utilization of GPU 0"),
    ],
)
def test_a_gpu_that_cannot_be_read_is_not_idle(
    answer: str, code: int, message: str, bench: Callable[..., Outcome], nvidia_smi: Callable[..., Path]
) -> None:
    nvidia_smi(answer, code=code)
    done = bench("--device", "cuda", "--reps", "1", *QUICK)
    assert done.code == 1 and message in done.err and not done.calls


def test_missing_nvidia_smi(bench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = bench("--device", "cuda:0", "--reps", "1", *QUICK)
    assert done.code == 1 and "nvidia-smi is not on PATH" in done.err and not done.calls


def test_cpu_gate_reads_the_load_average() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loads = iter([2.0, 0.2, 0.2, 0.3, 0.2, 0.2, 0.1, 0.0])
    waits: list[float] = []
    probe = gate.load_probe(lambda: (next(loads) * cores, 0.0, 0.0))
    idle = gate.IdleGate(probe, gate.LOAD_LIMIT, 1.0, 60.0, sleep=waits.append, clock=lambda: 0.0)
    assert f"{cores} cores" in idle.wait("at the start") and len(waits) == 7
    times = iter(range(100))
    busy = gate.IdleGate(lambda: (0.9, "cpu"), gate.LOAD_LIMIT, 1.0, 5.0, lambda _s: None, lambda: float(next(times)))
    with pytest.raises(gate.GateError, match="before case 'script': cpu reads 0.9"):
        busy.wait("before case 'script'")


def test_which_gate(nvidia_smi: Callable[..., Path]) -> None:
    nvidia_smi(smi(0))
    limits = {
        device: gate.make_gate([device], {}, 1, 1).limit for device in ("cpu", "CPU", "Metal", "cuda:1", "Vulkan0")
    }
    assert limits == {"cpu": 0.25, "CPU": 0.25, "Metal": 0.25, "cuda:1": 3.0, "Vulkan0": 3.0}
    assert gate.make_gate(["cpu", "cuda"], {}, 1, 1).limit == 3.0


# --- the real command


@pytest.fixture(scope="module")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    models = write_synthetic(tmp_path_factory.mktemp("models"), size="tiny", base_channels=96)
    options = {"--model": models.model, "--codec": models.codec, "--assets": models.assets, "--threads": "1"}
    return [word for name, value in options.items() for word in (name, str(value))] + ["--device", "cpu"]


def test_times_pymagpie(bench: Callable[..., Outcome], tiny_models: list[str]) -> None:
    arguments = ["--reps", "2", "--case", "line", "--allow-busy-gpu", "--json", *tiny_models]
    done = bench(*arguments, program=bench_magpietts.DEFAULT_COMMAND)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["build"].startswith("pymagpie ") and report["models"] == "magpie.gguf, nano-codec.gguf"
    (case,) = report["cases"]
    assert all(figures["min"] > 0 for figures in case["metrics"].values())
    assert len({run["sha256"] for run in case["runs"]}) == 1  # sampled, but with one seed
    assert case["runs"][0]["e2e_audio_s"] == pytest.approx(case["runs"][0]["audio_s"], abs=1e-3)


def test_check_of_pymagpie_and_of_a_build_that_is_not_repeatable(
    bench: Callable[..., Outcome], tiny_models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--check", "--greedy", "--reps", "2", "--case", "line", "--allow-busy-gpu", *tiny_models]
    done = bench(*arguments, program=bench_magpietts.DEFAULT_COMMAND)
    assert done.code == 0 and "| line | A | all | equal |" in done.out, done.err
    monkeypatch.setenv("PYMAGPIE_DEBUG_PERTURB", "1")  # moves one sample by an amount of its own in each process
    done = bench(*arguments, program=bench_magpietts.DEFAULT_COMMAND)
    assert done.code == 1 and "| line | A | all | **differ** |" in done.out
    assert len({line for line in done.out.splitlines() if line.startswith("| line | A | ")}) == 3


# --- the plot


def test_plot(bench: Callable[..., Outcome], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    path = tmp_path / "bench.png"
    done = bench("--plot", str(path), "--reps", "2", "--case", "line", "--case", "paragraph", "--allow-busy-gpu")
    assert done.code == 0, done.err
    assert path.read_bytes().startswith(b"\x89PNG") and "| paragraph | 2 |" in done.out


def test_plot_without_matplotlib_fails_before_any_run(
    bench: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_magpietts.importlib.util, "find_spec", lambda _name: None)
    done = bench("--plot", str(tmp_path / "bench.png"), "--allow-busy-gpu")
    assert done.code == 4 and "pip install matplotlib" in done.err and not done.calls
