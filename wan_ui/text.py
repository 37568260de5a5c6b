"""Every sentence that a visitor reads. One frozen value a language; nothing else in `wan_ui` spells words out."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The studio's words in one language. Fields with braces are filled in with `str.format`."""

    product: str = "Wan TPU Studio"
    serving: str = "{product} is at {address}"
    theme_toggle: str = "Switch between light and dark"

    tab_text: str = "Text to video"
    tab_image: str = "Image to video"

    prompt: str = "Prompt"
    prompt_placeholder: str = "What should the video show?"
    negative_prompt: str = "Negative prompt"
    negative_placeholder: str = "What it should not show (optional)"
    examples: str = "Try one of these"

    preset: str = "Model"
    presets_elsewhere: str = "{count} more, not on this machine"
    presets_none: str = "No model on this machine can do this."
    preset_missing: str = "Its weights are not on this machine."
    preset_fix: str = "Start the studio with --model {model} on a machine that holds them."

    resolution: str = "Resolution"
    length: str = "Length"
    length_choice: str = "{seconds:.1f} s · {frames} frames"
    steps: str = "Steps"
    guidance: str = "Guidance"
    guidance_low: str = "Guidance, low noise"
    flow_shift: str = "Flow shift"
    seed: str = "Seed"
    seed_random: str = "New seed each time"

    image: str = "First frame"
    image_placeholder: str = "Drop, paste or choose a picture"
    image_preview: str = "Crop to {width} × {height}"
    image_preview_empty: str = "The part that the video starts from appears here."
    image_hint: str = "Click the picture to move the crop."
    image_examples: str = "Or start from one of these"

    generate: str = "Generate"
    stop: str = "Stop"
    stopping: str = "Stopping…"

    idle_title: str = "Nothing made yet"
    idle_detail: str = "Write a prompt and press Generate. Every step appears here as it is computed."
    queued_next: str = "Next in the queue"
    queued_place: str = "Place {place} in the queue"
    queued_first: str = "{count} videos come first."
    queued_one_first: str = "One video comes first."
    queued: str = "Waiting"
    starting: str = "Starting"
    loading: str = "Loading the model"
    compiling: str = "Compiling {what}"
    compiling_detail: str = "This happens once for each size and length."
    encoding: str = "Reading the prompt"
    denoising: str = "Denoising"
    denoising_step: str = "Step {index} of {total}"
    decoding: str = "Decoding"
    decoding_frame: str = "Frame {frame} of {total}"
    finished: str = "Done in {seconds}"
    cancelled: str = "Stopped"
    cancelled_partial: str = "This is what there was when it stopped."
    cancelled_nothing: str = "It stopped before there was a picture to keep."
    failed: str = "It did not work"
    rate: str = "{seconds} a step"
    time_left: str = "{seconds} left"
    preview_label: str = "Preview of the video so far"
    video_label: str = "Generated video: {prompt}"

    fact_seed: str = "Seed"
    fact_size: str = "Size"
    fact_length: str = "Length"
    fact_steps: str = "Steps"
    fact_guidance: str = "Guidance"
    fact_shift: str = "Shift"
    stage_names: tuple[tuple[str, str], ...] = (
        ("load", "Load"),
        ("compile", "Compile"),
        ("encode", "Encode"),
        ("denoise", "Denoise"),
        ("decode", "Decode"),
        ("total", "Total"),
    )
    download: str = "Download"
    keep_seed: str = "Use this seed"

    worker_starting: str = "Starting…"
    worker_loading: str = "Model is loading…"
    worker_warming: str = "Warming up…"
    worker_ready: str = "Ready"
    worker_busy: str = "Generating"
    worker_failed: str = "Model failed to start"

    error_unexpected: str = "Something went wrong in the studio."
    error_unexpected_fix: str = "Try again; the server's log says more."


ENGLISH = Texts()
