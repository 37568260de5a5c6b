"""Check MagCache's plan: the authors' rule, combinations that are refused, and the effect on a video's time."""

import pytest

from backend.catalog.measured_ratios import add_measured_ratios
from backend.engine.estimate import predicted_seconds
from backend.errors import RequestError
from backend.sampling.solvers import schedule_for_request
from backend.schemas.mag_cache import REUSED_COST, find_magnitudes
from backend.schemas.request import GenerationRequest, example_request
from backend.schemas.shape import Shape
from backend.schemas.step_plan import plan_steps
from backend.schemas.windows import equivalent_tokens, step_calls
from presets import list_presets, load_preset
from presets.magnitude_files import (
    MAGNITUDES_FOLDER,
    BranchRatios,
    Magnitudes,
    magnitudes_file_name,
    published_magnitudes,
    read_magnitudes,
    write_magnitudes,
)
from tests.backend.conftest import request
from tests.backend.engine.test_predicted import EIGHT

PUBLISHED = {  # the authors' published settings, and the speed-up of a video: their README files
    ("wan2.1-t2v-14b-720p", 0.24): (0.2, 6, 2.8),
    ("wan2.1-t2v-1.3b-480p", 0.12): (0.2, 4, 2.8),
    ("wan2.1-i2v-14b-720p", 0.24): (0.2, 6, 3.05),
    ("wan2.1-i2v-14b-480p", 0.12): (0.2, 4, 2.83),
    ("wan2.2-t2v-a14b-480p", 0.06): (0.4, 2, 1.49),
    ("wan2.2-i2v-a14b-480p", 0.06): (0.1, 2, 1.33),
    ("wan2.2-ti2v-5b-720p", 0.06): (0.2, 2, 1.97),
    ("wan2.1-vace-1.3b-480p", 0.02): (0.2, 3, None),
}


def asked(name: str, **changes) -> GenerationRequest:
    preset = load_preset(name)
    image = {"image": "/first.png"} if preset.tasks == ("i2v",) else {}
    return GenerationRequest.from_preset(preset, **{"prompt": "x", "seed": 1} | image | changes)


def by_the_authors(flat, steps, threshold, retention, longest, split=None, late_only=False) -> list[bool]:
    """Return which network calls the authors' loop skips. The calls for the prompt and for the other branch alternate, and each
    branch counts separately. `split` is the second expert's first step. This loop restarts its counts there, as our plan does. The
    authors' counts continue.
    """
    calls, skips = 2 * steps, []
    ratio, error, row = [1.0, 1.0], [0.0, 0.0], [0, 0]
    for call in range(calls):
        if split is None:
            keeps = call < int(calls * retention)
        elif late_only:
            keeps = call < int(2 * split + (calls - 2 * split) * retention)
        else:
            late = 2 * split <= call <= (calls - 2 * split) * retention + 2 * split
            keeps = call < int(2 * split * retention) or late
        branch, skip = call % 2, False
        if split is not None and call - branch == 2 * split:
            ratio[branch], error[branch], row[branch] = 1.0, 0.0, 0
        if not keeps:
            ratio[branch] *= flat[call]
            row[branch] += 1
            error[branch] += abs(1 - ratio[branch])
            skip = error[branch] < threshold and row[branch] <= longest
            if not skip:
                ratio[branch], error[branch], row[branch] = 1.0, 0.0, 0
        skips.append(skip)
    return skips


def nearest(values, count):
    """Interpolate values as the authors do."""
    scale = (len(values) - 1) / (count - 1)
    return [values[round(index * scale)] for index in range(count)]


