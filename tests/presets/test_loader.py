"""The preset files are complete, consistent, and found only by name."""

import itertools
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from backend.engine.estimate import predicted_seconds
from backend.models import find_family
from backend.models.spec import check_preset
from backend.schemas.request import example_request
from backend.schemas.step_plan import plan_steps
from backend.schemas.worker import Device
from presets import Preset, UnknownPreset, list_presets, load_preset, reference
from presets.loader import BASES, PRESET_FOLDER, find_files

FULL = ["wan2.1-flf2v-14b-720p", "wan2.1-i2v-14b-480p", "wan2.1-i2v-14b-720p", "wan2.1-t2v-1.3b-480p", "wan2.1-t2v-14b-480p",
        "wan2.1-t2v-14b-720p", "wan2.2-i2v-a14b-480p", "wan2.2-i2v-a14b-720p", "wan2.2-t2v-a14b-480p", "wan2.2-t2v-a14b-720p",
        "wan2.2-ti2v-5b-720p"]  # fmt: skip
WITHOUT_DISTILLED_LORA = ["wan2.1-flf2v-14b-720p", "wan2.1-t2v-1.3b-480p", "wan2.2-ti2v-5b-720p"]
HUNYUAN = [f"hunyuanvideo-1.5-{task}-{size}" for task in ("t2v", "i2v") for size in ("480p", "720p")]
DRAFTS = [f"{name}-draft" for name in FULL + HUNYUAN]
FAST = [f"{name}-fast" for name in FULL if name not in WITHOUT_DISTILLED_LORA]
DISTILLED = [f"hunyuanvideo-1.5-{name}-distilled" for name in ("t2v-480p", "i2v-480p", "i2v-720p")]
TURBO = ["wan2.2-ti2v-5b-720p-turbo"]
VACE = ["wan2.1-vace-1.3b-480p", "wan2.1-vace-14b-720p", "wan2.2-vace-fun-a14b-720p"]
STEP_DISTILLED = ["hunyuanvideo-1.5-i2v-480p-fast"]
SPARSE_HUNYUAN = ["hunyuanvideo-1.5-i2v-720p-sparse"]
LIVE = ["wan2.1-live-1.3b-480p", "causal-forcing-1.3b-480p", "longlive-1.3b-480p", "matrix-game-2.0"]
ANIMATE = ["wan2.2-animate-2-14b", "wan2.2-animate-2-14b-fast", "wan2.2-animate-14b"]
LTX = ["ltx-2.5-704p", "ltx-2.5-704p-fast", "ltx-2.5-1024p-fast", "ltx-2.3-704p", "ltx-2.3-704p-fast", "ltx-2.0-512p"]
TURBOWAN = ["turbowan2.1-t2v-1.3b-480p", "turbowan2.1-t2v-14b-480p", "turbowan2.1-t2v-14b-720p", "turbowan2.2-i2v-a14b-720p"]
FASTWAN = ["fastwan2.1-t2v-1.3b-480p", "fastwan2.1-t2v-14b-480p", "fastwan2.2-ti2v-5b-720p"]
LESS = ["ltx-tiny", "ltx-2.5-1024p-fast", "turbowan2.2-i2v-a14b-720p"]  # these presets offer less than their model could accept
LTX_DRAFTS = ["ltx-2.5-704p-draft", "ltx-2.3-704p-draft", "ltx-2.0-512p-draft"]
EMBEDDED = ["wan-tiny", "wan-tiny-turbo", "hunyuan-tiny", "ltx-tiny", "wan-tiny-animate", "wan-tiny-vace", "wan-live-tiny"]
NAMES = [
    *EMBEDDED,
    *FULL,
    *HUNYUAN,
    *DRAFTS,
    *FAST,
    *TURBO,
    *VACE,
    *ANIMATE,
    *DISTILLED,
    *STEP_DISTILLED,
    *SPARSE_HUNYUAN,
    *LTX,
    *LTX_DRAFTS,
    *TURBOWAN,
    *FASTWAN,
    *LIVE,
]
WAN = [name for name in FULL + DRAFTS + FAST + TURBO + VACE if name.startswith("wan2")]
OF_HUNYUAN = [name for name in NAMES if name.startswith("hunyuanvideo")]


