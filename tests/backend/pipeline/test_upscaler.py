"""Compare upscalers with PyTorch's run of spandrel's classes, in tiles and on several devices. Other files and hostile files
are refused.
"""

import functools
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from backend.checkpoints.upscalers import UpscalerFile, find_upscaler
from backend.errors import ModelError, RequestError
from backend.pipeline import upscaler as module
from backend.pipeline.upscaler import Tiling, Upscaler, halved, read_model
from backend.runtime.picture_models import _import_spandrel
from backend.runtime.real_esrgan import build_real_esrgan
from backend.settings import PROJECT_FOLDER
from backend.weights.read import read_tensor
from tests.many_devices import without_quick

CLOSE = 1e-3  # the promise for values in 0..1; both run in float32, and the order of their sums changes about 1e-6
LEVELS = 1  # in levels of 0..255: a tiny difference can change the rounding


def frames(count: int, height: int, width: int) -> list[np.ndarray]:
    numbers = np.random.default_rng(0)
    small = numbers.integers(0, 256, (count, height // 4 + 1, width // 4 + 1, 3))
    return [np.kron(one, np.ones((4, 4, 1)))[:height, :width].astype(np.uint8) for one in small]


@functools.cache
def embedded() -> Upscaler:
    return Upscaler(read_model(find_upscaler("animevideov3", Path("/nowhere"))), jax.devices())


@functools.cache
def by_pytorch():
    """Spandrel's own object with the same weights."""
    places = find_upscaler("animevideov3", Path("/nowhere")).tensors()
    return (
        _import_spandrel()
        .ModelLoader("cpu")
        .load_from_state_dict({name: read_tensor(place).float() for name, place in places.items()})
    )


def expected(given: list[np.ndarray]) -> np.ndarray:
    """Return PyTorch's result, [N, 3, 4 H, 4 W] in 0..1."""
    with torch.no_grad():
        return by_pytorch()(torch.from_numpy(np.stack(given)).permute(0, 3, 1, 2) / 255).numpy()


def larger(upscaler: Upscaler, given: list[np.ndarray], scale: int, tiling: Tiling | None = None) -> np.ndarray:
    tiling = tiling or upscaler.plan_tiling(*given[0].shape[:2])
    return np.stack(list(upscaler.upscale_frames(iter(given), tiling, scale, upscaler.choose_batch_size(tiling, len(given)))))


def test_the_embedded_model_makes_what_pytorch_makes_of_spandrels_class():
    given = frames(3, 30, 41)
    pictures = np.stack(given).transpose(0, 3, 1, 2).astype(np.float32) / 255
    weights = embedded()._weights
    made = np.asarray(jax.jit(embedded().model)(weights, pictures))
    assert by_pytorch().architecture.name == "RealESRGAN Compact" and made.std() > 0.1
    np.testing.assert_allclose(made, expected(given), atol=CLOSE)
    pixels = (expected(given) * 255).round().transpose(0, 2, 3, 1)
    assert np.abs(larger(embedded(), given, 4) - pixels).max() <= LEVELS


@pytest.mark.parametrize("name", ["animevideov3", "x4plus-anime"])
def test_real_esrgan_is_built_without_spandrel_and_equals_its_class(name):
    tensors = {key: read_tensor(place).float() for key, place in find_upscaler(name, Path("/nowhere")).tensors().items()}
    network, expected = build_real_esrgan(tensors), _import_spandrel().ModelLoader("cpu").load_from_state_dict(dict(tensors))
    picture = torch.from_numpy(np.stack(frames(1, 9, 13))).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        torch.testing.assert_close(network(picture), expected.model(picture), atol=CLOSE, rtol=0)
    assert network.scale == expected.scale and network.name == expected.architecture.name


def test_without_spandrel_the_embedded_models_work_and_others_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "spandrel", None)
    assert read_model(find_upscaler("x4plus-anime", Path("/nowhere"))).scale == 4
    with pytest.raises(ModelError, match="run `pip install --no-deps -r requirements-upscalers.txt`"):
        read_model(own(tmp_path, torch.nn.Linear(4, 4)))


def test_spandrel_is_imported_without_torchvision():
    load = "from backend.runtime.picture_models import _import_spandrel\n_import_spandrel()"
    script = f"import sys, tests\n{load}\nprint(sys.modules.get('torchvision'))"
    hidden = f"import sys\nsys.meta_path.insert(0, type('No', (), {{'find_spec': staticmethod(refuse)}}))\n{script}"
    refuse = "def refuse(name, *rest):\n    assert not name.startswith('torchvision'), name\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", refuse + hidden], cwd=PROJECT_FOLDER, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr[-2000:]