@pytest.mark.parametrize("steps", [None, 20, 37])
@pytest.mark.parametrize(("name", "threshold"), PUBLISHED)
def test_the_plan_is_the_authors_and_both_branches_agree(name, threshold, steps):
    retention, longest, _ = PUBLISHED[name, threshold]
    wanted = asked(name, mag_cache=threshold, **({"steps": steps} if steps else {}))
    known, plan = find_magnitudes(wanted), plan_steps(wanted)
    assert (known.retention, known.max_reuses_in_a_row(threshold)) == (retention, longest)
    ratios = known.ratios[wanted.task]
    flat = [
        one for pair in zip(*(nearest(each, wanted.steps) for each in (ratios.prompt, ratios.other)), strict=True) for one in pair
    ]
    split = sum(step.expert == 0 for step in plan) if load_preset(name).boundary else None
    theirs = by_the_authors(flat, wanted.steps, threshold, retention, longest, split, known.late_only)
    both = [left and right for left, right in zip(theirs[0::2], theirs[1::2], strict=True)]
    ours = [step.reuses for step in plan]
    apart = [index for index in range(wanted.steps) if theirs[2 * index] != theirs[2 * index + 1]]
    if not apart:
        assert ours == both
    else:  # there one branch continues alone; here neither continues, and both restart their counts
        assert ours[: apart[0]] == both[: apart[0]] and not ours[apart[0]]


@pytest.mark.parametrize(("name", "threshold"), [key for key, (*_, factor) in PUBLISHED.items() if factor])
def test_so_many_steps_are_left_that_the_published_factors_follow(name, threshold):
    """The speed-up must agree within a fifth, because the authors time whole videos on a GPU."""
    reuses = [step.reuses for step in plan_steps(asked(name, mag_cache=threshold))]
    assert len(reuses) / (len(reuses) - sum(reuses)) == pytest.approx(PUBLISHED[name, threshold][2], rel=1 / 5)


def test_the_plan_has_the_levels_of_the_solvers_tables():
    for preset in list_presets():
        for solver in preset.solvers:
            wanted = example_request(preset, solver=solver)
            schedule, plan = schedule_for_request(wanted), plan_steps(wanted)
            assert schedule.timesteps.tolist() == [step.timestep for step in plan], preset.name
            assert schedule.sigmas[:-1].tolist() == pytest.approx([step.sigma for step in plan], rel=1e-6), preset.name


@pytest.mark.parametrize(
    "changes",
    [
        {"guidance_interval": (0.0, 0.6)},
        {"video": "/clip.mp4", "strength": 0.6, "trim": (0.0, 5.0625)},
        {"guidance": (1.0,)},
        {"steps": 1},
        {"steps": 2},
    ],
)
def test_a_step_reuses_only_one_of_its_own_lane(changes):
    wanted = asked("wan2.1-t2v-14b-720p", mag_cache=0.24, **changes)
    plan = plan_steps(wanted)
    assert len(plan) == wanted.num_steps and not plan[0].reuses
    assert all(plan[index].context_key == plan[index - 1].context_key for index in range(len(plan)) if plan[index].reuses)
    assert wanted.num_steps < 3 or any(step.reuses for step in plan)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_cache": 0.1}, "mag_cache cannot be combined with step_cache; set step_cache to 0"),
        ({"cfg_zero": True}, "mag_cache cannot be combined with cfg_zero; leave one out"),
        ({"mag_cache": 2}, "mag_cache=2 must be between 0 and 1; 0 is off, 0.06 to 0.24 is usual"),
        (
            {"num_frames": 129},
            "mag_cache cannot be combined with context windows; choose a shorter video, or --no-windows",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes, words):
    with pytest.raises(RequestError) as refused:
        asked("wan-tiny", **{"mag_cache": 0.1} | changes)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    "name", ["wan2.2-t2v-a14b-480p-fast", "ltx-2.0-512p", "ltx-tiny", "wan-live-tiny", "hunyuanvideo-1.5-i2v-480p-fast"]
)
def test_presets_in_few_steps_with_sound_or_live_take_none(name):
    assert not load_preset(name).takes_mag_cache
    with pytest.raises(RequestError, match=f"^mag_cache was given, and {name} does not support it; leave it out$"):
        asked(name, mag_cache=0.1)


