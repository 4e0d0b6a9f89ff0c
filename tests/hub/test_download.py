"""Downloads through huggingface_hub from a server of our own: whole, broken, resumed, refused, offline."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_files import Published, noise
from hub_server import HubServer

from pymagpie import hub
from pymagpie.errors import MagpieError, ModelError, ModelNotFoundError

pytest.importorskip("huggingface_hub", reason="needs the download extra")


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without the pause between them."""
    monkeypatch.setattr("huggingface_hub.file_download.time", SimpleNamespace(sleep=lambda _seconds: None))


def incomplete(home: Path) -> list[Path]:
    return list(home.rglob("*.incomplete"))


def test_download_then_cache(published: Published, online: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pymagpie"):
        path = hub.resolve_codec(None)
    assert path.read_bytes() == published.content(published.codec)
    assert path.parent.name == hub.CODEC.revision and path.name == hub.CODEC.filename
    assert path.is_relative_to(online / "hub")
    assert "NVIDIA Open Model License" in caplog.text and hub.CODEC.repo in caplog.text
    count = len(published.server.requests)
    caplog.clear()
    assert hub.resolve_codec(None) == path and hub.resolve_codec(hub.CODEC.repo) == path
    assert len(published.server.requests) == count and not caplog.records and not incomplete(online)


def test_licence_is_named_before_the_first_request(
    published: Published, online: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    caplog.handler.addFilter(lambda record: seen.append(len(published.server.requests)) is None)
    with caplog.at_level(logging.WARNING, "pymagpie.hub"):
        hub.resolve_magpie(None)
    assert seen[0] == 0 and published.server.requests


def test_huggingface_hub_finds_what_we_cached(published: Published, online: Path) -> None:
    import huggingface_hub

    path = hub.fetch(published.codec)
    found = huggingface_hub.hf_hub_download(
        published.codec.repo, published.codec.filename, revision=published.codec.revision, local_files_only=True
    )
    assert Path(found) == path


def test_broken_transfer_goes_on_within_a_run(published: Published, online: Path) -> None:
    published.server.faults.drop = [25_000, 31_000]
    assert hub.fetch(published.magpie).read_bytes() == published.content(published.magpie)
    assert [r.range for r in published.server.content_requests()] == [None, "bytes=20000-", "bytes=50000-"]


def test_broken_transfer_goes_on_in_the_next_run(published: Published, online: Path) -> None:
    published.server.faults.drop = [42_000] + [0] * 5
    with pytest.raises(MagpieError, match="kept; run it again") as raised:
        hub.fetch(published.magpie)
    assert type(raised.value) is MagpieError
    (partial,) = incomplete(online)
    assert partial.read_bytes() == published.content(published.magpie)[:40_000]
    before = len(published.server.content_requests())
    assert hub.fetch(published.magpie).read_bytes() == published.content(published.magpie)
    assert [r.range for r in published.server.content_requests()[before:]] == ["bytes=40000-"]
    assert not incomplete(online)


def test_a_server_without_ranges_costs_time_but_not_correctness(published: Published, online: Path) -> None:
    published.server.faults.drop = [42_000] + [0] * 5
    with pytest.raises(MagpieError):
        hub.fetch(published.magpie)
    published.server.faults.ignore_range = True
    assert hub.fetch(published.magpie).read_bytes() == published.content(published.magpie)
    folder = hub.fetch_assets()  # the server sends the whole archive; only its head is taken
    assert (folder / "heteronyms-052722").read_bytes() == published.members["heteronyms-052722"]


def test_wrong_bytes_are_refused_and_not_kept(published: Published, online: Path) -> None:
    published.server.faults.corrupt = True
    with pytest.raises(ModelError, match=f"expected {published.magpie.sha256}"):
        hub.fetch(published.magpie)
    with pytest.raises(ModelError, match=f"expected {published.head.sha256}"):
        hub.fetch_assets()
    assert not incomplete(online) and not list(online.rglob("*.gguf"))
    published.server.faults.corrupt = False
    assert hub.fetch(published.magpie).is_file() and hub.fetch_assets().is_dir()


def test_another_file_under_the_name_is_refused_before_its_bytes(published: Published, online: Path) -> None:
    codec = published.codec
    published.publish(codec, noise(5, codec.size))
    with pytest.raises(ModelError, match="the hub has sha256"):
        hub.fetch(codec)
    published.publish(codec, noise(5, codec.size + 1))
    with pytest.raises(ModelError, match="the hub has 50,001 bytes, expected 50,000"):
        hub.fetch(codec)
    assert not published.server.content_requests()


def test_a_mirror_with_tags_of_its_own(published: Published, online: Path) -> None:
    published.server.etag = "tag-of-a-mirror"
    assert hub.fetch(published.codec).read_bytes() == published.content(published.codec)


def test_damaged_cache_is_found_by_size_always_and_by_digest_on_demand(published: Published, online: Path) -> None:
    path = hub.fetch(published.codec)
    whole = path.read_bytes()
    path.resolve().write_bytes(whole[:-1])
    assert hub.resolve_codec(None).read_bytes() == whole
    path.resolve().write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert hub.fetch(published.codec).read_bytes() != whole
    assert hub.fetch(published.codec, verify=True).read_bytes() == whole


def test_assets_from_the_head_of_the_archive(published: Published, online: Path) -> None:
    folder = hub.resolve_assets(None, None)
    assert {path.name for path in folder.iterdir()} == {*published.members, "manifest.json"}
    assert all((folder / name).read_bytes() == data for name, data in published.members.items())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"] == hub.ASSETS and manifest["revision"] == hub.ASSETS_HEAD.revision
    assert not {"text_tokenizers", "text_vocab_size"} & set(manifest)  # they belong to the GGUF
    assert [r.range for r in published.server.content_requests()] == [f"bytes=0-{published.head.size - 1}"]
    assert [path.name for path in folder.parent.iterdir()] == ["tokenizer"]
    count = len(published.server.requests)
    assert hub.resolve_assets(None, None) == folder and len(published.server.requests) == count


def test_broken_head_goes_on(published: Published, online: Path) -> None:
    published.server.faults.drop = [33_000] + [0] * 5
    with pytest.raises(MagpieError):
        hub.fetch_assets()
    assert hub.fetch_assets().is_dir()
    assert published.server.content_requests()[-1].range == f"bytes=30000-{published.head.size - 1}"


def test_damaged_assets_are_fetched_again(published: Published, online: Path) -> None:
    folder = hub.fetch_assets()
    (folder / "de_nv230119.dict").unlink()
    assert (hub.fetch_assets() / "de_nv230119.dict").read_bytes() == published.members["de_nv230119.dict"]
    (folder / "de_nv230119.dict").write_bytes(b"other")
    assert (hub.fetch_assets(verify=True) / "de_nv230119.dict").read_bytes() == published.members["de_nv230119.dict"]
    (folder / "manifest.json").write_text("[]")
    assert json.loads((hub.fetch_assets() / "manifest.json").read_text())["files"] == hub.ASSETS


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("repository", MagpieError, "access refused, or no such repository"),
        ("revision", ModelNotFoundError, "at revision"),
        ("file", ModelNotFoundError, "has no .*gguf"),
        ("token", MagpieError, "set HF_TOKEN"),
        ("server", MagpieError, "failed: .*503"),
        ("no server", MagpieError, "failed: "),
    ],
)
def test_refusals(
    fault: str, error: type[Exception], message: str, published: Published, online: Path, server: HubServer
) -> None:
    codec = published.codec
    content = server.files.pop((codec.repo, codec.revision, codec.filename))
    if fault == "revision":
        server.files[codec.repo, "0" * 40, codec.filename] = content
    elif fault == "file":
        server.files[codec.repo, codec.revision, "other"] = content
    elif fault == "token":
        server.token = "secret"
    elif fault == "server":
        server.faults.status = 503
    elif fault == "no server":
        server.close()
    with pytest.raises(error, match=message) as raised:
        hub.resolve_codec(None)
    assert type(raised.value) is error and "\n" not in str(raised.value)