def test_half_its_scale_is_pytorchs_bicubic_half():
    given = frames(2, 20, 26)
    half = torch.nn.functional.interpolate(torch.from_numpy(expected(given)), scale_factor=0.5, mode="bicubic").clamp(0, 1)
    pixels = (half.numpy() * 255).round().transpose(0, 2, 3, 1)
    assert np.abs(larger(embedded(), given, 2) - pixels).max() <= LEVELS
    line = jax.numpy.arange(6.0).reshape(1, 6)
    np.testing.assert_allclose(halved(line, 1)[0, 1], 2.5, atol=1e-6)  # the middle between its neighbours


def test_tiles_that_overlap_make_what_the_whole_frame_makes():
    """The network sees 18 pixels around each pixel, less than the overlap of the tiles."""
    given = frames(2, 100, 170)
    tiling = Tiling.plan(100, 170, 9000)
    assert tiling.num_tiles > 2 and all(height <= 100 for height in tiling.tile)
    assert np.abs(larger(embedded(), given, 4, tiling).astype(int) - larger(embedded(), given, 4)).max() <= LEVELS


@pytest.mark.parametrize(("height", "width", "most"), [(720, 1280, 350_000), (540, 960, 9000), (16, 16, 1), (97, 1000, 8000)])
def test_tiles_cover_every_frame_once(height, width, most):
    tiling = Tiling.plan(height, width, most)
    frame = np.arange(height * width * 3, dtype=np.uint32).reshape(height, width, 3)
    tiles = tiling.cut_tiles(frame)
    assert all(tile.shape[:2] == tiling.tile for tile in tiles) and len(tiles) == tiling.num_tiles
    assert tiling.tile[0] * tiling.tile[1] <= max(most, (4 * module.MARGIN) ** 2)
    low = [(tile % 251).astype(np.uint8) for tile in tiles]
    np.testing.assert_array_equal(tiling.join_tiles(low, 1), frame % 251)


def test_batches_are_even_and_no_larger_than_needed():
    tiling = embedded().plan_tiling(96, 96)
    assert (tiling.num_tiles, embedded().choose_batch_size(tiling, 17), embedded().choose_batch_size(tiling, 3)) == (1, 6, 3)


SPREAD = """
import json, sys
sys.path.insert(0, ".")
import tests
from tests.backend.pipeline.test_upscaler import embedded, frames, larger
import jax, numpy as np
upscaler, given = embedded(), frames(5, 24, 32)
batch = upscaler.choose_batch_size(upscaler.plan_tiling(24, 32), 5)
placed = upscaler.describe_tiles(upscaler.plan_tiling(24, 32), batch).sharding
np.save(sys.argv[1], larger(upscaler, given, 4))
print(json.dumps([len(jax.devices()), batch, len(placed.device_set), placed.is_fully_replicated]))
"""


def test_frames_are_spread_over_all_devices_and_come_back_in_order(tmp_path):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-W", "ignore", "-c", SPREAD, str(tmp_path / "made.npy")]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=without_quick() | flags, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [4, 8, 4, False]
    assert np.abs(np.load(tmp_path / "made.npy").astype(int) - larger(embedded(), frames(5, 24, 32), 4)).max() <= LEVELS


def test_a_scale_that_the_model_does_not_have_is_one_sentence():
    with pytest.raises(RequestError, match="upscale=3 is not supported by animevideov3, whose scale is 4; use 4"):
        embedded().check_scale(3, "animevideov3")


def own(tmp_path: Path, network: torch.nn.Module, name: str = "own.safetensors") -> UpscalerFile:
    torch.manual_seed(1)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    tensors = {key: value.contiguous() for key, value in network.state_dict().items()}
    path = tmp_path / name
    if path.suffix == ".pth":
        torch.save({"params_ema": tensors}, path, _use_new_zipfile_serialization="old" not in name)
    else:
        save_file(tensors, path)
    return UpscalerFile(name=name, path=path)


