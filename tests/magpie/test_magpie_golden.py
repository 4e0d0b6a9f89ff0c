"""Parity with NeMo, on every device: teacher-forced activations and logits, and every greedy case with its traces.

The golden float32 runs differ from float64 ones by up to 2e-5, and the smallest margin between the two best logits of a
case is 2.1e-4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymagpie.magpie import AcousticModel, StepTrace
from pymagpie.magpie.step import StepEngine

CASES = ("main", "cfg1_prior1", "cfg0_prior1", "cfg1_prior0", "cfg0_prior0", "cfg0_prior0_eos", "short",
         "prior_all_layers", "finished_tracking", "parallel_head", "kv_cache", "infer_batch_nocache", "no_min_frames")
SOFTWARE_CASES = ("cfg0_prior0_eos", "kv_cache")
"""Those for a GPU computed on the CPU: a short one that recomputes its prefix, and the one of the cached mode."""
SOFTWARE_STEPS = 4


def case_options(case: dict[str, Any], layers: int) -> dict[str, Any]:
    """The options of generate for a case of cases.json."""
    given = case.get("ip", {})
    options: dict[str, Any] = {
        "voice": case["speaker"], "temperature": 0, "rules": "nemo", "use_kv_cache": case.get("kv", False),
        "use_local_transformer": case["lt"]}
    if not case["cfg"]:
        options["cfg_scale"] = 1.0
    for theirs, ours in (("eos_detection_method", "eos_method"), ("apply_attention_prior", "use_prior"),
                         ("min_generated_frames", "min_frames")):
        if theirs in given:
            options[ours] = given[theirs]
    if "ignore_finished_sentence_tracking" in given:
        options["finished_tracking"] = not given["ignore_finished_sentence_tracking"]
    if "apply_prior_to_layers" in given:  # null: all layers
        options.update(prior_layers=range(layers), alignment_layers=range(layers))
    return options


@pytest.mark.parametrize("case", CASES)
def test_greedy_case(device_model: AcousticModel, software: bool, arrays: dict[str, np.ndarray],
                     cases: dict[str, Any], case: str) -> None:
    if software and case not in SOFTWARE_CASES:
        pytest.skip("takes too long on a GPU that is computed on the CPU")
    spec = cases["cases"][case]
    steps: list[StepTrace] = []
    generation = device_model.generate(arrays[f"text/{spec['text']}"], trace=lambda _, step: steps.append(step),
                                       **case_options(spec, device_model.config.decoder.layers))
    codes = np.stack(list(generation))
    np.testing.assert_array_equal(codes, arrays[f"{case}/codes"])
    np.testing.assert_array_equal(np.concatenate([step.argmax for step in steps]), arrays[f"{case}/argmax_codes"])
    assert len(codes) == arrays[f"{case}/codes_len"]
    assert generation.result.truncated == (generation.result.end_reason == "max_steps")
    if f"{case}/align" in arrays:
        _check_traces(steps, arrays, case)


def _check_traces(steps: list[StepTrace], arrays: dict[str, np.ndarray], prefix: str, offset: int = 0) -> None:
    np.testing.assert_allclose([step.alignment for step in steps], arrays[f"{prefix}/align"], atol=1e-5)
    np.testing.assert_array_equal([step.focus + offset for step in steps if step.focus is not None],
                                  arrays[f"{prefix}/attended"])
    np.testing.assert_allclose([step.prior for step in steps], arrays[f"{prefix}/prior"], atol=1e-6)


def test_pieces(model: AcousticModel, arrays: dict[str, np.ndarray]) -> None:
    steps: dict[int, list[StepTrace]] = {0: [], 1: [], 2: []}
    texts = [arrays[f"text/chunk{piece}"] for piece in range(3)]
    generation = model.generate_pieces(texts, voice=0, temperature=0, rules="nemo", use_kv_cache=False,
                                       trace=lambda piece, step: steps[piece].append(step))
    frames = list(generation)
    assert {frame.kind for frame in frames} == {"speech"}
    for piece in range(3):
        prefix = f"chunks/chunk{piece}"
        codes = np.stack([frame.codes for frame in frames if frame.piece == piece])
        np.testing.assert_array_equal(codes, arrays[f"{prefix}/codes"][:arrays[f"{prefix}/codes_len"]])
        _check_traces(steps[piece], arrays, prefix, int(arrays[f"{prefix}/left_offset"]))
        result = generation.result.pieces[piece]
        assert result.tokens + result.history == len(arrays[f"{prefix}/window_text"])


def test_encoder(device_model: AcousticModel, arrays: dict[str, np.ndarray]) -> None:
    expected = arrays["tf/encoder_out"]
    error = np.abs(device_model.encoder.encode(arrays["tf/text_tokens"]) - expected).max()
    assert error <= 1e-4 * np.sqrt(np.mean(expected ** 2))


@pytest.mark.parametrize("branch", ["cond", "uncond"])
@pytest.mark.parametrize("use_kv_cache", [True, False])
def test_teacher_forced_logits(device_model: AcousticModel, software: bool, arrays: dict[str, np.ndarray], branch: str,
                               use_kv_cache: bool) -> None:
    """Through forced codes and the logit tap. A guidance of 1 is the conditional branch, of 0 the other."""
    model, forced = device_model, arrays["tf/codes"]
    steps = min(len(forced) // model.frames_per_step, SOFTWARE_STEPS if software else len(forced))
    forced = forced[:steps * model.frames_per_step]
    logits: dict[tuple[str, int, int], np.ndarray] = {}
    codes = np.stack(list(model.generate(
        arrays["tf/text_tokens"], voice=0, temperature=0, use_prior=False, cfg_scale=float(branch == "cond"),
        use_kv_cache=use_kv_cache, forced_codes=forced,
        tap=lambda head, step, slot, values: logits.__setitem__((head, step, slot), values.copy()))))
    np.testing.assert_array_equal(codes, forced)
    slots = model.config.slots
    parallel = np.array([[logits["parallel", step, slot] for slot in range(slots)] for step in range(steps)])
    np.testing.assert_allclose(parallel.reshape(steps, -1), arrays[f"tf/{branch}_logits"][:steps], rtol=0, atol=1e-4)
    if branch == "cond":
        local = np.array([[logits["local", step, slot] for slot in range(slots)] for step in range(steps)])
        # The golden covers whole stacks only.
        expected = arrays["tf/lt_logits"][:steps]
        np.testing.assert_allclose(local.reshape(steps, -1)[:len(expected)], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("prior", [False, True])
def test_every_layer_of_the_sequence_graph(device_model: AcousticModel, arrays: dict[str, np.ndarray],
                                           prior: bool) -> None:
    """Hidden states and cross-attention of all positions, with the golden prior row for every query or without."""
    model, frames = device_model, len(arrays["tf/audio_embedded"])
    config = model.config
    engine = StepEngine(model.weights, model.backend, branches=1, columns=64, exact_gelu=model.exact_gelu,
                        alignment_layers=(0,), prior_layers=config.inference.apply_prior_to_layers, column_bucket=64)
    try:
        memory = model.encoder.encode(arrays["tf/text_tokens"])
        engine.begin(model.encoder.project(memory), len(memory), 0, 1.0)
        stage = engine.stages.build_sequence(engine.cross, frames, every_position=True)
        stage.graph.allocate()
        steps = len(arrays["tf/codes"]) // model.frames_per_step
        codes = arrays["tf/codes"][:steps * model.frames_per_step].reshape(steps, -1)
        engine._fill_sequence(stage.io, frames, np.concatenate([engine.bos()[None], codes]))
        engine._fill_text(stage.io, arrays["tf/prior_row"] if prior else None)
        stage.io.upload()
        stage.graph.compute()
        # The last position of a padded stack holds other codes in the golden.
        valid = config.context_frames + 1 + steps
        name = "prior" if prior else "cond"
        normed = stage.graph.outputs["normed"].get()
        np.testing.assert_allclose(normed[:valid], arrays[f"tf/{name}_dec_out"][:valid], rtol=0, atol=1e-4)
        for layer in range(config.decoder.layers):
            probs = stage.graph.outputs[f"probs{layer}"].get().reshape(len(normed), -1)[:valid, :len(memory)]
            np.testing.assert_allclose(probs, arrays[f"tf/{name}_xattn"][layer][:valid], rtol=0, atol=1e-5)
            if not prior:
                hidden = stage.graph.outputs[f"layer{layer}"].get()
                np.testing.assert_allclose(hidden[:valid], arrays[f"tf/cond_dec_layer{layer}"][:valid], rtol=0,
                                           atol=1e-4)
        stage.close()
    finally:
        engine.close()