def test_a_model_that_nobody_has_measured_is_refused_with_the_command_that_does(tmp_path):
    with pytest.raises(RequestError, match="`python app.py measure-cache --preset hunyuanvideo-1.5-t2v-720p` measures it"):
        add_measured_ratios(asked("hunyuanvideo-1.5-t2v-720p", mag_cache=0.1), tmp_path)
    with pytest.raises(RequestError, match="--preset hunyuanvideo-1.5-i2v-720p --image FILE` measures it"):
        add_measured_ratios(asked("hunyuanvideo-1.5-i2v-720p", mag_cache=0.1), tmp_path)


def test_measured_ratios_come_from_the_data_folder_into_the_request(tmp_path):
    preset = load_preset("hunyuanvideo-1.5-t2v-720p")
    own = BranchRatios(prompt=(1.0, 0.99, 0.98), other=(1.0, 0.97, 0.96))
    write_magnitudes(
        Magnitudes(source="a test", ratios={"t2v": own}), tmp_path / "magnitudes" / magnitudes_file_name(preset.model)
    )
    wanted = add_measured_ratios(asked(preset.name, mag_cache=0.1), tmp_path / "magnitudes")
    assert wanted.mag_ratios == (1.0, 1.0, 0.99, 0.97, 0.98, 0.96) and any(step.reuses for step in plan_steps(wanted))
    (tmp_path / "magnitudes" / magnitudes_file_name(preset.model)).unlink()
    assert plan_steps(GenerationRequest.from_stored(wanted.to_json())) == plan_steps(wanted)
    assert wanted.with_changes(mag_cache=0.0).mag_ratios == () and asked(preset.name).to_json().keys().isdisjoint({"mag_ratios"})


@pytest.mark.parametrize("ratios", [[1.0], [1.0, float("nan")], [0.0, 1.0], [1.0] * 2002, [1.0, 1e9]])
def test_ratios_that_no_measurement_gives_are_refused_from_a_video_too(ratios):
    with pytest.raises(RequestError, match="mag_ratios"):
        GenerationRequest.from_stored(request().to_json() | {"mag_ratios": ratios})


def test_a_file_that_is_none_counts_as_missing(tmp_path):
    for text in ("{", "[]", '{"source": "x", "ratios": {"t2v": {"prompt": [], "other": []}}}'):
        (tmp_path / "one.json").write_text(text)
        assert read_magnitudes(tmp_path / "one.json") is None


def test_every_file_belongs_to_a_preset_and_says_where_it_is_from():
    models = {magnitudes_file_name(preset.model): preset for preset in list_presets()}
    for path in MAGNITUDES_FOLDER.iterdir():
        known = read_magnitudes(path)
        assert known.source and set(known.ratios) <= set(models[path.name].tasks), path.name
        assert all(len(one.prompt) == len(one.other) and one.prompt[0] == 1 for one in known.ratios.values())


def test_what_is_written_is_what_is_read(tmp_path):
    known = published_magnitudes("Wan-AI/Wan2.2-I2V-A14B-Diffusers")
    write_magnitudes(known, tmp_path / "new" / "one.json")
    assert read_magnitudes(tmp_path / "new" / "one.json") == known


def test_a_video_with_it_has_programs_of_its_own_and_takes_less_time():
    plain, cached = asked("wan2.1-t2v-14b-720p"), asked("wan2.1-t2v-14b-720p", mag_cache=0.24)
    assert Shape.from_request(plain) != Shape.from_request(cached)
    assert sum(step_calls(cached)) == 18
    assert predicted_seconds(cached, EIGHT) == pytest.approx(predicted_seconds(plain, EIGHT) * 18 / 50)
    assert equivalent_tokens(cached) == pytest.approx(
        equivalent_tokens(plain) * ((18 + 32 * REUSED_COST) / 50) ** (1 / 1.5), rel=0.001
    )