def test_offline_without_cache(published: Published, online: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for resolve in (hub.resolve_magpie, hub.resolve_codec, hub.resolve_assets):
        with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE is set.*pymagpie download"):
            resolve(None)
    assert not published.server.requests


# --- the command, in a process of its own: the settings of huggingface_hub come from the environment


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_command_downloads_all_then_works_offline(published: Published, run: Run, tmp_path: Path) -> None:
    published.server.token = "hf_secret"
    first = run("download", "--json", HF_TOKEN="hf_secret")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert Path(report["magpie"]["model"]).read_bytes() == published.content(published.magpie)
    assert Path(report["nano-codec"]["model"]).is_relative_to(tmp_path / "home")
    assert (Path(report["magpie"]["assets"]) / "manifest.json").is_file()
    assert report["licence"] == "NVIDIA Open Model License" and "NVIDIA Open Model License" in first.stderr
    # The token goes to the hub and not to the storage that it redirects to.
    assert {r.authorization for r in published.server.requests if "/resolve/" in r.path} == {"Bearer hf_secret"}
    assert {r.authorization for r in published.server.requests if "/content/" in r.path} == {None}
    published.server.close()
    offline = run("download", "--json", HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert json.loads(offline.stdout) == report and "downloading" not in offline.stderr


def test_command_one_target(published: Published, run: Run) -> None:
    done = run("download", "nano-codec")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("nano-codec model: ") and done.stdout.count("\n") == 1
    assert not any(hub.MAGPIE.repo in r.path for r in published.server.requests)


def test_command_errors_and_exit_codes(published: Published, run: Run) -> None:
    offline = run("download", "nano-codec", "--json", HF_HUB_OFFLINE="1")
    assert offline.returncode == 3
    assert json.loads(offline.stderr.splitlines()[-1])["error"]["type"] == "ModelNotFoundError"
    wrong = run("download", "codec")
    assert wrong.returncode == 2 and "'magpie', 'nano-codec'" in wrong.stderr
    published.server.token = "hf_secret"
    refused = run("download", "nano-codec", HF_TOKEN="hf_other")
    assert refused.returncode == 1 and "HF_TOKEN" in refused.stderr.splitlines()[-1]


def test_two_processes_share_one_download(
    published: Published, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    processes = [start("download") for _ in range(2)]
    for process in processes:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    assert len(published.server.content_requests()) == 3
    assert not incomplete(tmp_path / "home")


def test_interrupted_command_goes_on(
    published: Published, start: Callable[..., subprocess.Popen[str]], run: Run, tmp_path: Path
) -> None:
    megabyte = 1 << 20
    published.codec = published.publish(hub.CODEC, noise(3, 24 * megabyte))
    script = tmp_path / "pymagpie_small.py"
    script.write_text(script.read_text().replace("if __name__", f"hub.CODEC = {published.codec!r}\nif __name__"))
    published.server.faults.stall = 15 * megabyte
    process = start("download", "nano-codec", HF_HUB_DOWNLOAD_TIMEOUT="120")  # the stall must not end by itself
    assert published.server.stalled.wait(30)
    deadline = 200
    while not any(p.stat().st_size for p in incomplete(tmp_path / "home")) and deadline:
        deadline -= 1
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    (partial,) = incomplete(tmp_path / "home")
    arrived = partial.stat().st_size
    assert 0 < arrived <= 15 * megabyte
    published.server.faults.stall = None
    done = run("download", "nano-codec")
    assert done.returncode == 0, done.stderr
    assert published.server.content_requests()[-1].range == f"bytes={arrived}-"