def dense():
    from spandrel.architectures.ESRGAN import ESRGAN

    return ESRGAN(scale=2, num_blocks=1, num_filters=8)


def by_keywords():
    from spandrel.architectures.SPAN import SPAN

    return SPAN(num_in_ch=3, num_out_ch=3, feature_channels=8, upscale=2)


def windows():
    from spandrel.architectures.SwinIR import SwinIR

    sizes = {"img_size": 16, "window_size": 8, "depths": [1], "embed_dim": 8, "num_heads": [2]}
    return SwinIR(**sizes, upscale=2, upsampler="pixelshuffledirect")


@pytest.mark.parametrize(
    ("make", "name", "scale"),
    [(dense, "own.safetensors", 2), (dense, "own.pth", 2), (dense, "old.pth", 2), (by_keywords, "own.pth", 2)]
    + [pytest.param(windows, "own.pth", 2, marks=pytest.mark.slow)],
)
def test_files_that_people_have_make_what_pytorch_makes_of_them(tmp_path, make, name, scale):
    _import_spandrel()
    network = make()
    file = own(tmp_path, network, name)  # also sets the network's random weights
    upscaler = Upscaler(read_model(file), jax.devices())
    given = frames(1, 24, 28)
    with torch.no_grad():
        picture = torch.from_numpy(np.stack(given)).permute(0, 3, 1, 2) / 255
        pixels = network.eval()(picture).clamp(0, 1).numpy()
    assert upscaler.scale == scale and pixels.std() > 0.01
    assert np.abs(larger(upscaler, given, scale) - (pixels * 255).round().transpose(0, 2, 3, 1)).max() <= LEVELS


class Harmful:
    """Return a pickle that would write a file if it were run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return os.system, (f"touch {self._path}",)


@pytest.mark.parametrize("kind", ["pickle", "archive", "old"])
def test_a_pickle_in_a_strangers_file_is_not_run(tmp_path, kind):
    mark, path = tmp_path / "was-run", tmp_path / "model.pth"
    harmful = pickle.dumps({"params": Harmful(mark)})
    if kind == "archive":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", harmful)
    elif kind == "old":
        torch.save({"params": Harmful(mark)}, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes(harmful)
    with pytest.raises(ModelError) as refused:
        read_model(UpscalerFile(name="model.pth", path=path))
    assert not mark.exists() and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.safetensors", b"no such thing"),
        ("a.safetensors", (1 << 40).to_bytes(8, "little")),
        ("a.pth", b""),
        ("a.pth", b"PK\x03\x04 half of an archive"),
        ("a.pt", b"\x80\x04."),
    ],
)
def test_bytes_from_anywhere_are_one_sentence(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError) as refused:
        read_model(UpscalerFile(name=name, path=tmp_path / name))
    assert "\n" not in str(refused.value)


def test_a_network_that_spandrel_does_not_know_or_that_is_for_something_else_is_one_sentence(tmp_path):
    from backend.runtime.picture_models import build_picture_model

    _import_spandrel()
    with pytest.raises(ModelError, match="the upscaler own.safetensors must be a network for colour images that spandrel knows"):
        read_model(own(tmp_path, torch.nn.Linear(4, 4)))
    from spandrel.architectures.Compact import Compact
    from spandrel.architectures.SAFMN import SAFMN

    grey = Compact(num_in_ch=1, num_out_ch=1, num_feat=8, num_conv=2, upscale=2).state_dict()
    with pytest.raises(ModelError, match="is of the kind RealESRGAN Compact and must enlarge colour images"):
        build_picture_model("grey.pth", grey)
    with pytest.raises(ModelError, match="of the kind SAFMN, which cannot be run here"):
        build_picture_model("other.pth", SAFMN(dim=8, n_blocks=1, upscaling_factor=2).state_dict())


def test_a_model_that_gives_something_else_here_is_refused(monkeypatch):
    from backend.runtime import picture_models

    _import_spandrel()
    from spandrel.architectures.Compact import Compact

    called = picture_models.call_module
    monkeypatch.setattr(picture_models, "call_module", lambda *given: called(*given) * 0.9)
    torch.manual_seed(0)
    with pytest.raises(ModelError, match="gives another result here than in PyTorch"):
        picture_models.build_picture_model("a.pth", Compact(num_feat=8, num_conv=2, upscale=2).state_dict())