def test_the_list_begins_with_the_demo_models_then_the_newest_wan_and_ends_with_live_ones():
    names = [preset.name for preset in list_presets()]
    assert sorted(names) == sorted(NAMES) and names[: len(EMBEDDED)] == EMBEDDED
    assert names[len(EMBEDDED) :][:7] == [
        *("wan2.2-t2v-a14b-480p", "wan2.2-t2v-a14b-480p-draft", "wan2.2-t2v-a14b-480p-fast"),
        *("wan2.2-t2v-a14b-720p", "wan2.2-t2v-a14b-720p-draft", "wan2.2-t2v-a14b-720p-fast"),
        "wan2.2-ti2v-5b-720p",
    ]
    order = ["wan2.2", "wan2.1", "ltx-2.5", "ltx-2.3", "ltx-2.0", "hunyuanvideo"]
    series = [load_preset(name).series for name in names[len(EMBEDDED) : -4]]
    families = [next(each for each in order if one.startswith(each)) for one in series]
    assert list(dict.fromkeys(families)) == order
    assert families == sorted(families, key=order.index) and names[-4:] == LIVE


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(("-draft", "-fast", "-turbo", "-distilled"))])
def test_a_variant_stands_under_its_own_preset(name):
    names, plain = [preset.name for preset in list_presets()], name.rpartition("-")[0]
    if plain not in names:  # it is listed with the fast presets of its version
        plain = load_preset(name).series
        assert names[names.index(name) - 1].startswith(plain)
        return
    between = names[names.index(plain) : names.index(name)]
    assert between and all(one.startswith(plain) for one in between)


@pytest.mark.parametrize("name", DRAFTS + LTX_DRAFTS)
def test_a_draft_is_less_work_and_knows_its_full_preset(name):
    draft = load_preset(name)
    full = load_preset(draft.draft_of)
    assert full.name == name.removesuffix("-draft")
    assert draft.steps < full.steps and (draft.step_cache > 0) == (name in DRAFTS) and full.step_cache == 0
    for same in ("model", "tasks", "takes", "guidance", "flow_shift", "solver", "boundary", "num_frames", "negative_prompt"):
        assert getattr(draft, same) == getattr(full, same)
    for same in ("sound_guidance", "perturbed_guidance", "modality_guidance", "guidance_rescale", "image_crf", "architecture"):
        assert getattr(draft, same) == getattr(full, same)
    if name.endswith(("480p-draft", "512p-draft")):  # the same seed draws the same noise at the same size only
        assert (draft.width, draft.height) == (full.width, full.height)


@pytest.mark.parametrize("name", FAST)
def test_a_fast_preset_is_the_distilled_one(name):
    fast, full = load_preset(name), load_preset(name.removesuffix("-fast"))
    assert (fast.steps, fast.flow_shift, fast.solver) == (4, 5.0, "euler-distilled") and set(fast.guidance) == {1.0}
    assert (fast.model, fast.width, fast.height, fast.boundary) == (full.model, full.width, full.height, full.boundary)
    assert [lora.expert for lora in fast.loras] == (["high", "low"] if full.num_experts == 2 else ["both"])
    for lora in fast.loras:
        kind, file = "i2v" if "i2v" in name else "t2v", lora.source.partition(":")[2].lower()
        assert lora.is_on_hub and kind in file and (lora.expert == "both" or f"_{lora.expert}_" in file)


@pytest.mark.parametrize("name", NAMES)
def test_a_presets_own_checkpoint_agrees_with_it_in_all_facts(name):
    check_preset(find_family(load_preset(name))[1], load_preset(name), name)


@pytest.mark.parametrize("name", NAMES[len(EMBEDDED) :])
def test_a_presets_networks_are_of_a_family_that_we_run(name):
    preset = load_preset(name)
    _, spec = find_family(preset)
    assert spec.name == _kind_name(name)
    assert (spec.tasks, spec.num_experts, spec.boundary) == (preset.tasks, preset.num_experts, preset.boundary)
    if name in LESS:
        assert preset.inputs.items() < spec.inputs.items() and spec.continues >= preset.continues
    else:
        assert (spec.inputs, spec.continues) == (preset.inputs, preset.continues)
    assert example_request(preset).geometry().num_tokens > 0


def _kind_name(preset: str) -> str:
    words = preset.split("-")
    if preset in LIVE and not preset.startswith("matrix-game"):
        return "wan2.1-live"
    if preset == "wan2.2-animate-14b":
        return "wan2.2-animate-poses"
    if not preset.startswith("hunyuanvideo"):
        return "-".join([re.sub("^(turbo|fast)wan", "wan", words[0]), words[1]])
    return "-".join([*words[:3], "meanflow"] if preset in STEP_DISTILLED else words[:3])


@pytest.mark.parametrize("name", DISTILLED + STEP_DISTILLED)
def test_a_distilled_checkpoint_runs_without_guidance(name):
    distilled, full = load_preset(name), load_preset(name.rpartition("-")[0])
    assert distilled.guidance == (1.0,) and distilled.model != full.model
    assert distilled.model.startswith(full.model) and distilled.model.endswith("distilled")
    same = ("tasks", "width", "height", "num_frames", "fps", "solver", *(("steps", "flow_shift") if name in DISTILLED else ()))
    assert all(getattr(distilled, field) == getattr(full, field) for field in same)
    assert name in DISTILLED or (distilled.steps, distilled.flow_shift, distilled.solvers) == (12, 7.0, ("euler-distilled",))


@pytest.mark.parametrize("name", OF_HUNYUAN)
def test_the_regions_that_a_licence_excludes_are_said(name):
    """The picker states the regions in two languages, and the sentence before a download states them too."""
    preset = load_preset(name)
    assert "the EU, the UK and South Korea" in preset.description and "欧盟、英国和韩国" in preset.words("zh").description
    assert "the European Union, the United Kingdom and South Korea" in preset.licence


@pytest.mark.parametrize("name", TURBOWAN + FASTWAN)
def test_a_model_of_few_steps_runs_without_guidance_and_with_its_own_attention(name):
    preset = load_preset(name)
    assert preset.steps == preset.max_steps == (4 if name in TURBOWAN else 3)
    assert set(preset.guidance) == {1.0} and preset.negative_prompt == "" and not preset.takes_progressive
    expected = "sla" if name in TURBOWAN else None if "5b" in name else "vsa"
    assert find_family(preset)[1].sparse_attention == expected
    assert preset.solver == ("dmd" if name in FASTWAN else "rcm-ode" if "a14b" in name else "rcm") and not preset.takes_flow_shift
    assert preset.sigma_max == (200.0 if "a14b" in name else 80.0)
    assert preset.sparse_keep == (0.2 if name == "fastwan2.1-t2v-1.3b-480p" else 0.1)


def test_the_sparse_hunyuanvideo_has_its_own_transformer_and_no_guidance():
    preset = load_preset(*SPARSE_HUNYUAN)
    assert (preset.guidance, preset.flow_shift, find_family(preset)[1].sparse_attention) == ((1.0,), 9.0, "ssta")


@pytest.mark.parametrize("name", TURBOWAN + FASTWAN)
def test_a_licence_whose_page_nobody_has_seen_is_no_fact(name):
    tagged = ("turbowan2.1-t2v-1.3b-480p", "turbowan2.1-t2v-14b-720p", "fastwan2.1-t2v-14b-480p")
    preset = load_preset(name)
    last = preset.model.rpartition("+")[2].partition(":")[0]
    assert (preset.licence == "") == (name in tagged)
    assert name in tagged or ("have not seen" in preset.licence and last in preset.licence)


def test_what_is_known_of_longlives_licence_is_said():
    preset = load_preset("longlive-1.3b-480p")
    assert "Apache 2.0" in preset.description and "Apache 2.0" in preset.words("zh").description
    assert "CC-BY-NC-SA 4.0" in preset.licence and "have not seen" in preset.licence


@pytest.mark.parametrize("name", FULL + VACE)
def test_experts_split_the_official_steps(name):
    preset = load_preset(name)
    experts = [step.expert for step in plan_steps(example_request(preset))]
    assert set(experts) == set(range(preset.num_experts)) and experts == sorted(experts)


def _header(file: Path) -> str:
    """Return the comment lines at the beginning of a file."""
    return "\n".join(itertools.takewhile(lambda line: line.startswith("#"), file.read_text("utf-8").splitlines()))


@pytest.mark.parametrize("name", NAMES)
def test_a_header_says_the_time_and_may_leave_hardware_and_source_to_a_base(name):
    own, *inherited = map(_header, find_files(name))
    assert own.count("# time: ") == 1 and own.count("\n") < 6
    for word in ("# hardware: ", "# source: "):
        assert any(word in header for header in (own, *inherited))


def test_no_base_file_states_a_time():
    """A preset must not inherit the time of another one."""
    assert [file.name for file in (PRESET_FOLDER / BASES).iterdir() if "# time:" in _header(file)] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name not in EMBEDDED])
def test_a_header_says_the_cost_that_is_predicted(name):
    time = r"^# time: ([\d.]+) s of denoising on (v6e-8|one v6e chip)\b.*, predicted$"
    seconds, hardware = re.search(time, _header(PRESET_FOLDER / f"{name}.toml"), re.MULTILINE).groups()
    chips = [Device(name=f"tpu:{index}", kind="TPU v6 lite") for index in range(8 if hardware == "v6e-8" else 1)]
    assert float(seconds) == pytest.approx(predicted_seconds(example_request(load_preset(name)), chips), rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_among_what_is_offered(name):
    preset = load_preset(name)
    assert (preset.width, preset.height) in preset.sizes
    assert preset.num_frames in preset.frame_counts
    assert preset.size_multiple % preset.vae_scale_spatial == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_speaks_both_languages(name):
    preset = load_preset(name)
    english, chinese = preset.words("en"), preset.words("zh")
    assert (english.title, english.description, english.examples) == (preset.title, preset.description, preset.examples)
    said = [[words.title, words.description, *words.examples, *words.image_examples] for words in (english, chinese)]
    assert all(re.search("[一-鿿]", translated) and translated != own for own, translated in zip(*said, strict=True))
    assert set(re.findall(r"\d+x\d+", chinese.description)) == set(re.findall(r"\d+x\d+", english.description))


def test_no_two_presets_share_a_title():
    for language in ("en", "zh"):
        assert len({preset.words(language).title for preset in list_presets()}) == len(NAMES)


def test_a_preset_without_chinese_speaks_english():
    preset = Preset(**load_preset("wan-tiny").model_dump() | {"zh": None})
    assert preset.words("zh") == preset.words("en") == preset.words("fr")


def test_a_table_named_by_a_languages_code_is_its_translation():
    chinese = load_preset("wan-tiny").words("zh")
    preset = Preset(**load_preset("wan-tiny").model_dump() | {"fr": chinese.model_dump() | {"title": "Démonstration"}})
    assert preset.words("fr").title == "Démonstration" and preset.words("zh") == chinese
    with pytest.raises(ValidationError, match=r"\[fr\] must caption all"):
        Preset(**load_preset("wan-tiny").model_dump() | {"fr": chinese.model_dump() | {"examples": ()}})


def test_the_reference_page_describes_every_field():
    assert reference.PAGE.read_text("utf-8") == reference.render_page(), "run `python -m presets.reference`"
    assert all(f"\n| `{name}` |" in reference.render_page() for name in Preset.model_fields)


@pytest.mark.parametrize("name", WAN)
def test_wan_presets_carry_the_official_negative_prompt(name):
    preset = load_preset(name)
    prefix = {"wan2.1-i2v": "镜头晃动，", "wan2.1-flf2v": "镜头切换，镜头晃动，"}.get("-".join(name.split("-")[:2]), "")
    assert preset.negative_prompt.startswith(prefix + "色调艳丽，过曝，静态，")
    assert preset.negative_prompt.endswith("背景人很多，倒着走")
    assert len(preset.negative_prompt.removeprefix(prefix).split("，")) == 28


def test_the_embedded_model_lies_in_the_project():
    assert load_preset("wan-tiny").model_source.endswith("/models/wan-tiny")
    assert load_preset("wan2.1-t2v-14b-480p").model_source == "Wan-AI/Wan2.1-T2V-14B-Diffusers"


def test_an_unknown_name_gets_the_names_and_the_nearest():
    with pytest.raises(UnknownPreset) as caught:
        load_preset("wan-tny")
    assert str(caught.value) == f"preset='wan-tny' must be one of {', '.join(sorted(NAMES))}; did you mean wan-tiny?"


@pytest.mark.parametrize("name", ["", "../presets/wan-tiny", "wan-tiny.toml", "/etc/passwd"])
def test_a_name_is_never_a_path(name):
    with pytest.raises(UnknownPreset):
        load_preset(name)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [[100, 128]]},
        {"frame_counts": [18]},
        {"num_frames": 165},
        {"windows_above": 33, "trained_frames": None},
        {"trained_frames": 30},
        {"steps": 101},
        {"colour": "red"},
        {"examples": ["one"]},
        {"solver": "rcm", "solvers": ["rcm", "rcm-ode"], "steps": 4},
        {"solver": "dmd", "solvers": ["rcm", "dmd"], "steps": 4, "max_steps": 4},
        {"sigma_max": 14.0},
        {"solvers": ["unipc", "rcm"], "makes_sound": True},
    ],
)
def test_a_preset_that_contradicts_itself_is_refused(change):
    with pytest.raises(ValidationError):
        Preset(**{**load_preset("wan-tiny").model_dump(), **change})
