"""The labels and messages of the page in English.

Each other language is a file of this folder with the same names, such as zh.toml. Errors of the engine are English in every
language.
"""

from dataclasses import dataclass, fields

from backend.schemas.settings import SETTINGS

DETAILS = (
    "The worker has not been started",
    "Starting the worker",
    "Starting the runtime",
    "Waiting for a cluster node",
    "Waiting for the other hosts: number {which} of {count} (`app.py member` there; this one is 0)",
    "Restoring a cached model",
    "Searching for settings that fit",
    "Generating a video",
    "Generating an instant draft",
    "Ready",
    "Ready, with no model loaded",
    "Compiling before the first video",
    "Compiling {what}",
    "Loaded {what} precompiled",
    "Loading {what} ({done} of {total} MB, {speed} MB/s, {left} s left)",
    "Loading {what} ({done} of {total} MB)",
    "Loading {what}",
    "settings that fit: {size}, {frames} frames",
    "the download",
    "the LoRAs",
    "the upscaler",
    "text encoder",
    "text encoder 2",
    "image encoder",
    "transformer",
    "transformer 2",
    "vae",
    "audio vae",
    "connectors",
    "vocoder",
    "latent upsampler",
    "the text encoder",
    "a layer of the text encoder",
    "the text encoder's norm",
    "the image encoder",
    "the encoder of quoted text",
    "the encoder of sound",
    "the encoder",
    "the encoder's first frame",
    "the encoder's next frames",
    "the prompt's keys",
    "the prompt's tokens",
    "the expert's copies",
    "the driving clip's keys",
    "the face's motion",
    "the face's keys",
    "the denoising step",
    "the denoising step of CFG-Zero*",
    "the denoising step that others reuse",
    "the denoising step with its cache",
    "the step with Sol-Attn",
    "the step at half the size",
    "the refining step",
    "a step that is left out",
    "a step that reuses another",
    "a window of the latents",
    "the blend of windows",
    "the noise of a step",
    "a finished block's keys",
    "the last frame",
    "the decoder's first frame",
    "the decoder",
    "the decoder of previews",
    "the sound's spectrum",
    "the vocoder",
    "the latent upsampler",
)
"""The texts that workers report: sentences, and the names of programs and networks in them."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The labels and messages of the page in one language. `str.format` replaces names in braces by values.

    A text whose name ends in `_one` is used for the number 1. The text without `_one` is used for all other numbers.
    """

    language: str = "en"  # the code in browsers' requests and in presets

    product: str = "Wan TPU Studio"
    serving: str = "{product} runs at {address}"
    theme_toggle: str = "Switch between light and dark"
    language_name: str = "English"
    language_choose: str = "Language"

    view_create: str = "Create"
    view_compare: str = "Compare"
    view_library: str = "Library"
    view_system: str = "System"
    view_live: str = "Live"
    view_edit: str = "Edit"
    view_models: str = "Models"
    views: str = "Views"
    help_title: str = "Keyboard shortcuts"
    list_separator: str = ", "
    help_keys: tuple[tuple[str, str], ...] = (
        ("Ctrl ↵", "Generate"),
        ("Esc", "Stop, or close the open menu"),
        ("Alt Q", "Show or hide the queue"),
        ("Alt I", "Turn instant drafts on or off"),
        (", .", "Previous frame, next frame"),
        ("Space", "Play or pause"),
        ("M", "Mute or unmute"),
        ("1 – 4", "In Compare: play this video's audio; press again to mute"),
        ("← → ↑ ↓", "Move in the library; Enter opens the video"),
        ("S C Del", "Star, compare or delete the selected video"),
        ("?", "Show this list"),
    )

    tab_text: str = "Text to video"
    tab_image: str = "Image to video"

    prompt: str = "Prompt"
    prompt_placeholder: str = "What should the video show?"
    negative_prompt: str = "Negative prompt"
    negative_placeholder: str = "What should the video not show? (optional)"
    examples: str = "Try an example"

    instant: str = "Instant"
    instant_hint: str = (
        "Generates a small draft of your video when you stop typing or change a setting. Generate then makes the full video with "
        "the same seed, which can show another scene. Drafts are not saved, and wait while videos are generated."
    )
    instant_draft: str = "Draft"
    instant_hide: str = "Hide the draft"
    instant_waits: str = "Drafts wait while videos are generated."

    batch: str = "Batch"
    batch_table: str = "One prompt per line, or a CSV table"
    batch_hint: str = (
        "The first line of a table names columns, such as prompt,seed,steps,size. A row uses the form's value for each missing "
        "setting."
    )
    batch_preview: str = "Preview"
    batch_file: str = "Open a CSV file"
    batch_more: str = "and {count} more"
    batch_cost: str = "{count} videos, about {seconds} in total"
    batch_cost_one: str = "1 video, about {seconds}"
    batch_cost_unknown: str = "{count} videos; the total time is not known yet"
    batch_cost_unknown_one: str = "1 video; its time is not known yet"
    batch_queue: str = "Queue all {count}"
    batch_queue_one: str = "Queue 1 video"
    batch_queued: str = "Queued {count} videos."
    batch_queued_one: str = "Queued 1 video."
    notify_ask: str = "Notify you when a long video finishes?"
    notify_yes: str = "Notify me"
    notify_no: str = "No"
    notify_finished: str = "Your video is finished"
    notify_failed: str = "Your video failed"
    rewrite: str = "Suggest"
    rewrite_use: str = "Use suggestion"
    rewrite_waiting: str = "Waiting for the suggestion…"
    rewrite_used: str = "Suggestion inserted."
    rewrite_undo: str = "Undo"
    rewrite_same: str = "No changes suggested."
    history: str = "Prompt history"
    history_empty: str = "Prompts that you use appear here."

    preset: str = "Model"
    presets_elsewhere: str = "{count} more not installed"
    presets_none: str = "No model on this machine can do this."
    preset_missing: str = "The weights of this model are not on this machine."
    presets_where: str = "Requirements and downloads: see Models"

    resolution: str = "Resolution"
    length: str = "Length"
    length_choice: str = "{seconds:.1f} s · {frames} frames"
    length_in_windows: str = "{length} · in windows"
    steps: str = "Steps"
    guidance: str = "Guidance"
    guidance_low: str = "Guidance, low noise"
    flow_shift: str = "Flow shift"
    guided_steps: str = "Guided first steps"
    descriptions: tuple[tuple[str, str], ...] = tuple(
        (setting.name, setting.description) for setting in SETTINGS.values() if setting.stage and not setting.media
    )
    nag: str = "Negative prompt, NAG"
    cfg_zero: str = "CFG-Zero*: scaled guidance, first steps skipped"
    seed: str = "Seed"
    seed_random: str = "New seed each time"
    seed_placeholder: str = "new seed each time"

    more: str = "More settings"
    fps: str = "Frames per second"
    solver: str = "Sampler"
    guidance_start: str = "Guidance from (% of steps)"
    guidance_end: str = "Guidance until (% of steps)"
    keeps_sound: str = "With audio"
    sound_guidance: str = "Guidance of the audio"
    perturbed_guidance: str = "Perturbed-attention guidance of the video (0 is off)"
    perturbed_guidance_sound: str = "Perturbed-attention guidance of the audio (0 is off)"
    modality_guidance: str = "Modality guidance of the video (1 is off)"
    modality_guidance_sound: str = "Modality guidance of the audio (1 is off)"
    guidance_rescale: str = "Guidance rescale of the video (0 is off)"
    guidance_rescale_sound: str = "Guidance rescale of the audio (0 is off)"
    image_crf: str = "Compression of the first frame, CRF (0 is off)"
    progressive: str = "Progressive resolution: how many first steps run at half the size, by level (0 is off)"
    sparse: str = "Sol-Attn: sparse attention (0 is off)"
    quantize: str = "8-bit arithmetic: half the memory, less accurate"
    step_cache: str = "Step cache: reuse similar steps (0 is off)"
    upscale: str = "Upscale the finished video (0 is off)"
    upscaler: str = "Upscaler"
    mag_cache: str = "MagCache: reuse steps that a calibration selected (0 is off)"
    storyboard: str = "Storyboard"
    storyboard_hint: str = "Each shot continues the previous shot or starts fresh. Without seconds, a shot has the length below."
    shot_prompt: str = "Prompt of this shot"
    shot_seconds: str = "Seconds"
    shot_add: str = "Add a shot"
    shot_up: str = "Move earlier"
    shot_down: str = "Move later"
    shot_remove: str = "Remove this shot"
    shot_number: str = "Shot {index}"
    shot_length: str = "{seconds} s"
    shot_finished: str = "finished"
    shot_unfinished: str = "not generated yet"
    shot_start: str = "Starts with"
    shot_start_previous: str = "from the previous shot's last frames"
    shot_start_prompt: str = "fresh, from its prompt"
    shot_start_image: str = "fresh, from an image"
    shot_image: str = "Image of this shot"
    shot_image_choose: str = "Choose an image"
    shot_fade: str = "Fade (s)"
    shot_from: str = "Trim from (s)"
    shot_to: str = "Trim to (s)"
    shot_split: str = "Split"
    shot_duplicate: str = "Duplicate"
    shot_generate: str = "Generate this shot"
    shot_keep: str = "Keep"
    storyboard_timeline: str = "Timeline. Alt with an arrow key moves a shot."
    storyboard_player: str = "Storyboard player"
    storyboard_position: str = "Position in the film"
    add_to_storyboard: str = "Add to storyboard"
    add_to_storyboard_hint: str = "Add this video to the timeline as a finished shot"
    storyboard_play: str = "Play all"
    storyboard_pause: str = "Pause"
    storyboard_close: str = "Close the player"
    storyboard_empty: str = "Add a shot to start."
    storyboard_all_finished: str = "All shots are finished. Generate cuts the film at once, without the model."
    storyboard_unfinished: str = "Shots to generate: {shots}. The other shots are kept."
    storyboard_regenerated: str = "Regenerated, because the previous shot changed: {shots}."
    characters: str = "Characters"
    characters_hint: str = (
        "A shot uses a character's image if its prompt contains the character's name. A shot takes at most {count} images."
    )
    characters_hint_one: str = (
        "A shot uses a character's image if its prompt contains the character's name. A shot takes one image."
    )
    characters_unsupported: str = "Characters need a VACE model. The selected model takes no reference images."
    characters_known: str = "Used before:"
    character_add: str = "Add a character's image"
    character_name: str = "Name that prompts use"
    character_image: str = "Choose another image"
    character_remove: str = "Remove this character"
    character_shots: str = "Shots: {shots}"
    character_unused: str = "not used"
    shot_characters: str = "Characters: {names}"
    shot_no_characters: str = "The prompt names no character."
    soundtrack: str = "Soundtrack"
    soundtrack_add: str = "Choose an audio file"
    soundtrack_start: str = "Start of the audio file in the storyboard (s)"
    soundtrack_fade: str = "Fade in and out (s)"
    soundtrack_volume: str = "Volume"
    soundtrack_remove: str = "Remove the soundtrack"
    soundtrack_span: str = "Soundtrack from {start} to {end} seconds. Drag to move it."
    soundtrack_too_large: str = "An audio file may have at most 60 MB. Choose a smaller file."
    upload_failed: str = "The file could not be sent. Try again."
    from_shot: str = "Regenerate from shot {index}"
    from_shot_hint: str = "Regenerate this shot and the later shots with new seeds; earlier shots stay"
    shot_of: str = "Shot {index} of {total}"
    context_windows: str = "Context windows, for long videos"
    windows_by_preset: str = "default of the model"
    windows_on: str = "above the trained length"
    windows_off: str = "never; denoise the whole video at once"
    loras: str = "LoRAs, one per line"
    loras_placeholder: str = "FILE.safetensors from the loras folder, or OWNER/NAME:FILE. Add =STRENGTH if needed."

    live_none: str = "No model on this machine generates live videos."
    live_start: str = "Start"
    live_apply: str = "Apply"
    live_start_hint: str = "Press Start, then steer with the arrow keys."
    live_on: str = "Live"
    live_image: str = "First frame"
    live_image_choose: str = "Choose an image"
    live_image_optional: str = "First frame (optional)"
    live_drag: str = "Press Start, then walk with the arrow keys. Drag on the image to look around."
    live_left: str = "others are waiting: {seconds} s left"
    live_rate: str = "{fps} frames per second · {milliseconds} ms delay"
    live_saved: str = "The video is in your library."
    live_unreachable: str = "The studio cannot be reached. Is it still running?"
    live_actions: tuple[tuple[str, str], ...] = (
        ("left", "Left"),
        ("right", "Right"),
        ("up", "Up"),
        ("down", "Down"),
        ("grow", "Grow"),
        ("shrink", "Shrink"),
        ("stay", "Stay"),
        ("forward", "Forward"),
        ("back", "Back"),
        ("look-up", "Look up"),
        ("look-down", "Look down"),
        ("look-left", "Look left"),
        ("look-right", "Look right"),
    )

    edit_none: str = "No model on this machine can edit clips."
    edit_upscale: str = "Upscale the clip"
    edit_drop: str = "Drop a clip here, or choose one: mp4, webm, mov or gif"
    edit_other: str = "Choose another clip"
    edit_reading: str = "Reading the clip…"
    edit_large: str = "A clip may have at most {megabytes} MB. Cut out the part that you need, then choose that file."
    edit_facts: str = "{width} × {height} · {fps} frames per second · {seconds} s"
    edit_sound: str = "with audio"
    edit_part: str = "{start} to {end} s: {frames} frames at {fps} per second, {length} s"
    edit_short: str = "This clip is too short: {model} needs {frames} frames, {seconds} s."
    edit_from: str = "Start of the selected part, in seconds"
    edit_to: str = "End of the selected part, in seconds"
    edit_placeholder: str = "What should the clip become?"
    edit_placeholder_sound: str = "Describe the audio"
    edit_placeholder_animate: str = "Describe the person and the scene (optional)"
    edit_image_shape: str = "Same shape as the image"
    animated: str = "Animated person"
    edit_drive_prompt: str = "Prompt of the driving video"
    edit_poses: str = (
        "For this model, the clip above must show poses. The studio makes no clips of poses, faces or masks. Make them with "
        "the scripts in wan/modules/animate/preprocess of github.com/Wan-Video/Wan2.2."
    )
    edit_face: str = "Clip of the face, cropped to a square"
    edit_into: str = "Clip in which the person is replaced"
    edit_into_mask: str = "Mask of the clip in which the person is replaced; the new person appears in the white areas"
    edit_figure: str = "Person to animate"
    edit_add_figure: str = "Choose an image of the person"
    edit_strength: str = "Strength"
    edit_steps: str = "{count} of {steps} steps"
    edit_modes: str = "Mode"
    edit_way_anew: str = "Restyle"
    edit_way_follow: str = "Motion control"
    edit_way_paint: str = "Inpaint"
    edit_way_widen: str = "Outpaint"
    edit_way_extend: str = "Extend"
    edit_way_keys: str = "Keyframes"
    edit_way_sound: str = "Add audio"
    edit_way_animate: str = "Animate"
    edit_hint_anew: str = "Regenerate the clip from the prompt. Strength sets how much of the clip changes."
    edit_hint_follow: str = "Generate a video that moves as the clip does."
    edit_hint_paint: str = "Paint the areas to regenerate. Other areas stay."
    edit_hint_widen: str = "Generate new pixels around the clip, in a larger frame."
    edit_hint_extend: str = "Generate a video that continues the clip, or leads up to it."
    edit_hint_keys: str = "Generate a video that shows your images at the times where you place them on the timeline."
    edit_hint_animate: str = "Move the person in an image as the person in the clip moves. The video is as long as the clip."
    edit_hint_sound: str = "Keep the images of the clip and generate audio for them. The prompt describes the audio."
    edit_kind: str = "Control clip"
    edit_kind_edges: str = "edges of the clip"
    edit_kind_grey: str = "grey image of the clip, for new colours"
    edit_kind_as_is: str = "the clip is a control clip: depth, pose or scribble"
    edit_scale: str = "Control strength"
    edit_downscale: str = "Size of the control clips in the LoRA's training"
    edit_downscale_none: str = "as large as the video"
    edit_downscale_half: str = "half the width and height"
    edit_brush: str = "Paint"
    edit_eraser: str = "Erase"
    edit_brush_size: str = "Brush size"
    edit_undo: str = "Undo"
    edit_clear: str = "Clear"
    edit_play: str = "Play the clip below the paint"
    edit_canvas: str = "Paint the areas to regenerate"
    edit_invert: str = "Keep the painted areas and regenerate the rest"
    edit_keeps: str = "Keep the clip's own pixels where nothing is regenerated"
    edit_upload_mask: str = "Upload a mask: an image or a clip; white areas are regenerated"
    edit_mask_name: str = "Mask: {name}"
    edit_unpainted: str = "First paint the areas to regenerate, or upload a mask."
    edit_left: str = "Left"
    edit_top: str = "Top"
    edit_right: str = "Right"
    edit_bottom: str = "Bottom"
    edit_margins: str = "New pixels on each side"
    edit_inner: str = "The clip fills {inner} pixels of the video's {outer}."
    edit_where: str = "Where to extend"
    edit_after: str = "after the end"
    edit_before: str = "before the start"
    edit_length: str = "Length of the video"
    edit_lengths: str = "{seconds} s ({frames} frames)"
    edit_overlap: str = "Frames repeated from the clip"
    edit_overlaps: str = "{frames} frames"
    edit_overlaps_one: str = "1 frame"
    edit_goes_after: str = "The video repeats {overlap} of the clip up to {at} s, then adds {new} new frames."
    edit_goes_before: str = "The video begins with {new} new frames, then repeats {overlap} of the clip from {at} s."
    edit_track: str = "Keyframes of the video"
    edit_track_empty: str = "Drop images here, each at its time"
    edit_add_keys: str = "Add images"
    edit_key: str = "Frame {frame} of {last}, at {at} s"
    edit_remove: str = "Remove"
    edit_key_taken: str = "A frame can have only one image. This image went to the nearest free frame, {frame}."
    edit_key_full: str = "Every frame of the video already has an image."
    edit_references: str = "Reference images of what the video must show"
    edit_add_reference: str = "Add a reference image"
    edit_references_full: str = "Reference images: {count} at most."
    edit_images_only: str = "Keyframes must be png, jpeg or webp images."

    image: str = "First frame"
    image_placeholder: str = "Drop, paste or choose an image"
    image_preview: str = "Crop to {width} × {height}"
    image_preview_empty: str = "The cropped image appears here."
    image_hint: str = "Click the image to move the crop."
    image_examples: str = "Or start from an example"
    last_image: str = "Last frame (optional)"
    own_sound: str = "Your own audio"
    own_sound_file: str = "The video follows this audio. Choose a file, or record one."
    recording_unsent: str = "The recording could not be uploaded. Press Generate to send it again."
    own_sound_start: str = "Start at this second of the audio"
    image_pad: str = "Add bars instead"

    generate: str = "Generate"
    stop: str = "Stop"
    stopping: str = "Stopping…"
    save_changes: str = "Save changes"
    discard_changes: str = "Discard changes"
    estimate_about: str = "About {seconds}"
    estimate_measured: str = "Based on the last {count} videos of this size"
    estimate_measured_one: str = "Based on the last video of this size"
    estimate_scaled: str = "Based on {count} videos of other sizes"
    estimate_scaled_one: str = "Based on 1 video of another size"
    estimate_about_predicted: str = "About {seconds} (predicted)"
    estimate_predicted: str = "Predicted from the chips' published rates. This model has generated no video here yet."
    estimate_none: str = "No estimate before this model's first video"
    estimate_compiles: str = "compiles first ({seconds})"
    estimate_compiles_unknown: str = "compiles first"
    estimate_warm: str = "nothing to compile"
    estimate_loads: str = "loads its model first ({seconds})"
    estimate_loads_unknown: str = "loads its model first"

    queue_title: str = "Queue"
    queue_empty: str = "The queue is empty. Press Generate as often as you like: videos wait here for their turn."
    queue_recent: str = "Recently ended"
    queue_group: str = "{width} × {height} · {frames} frames"
    queue_warm: str = "compiled"
    queue_wait: str = "done in about {seconds}"
    queue_others_one: str = "1 video of another visitor is also queued. Visitors take turns."
    queue_others: str = "{count} videos of other visitors are also queued. Visitors take turns."
    queue_up: str = "Move earlier"
    queue_down: str = "Move later"
    queue_edit: str = "Edit before it starts"
    queue_duplicate: str = "Queue once more"
    queue_cancel: str = "Remove from the queue"
    queue_stop: str = "Stop and keep the finished part"
    queue_show: str = "Show: {prompt}"
    queue_steps: str = "{steps} steps · seed {seed}"
    queue_steps_one: str = "1 step · seed {seed}"

    same_again: str = "Same again"
    new_seed: str = "New seed"
    full_quality: str = "Full quality"
    full_quality_hint: str = "Load the settings of {title} with the same prompt and seed"
    continue_video: str = "Continue"
    continue_hint: str = "Start the next video from the last frame of this video"
    continue_sound_hint: str = "Start the next video with the end of this video, images and audio"
    edit_this: str = "Edit"
    edit_this_hint: str = "Open this video as the clip in Edit, to restyle, inpaint or extend it"
    use_settings: str = "Use settings"
    star: str = "Star"
    delete: str = "Delete"
    deleted: str = "Deleted."
    undo: str = "Undo"
    restore: str = "Restore"
    restored: str = "Restored to the library."
    open_folder: str = "Open folder"
    folder_opened: str = "Opened on the server: {folder}"
    folder_at: str = "The server has no desktop. The folder is {folder}"
    add_compare: str = "Compare"
    frame_back: str = "Previous frame"
    frame_forward: str = "Next frame"
    play: str = "Play"
    pause: str = "Pause"
    loop: str = "Loop"
    sound: str = "Mute or unmute"
    sound_refused: str = "Your browser starts videos muted. Press here to unmute."
    volume: str = "Volume"
    with_sound: str = "with audio"
    scrub: str = "Position in the video"
    close: str = "Close"
    loaded: str = "Settings loaded with seed {seed}."
    loaded_new_seed: str = "Settings loaded. Each video gets a new seed."
    loaded_seed_button: str = "Use a new seed"
    loaded_elsewhere: str = "Nothing was loaded: {preset} is not on this machine."
    loaded_first_frame: str = "The first frame is taken from the video."
    loaded_cues: str = "Live changes are not loaded. Press Same again below the video to keep them."
    loaded_clip: str = "The clip or images of this video are not loaded. Press Same again below the video to keep them."
    loaded_own_sound: str = (
        "The settings do not contain the audio file that the video follows. Choose the file again under Your own audio."
    )
    loaded_editing: str = "You are editing a queued video."
    loaded_full: str = "These are the settings of {title}. Press Generate to use them."
    loaded_fits: str = "These settings fit into memory. Press Generate to use them."
    loaded_as_clip: str = "This video is now the clip. Choose a mode."
    loaded_extend: str = (
        "This video is now the clip. The next video starts with the end of this video, audio included. Describe how it continues."
    )
    loaded_continue: str = "The last frame is now the first frame. Describe how the video continues."
    not_used: str = "Not used here: {settings}."
    setting_on: str = "on"
    setting_off: str = "off"
    setting_task: str = "type of video"
    setting_preset: str = "model"
    setting_is_open: str = "live, no fixed length"
    setting_width: str = "width"
    setting_height: str = "height"
    setting_num_frames: str = "frames"
    setting_guidance: str = "guidance"
    setting_seed: str = "seed"
    setting_prompt: str = "prompt"
    setting_sound_guidance: str = "audio guidance"
    setting_perturbed_guidance: str = "perturbed guidance"
    setting_modality_guidance: str = "modality guidance"
    setting_guidance_rescale: str = "guidance rescale"
    setting_image: str = "first frame"
    setting_last_image: str = "last frame"
    setting_video: str = "clip"
    setting_strength: str = "strength"
    setting_trim: str = "part of the clip, seconds"
    setting_mask: str = "mask"
    setting_control: str = "control clip"
    setting_control_kind: str = "kind of control clip"
    setting_control_scale: str = "control strength"
    setting_control_downscale: str = "control clip downscaled by"
    setting_margins: str = "margins"
    setting_extend: str = "extend"
    setting_overlap: str = "overlapping frames"
    setting_keeps_pixels: str = "keep the clip's pixels"
    setting_references: str = "reference images"
    setting_keyframes: str = "keyframes"
    setting_keyframe_at: str = "positions of keyframes"
    setting_image_focus: str = "center of the crop"
    setting_image_crf: str = "compression of the first frame, CRF"
    setting_loras: str = "LoRA"
    setting_guidance_interval: str = "steps with guidance"
    setting_cfg_zero: str = "CFG-Zero*"
    setting_nag: str = "NAG"
    setting_step_cache: str = "step cache"
    setting_mag_cache: str = "MagCache"
    setting_progressive: str = "progressive resolution level"
    setting_sparse: str = "level of sparse attention"
    setting_quantize: str = "8-bit arithmetic"
    setting_keeps_sound: str = "audio"
    setting_sound: str = "audio file"
    setting_sound_start: str = "start of the audio, seconds"
    setting_make: str = "output type (video or audio)"
    setting_drive: str = "driving video"
    setting_face: str = "face clip"
    setting_drive_prompt: str = "prompt of the driving video"
    setting_action: str = "action"
    setting_cues: str = "live changes"
    setting_context_windows: str = "context windows"
    setting_shots: str = "shots"
    setting_shot_images: str = "images of shots"
    setting_shot_videos: str = "finished shots"
    setting_shot_drives: str = "driving videos of shots"
    setting_figures: str = "characters"
    setting_figure_images: str = "images of characters"
    setting_track: str = "soundtrack"
    setting_track_start: str = "start of the soundtrack, seconds"
    setting_track_fade: str = "fade of the soundtrack, seconds"
    setting_track_volume: str = "volume of the soundtrack"
    setting_upscale: str = "upscaling factor"
    drop_clip: str = "Drop the clip here to open it in Edit"
    drop_here: str = "Drop here: a video of this studio loads its settings, an image becomes the first frame"

    project: str = "Project"
    projects: str = "Projects"
    projects_all: str = "All projects"
    projects_none: str = "In no project"
    projects_hint: str = "A project groups videos. New videos can join one project by themselves."
    projects_archived: str = "archived"
    project_name: str = "Name of a project"
    project_create: str = "New project"
    project_rename: str = "Rename"
    project_use: str = "Add new videos to this project"
    project_leave: str = "Stop adding new videos to this project"
    project_archive: str = "Archive"
    project_restore: str = "Unarchive"
    project_export: str = "Export as a file"
    project_import: str = "Import a project"
    project_large: str = (
        "The file could not be sent. A project may have at most {megabytes} MB, and uploads have an hourly limit."
    )
    project_delete: str = "Delete the project and keep its videos"
    project_created: str = "Created project {name}."
    project_imported: str = "Imported {count} videos into {name}."
    project_imported_one: str = "Imported 1 video into {name}."
    project_target: str = "New videos join project {name}."
    tags: str = "Tags"
    tags_hint: str = "words separated by spaces; a search for #word finds them"
    orders: tuple[tuple[str, str], ...] = (
        ("newest", "Newest"),
        ("oldest", "Oldest"),
        ("longest", "Longest"),
        ("largest", "Largest"),
    )
    lengths: tuple[tuple[str, str], ...] = (
        ("", "Any length"),
        ("short", "Up to 3 s"),
        ("medium", "3 to 10 s"),
        ("long", "Over 10 s"),
    )
    sizes: tuple[tuple[str, str], ...] = (
        ("", "Any size"),
        ("small", "Below 480p"),
        ("480p", "480p"),
        ("720p", "720p and larger"),
    )
    library_search: str = "Search prompts, or #tag"
    library_order: str = "Sort by"
    library_presets: str = "All models"
    library_starred: str = "Starred"
    library_bin: str = "Deleted"
    library_count: str = "{count} videos"
    library_count_one: str = "1 video"
    library_none: str = "No video matches."
    library_empty: str = "Videos that you generate appear here."
    library_more: str = "Show more"
    library_choose: str = "Select a video to see its details."
    library_request: str = "Settings"
    library_versions: str = "Software versions"
    library_made: str = "Generated {when} UTC"
    library_owner: str = "By {owner}"
    show: str = "Show on the stage"

    compare_vary: str = "Setting to vary"
    compare_values: str = "Values, up to four"
    compare_also: str = "Second setting, in rows"
    compare_also_none: str = "None"
    compare_presets: str = "Models, up to four"
    compare_start: str = "Queue videos"
    compare_what: tuple[tuple[str, str], ...] = (
        ("seed", "Seed"),
        ("steps", "Steps"),
        ("guidance", "Guidance"),
        ("flow_shift", "Flow shift"),
        ("preset", "Model"),
        ("loras", "LoRAs on and off"),
    )
    compare_hint: str = "For example 8, 20, 40. Seeds may be empty."
    compare_empty_title: str = "Nothing to compare yet"
    compare_empty: str = (
        "Fill in the form under Create, then vary one of its settings here. Or press Compare on videos in the library."
    )
    compare_tray: str = "{count} selected. Select another video to see them side by side."
    compare_export: str = "Save as one video"
    copy_link: str = "Copy link"
    copy_by_hand: str = "Press Ctrl+C to copy the selected text."
    compare_linked: str = "Link copied. Only you see the videos; others see the settings."
    compare_hear: str = "Play the audio of video {number} (key {number})"
    compare_wipe: str = "Wipe"
    compare_wipe_left: str = "Left video"
    compare_wipe_right: str = "Right video"
    compare_wipe_edge: str = "Position of the wipe"
    compare_clear: str = "Start over"
    compare_rates: str = "Computing rate"
    share_of_peak: str = "{percent:.0f} % of the peak (MFU)"
    compare_same: str = "All settings are the same."
    compare_original: str = "Before and after"
    compare_before: str = "Before"
    compare_after: str = "After"
    compare_progress: str = "{done} of {total} finished"
    compare_shared: str = "Another visitor's comparison. Queue its settings to see the videos."
    compare_not_varied: str = "The videos also differ in settings that cannot be varied here: {settings}."

    my_presets: str = "My presets"
    my_presets_title: str = "My presets"
    my_presets_none: str = "Save the form's settings under a name."
    my_presets_here: str = "Presets for the models of this view. Save presets in Create."
    my_presets_name: str = "Name"
    my_presets_save: str = "Save"
    my_presets_saved: str = "Saved as {name}."
    my_presets_rename: str = "Rename to the name in the field"
    my_presets_export: str = "Export all"
    my_presets_import: str = "Import"
    my_presets_load: str = "Load {name}"
    my_presets_imported: str = "Imported {count} presets."
    my_presets_imported_one: str = "Imported 1 preset."
    settings_linked: str = "Link copied. It opens the studio with these settings."
    settings_linked_without: str = "Links contain no files: {settings}."
    my_presets_bad_file: str = "This file contains no presets of this studio: {reason}"

    system_devices: str = "Devices"
    system_memory: str = "{used} of {limit} in use"
    system_memory_unknown: str = "does not report its memory"
    system_not_used: str = "Not used"
    system_worker: str = "Worker"
    system_machine: str = "Machine"
    system_model: str = "Model loaded"
    system_no_model: str = "none"
    system_cached_models: str = "Models in memory"
    system_cached_both: str = "{chips} on the devices, {host} in host memory"
    system_cached_chips: str = "{chips} on the devices"
    system_cached_host: str = "{host} in host memory"
    system_kept_loaded: str = "kept loaded"
    system_keep_loaded: str = "Keep loaded"
    system_keep_loaded_hint: str = "Unload this model after all others when memory is short"
    system_allow_unload: str = "Allow unloading"
    system_allow_unload_hint: str = "Unload this model when another model needs the memory"
    system_unload: str = "Unload"
    system_unload_hint: str = "Remove this model from memory; its files stay"
    system_shapes: str = "Compiled sizes"
    system_rates: str = "Last video"
    system_fallbacks: str = "Kernels and options that the chip or compiler refused"
    system_no_shapes: str = "none yet"
    system_shape: str = "{task} {width} × {height}, {frames} frames, {guided}"
    system_guided: str = "with guidance"
    system_unguided: str = "without guidance"
    system_storage: str = "Storage"
    system_parts: tuple[tuple[str, str], ...] = (
        ("videos", "Videos"),
        ("intermediate", "Intermediate files"),
        ("bin", "Deleted videos"),
        ("uploads", "Uploads"),
        ("comparisons", "Saved comparisons"),
        ("logs", "Logs"),
        ("compiled", "Compiled programs"),
        ("store", "Job store"),
    )
    system_disk: str = "Free disk space"
    system_limits: str = "Storage limits for videos"
    system_limit_days: str = "{days:g} days"
    system_limit_days_one: str = "1 day"
    system_limit_size: str = "{gigabytes:g} GB in total"
    system_limit_both: str = "{days}, {size}"
    system_limit_none: str = "none"
    system_clean: str = "Clean up now"
    system_clean_hint: str = "Run the hourly cleanup now"
    system_cleaned: str = "Freed {size}: {parts}."
    system_cleaned_nothing: str = "Nothing to remove."
    system_jobs: str = "Jobs"
    system_versions: str = "Versions"
    charts: str = "Last hour and day"
    chart_steps: str = "Time per step"
    chart_queue: str = "Videos queued and running"
    chart_memory: str = "Device memory"
    chart_disk: str = "Disk space used"
    chart_hour: str = "hour"
    chart_day: str = "day"
    system_errors: str = "Recent errors"
    system_no_errors: str = "None."
    system_copy: str = "Copy report"
    system_copied: str = "Report copied."
    system_operator: str = "You are the operator: you see the jobs and videos of all visitors."
    system_visitor: str = "You see your own jobs and videos."
    system_log: str = "Last lines of the worker's log"

    models_operator: str = (
        "Models download one at a time. A pause, a broken connection or a restart loses nothing: the download continues later."
    )
    models_visitor: str = (
        "This server generates videos with these models. Its operator can add models. If you are the operator, open the link"
        " that the studio printed last at startup."
    )
    models_here: str = "On this machine"
    models_downloading: str = "Downloading"
    models_available: str = "Available for download"
    models_count: str = "Models: {models}, LoRAs: {loras}"
    model_disk: str = "Disk"
    model_disk_least: str = "at least {size}, computed from its networks; the Hub reports the exact size before the download"
    model_disk_unknown: str = "the Hub reports the size before the download"
    model_memory: str = "Memory"
    model_weights: str = "{size} of weights, over all devices"
    model_memory_total: str = "this machine has {size}"
    model_unknown: str = "not known"
    model_slice: str = "Smallest TPU slice"
    model_anywhere: str = "not needed: runs on any computer"
    model_slice_found: str = "{slice} for {preset}: {gib:g} GiB per chip, {seconds} per step (predicted)"
    model_slice_unknown: str = "not checked yet: app.py check-tpu --preset {preset}"
    model_licence: str = "Licence"
    model_licence_hub: str = "see its page on the Hub"
    model_licence_ours: str = "the studio's licence"
    model_presets: str = "Presets"
    model_verdicts: tuple[tuple[str, str], ...] = (
        ("runs", "runs here"),
        ("short", "too large for this machine"),
        ("slow", "needs a TPU or a GPU"),
        ("untried", "not tested on these devices"),
        ("unknown", "devices not known yet"),
    )
    model_recommended: str = "best for this machine: {preset}"
    model_estimated: str = "probably best for this machine: {preset}, estimated from {slice}"
    model_resume: str = "Resume"
    model_retry: str = "Try again"
    model_dismiss: str = "Dismiss"
    model_remove: str = "Remove"
    model_started: str = "{model} is now at the top, under “{where}”."
    model_remove_ask: str = "Remove {model} from this machine?"
    model_removed: str = "Removed {model} and freed {size}."
    model_share: str = "{done} of {total}"
    model_paused: str = "Paused at {share}"
    model_phases: tuple[tuple[str, str], ...] = (
        ("waiting", "Waiting for another download"),
        ("asking", "Requesting the list of files from the Hub"),
        ("pausing", "Pausing"),
    )

    host_refused: str = (
        "This server does not accept the host name {name}. To allow it, start the server with --allowed-host {name}."
    )
    origin_refused: str = "A page from {origin} may not use this server. Open the server's own page."
    not_found: str = "Page not found."
    login_needed: str = "Log in first: this server requires a password."
    logout_by_post: str = "Log out with a POST request from this server's own page."
    login_pause: str = "Too many wrong passwords. Try again in {seconds} s."
    key_needed: str = "Send the operator's key as a bearer token."
    program_key_needed: str = (
        "Send a key as a bearer token. The operator of this server creates keys: python app.py keys create NAME."
    )
    key_unknown: str = "This key is unknown or was revoked. Ask the operator for a new key."
    too_many_open: str = "Too many requests from your address are open. Close some pages and try again."
    too_many_streams: str = "Too many of your pages or programs are connected. Close some and try again."
    body_slow: str = "The request arrived too slowly. Try again."
    file_refused: str = "A file in this request was not uploaded here. Upload it first."
    disk_low: str = "The server's disk is almost full, so it accepts no new data. Ask the operator to free disk space."
    body_refused: str = "The request is too long: at most {kilobytes} KB are allowed. Shorten the text."
    upload_refused: str = (
        "Too many uploads from your address within an hour: at most {megabytes} MB are allowed. Try again later."
    )

    password_made: str = "Visitors log in as user {user} with password {password} (--auth sets others, --open requires none)"
    operator_link: str = "Link for the operator, who sees the videos of all visitors: {address}"
    idle_title: str = "No video yet"
    idle_detail: str = "Write a prompt and press Generate. Each step appears here as it is computed."
    queued_next: str = "Next in the queue"
    queued_place: str = "Place {place} in the queue"
    queued_first: str = "{count} videos are ahead."
    queued_first_one: str = "1 video is ahead."
    queued: str = "Queued"
    interrupted: str = "Interrupted"
    interrupted_detail: str = "This video continues by itself when a worker is ready. Its finished steps are not lost."
    held_detail: str = "This video's worker was stopped several times. Press Resume, or wait ten minutes."
    resume_job: str = "Resume"
    disk_short: str = "The disk has {free} free, and the next video needs {needed}. The queue continues when disk space is freed."
    disk_full: str = "The disk is full. The queue continues when disk space is freed."
    starting: str = "Starting"
    loading: str = "Loading the model"
    downloading: str = "Downloading the model"
    compiling: str = "Compiling {what}"
    compiling_share: str = "{index} of {total}"
    compiling_detail: str = "Each size and length compiles once."
    encoding: str = "Encoding the prompt"
    denoising: str = "Denoising"
    denoising_step: str = "Step {index} of {total}"
    decoding: str = "Decoding"
    decoding_frame: str = "Frame {frame} of {total}"
    finished: str = "Done in {seconds}"
    cancelled: str = "Stopped"
    cancelled_partial: str = "The video was stopped at this point."
    cancelled_nothing: str = "Stopped before the first image was ready."
    failed: str = "Failed"
    rate: str = "{seconds} per step"
    time_left: str = "{seconds} left"
    time_left_about: str = "about {seconds} left"
    fits: str = "{width} × {height} · {frames} frames"
    fits_hint: str = "These settings fit into memory. The button fills the form and generates nothing yet."
    preview_label: str = "Preview of the unfinished video"
    video_label: str = "Generated video: {prompt}"
    fact_size: str = "Size"
    fact_guidance: str = "Guidance"
    fact_guided_steps: str = "Guided steps"
    fact_nag: str = "NAG"
    fact_shots: str = "Shots"
    fact_windows: str = "Context windows"
    fact_window_frames: str = "{frames} frames"
    fact_strength: str = "Strength"
    stage_names: tuple[tuple[str, str], ...] = (
        ("load", "Load"),
        ("compile", "Compile"),
        ("encode", "Encode"),
        ("denoise", "Denoise"),
        ("decode", "Decode"),
        ("upscale", "Upscale"),
        ("total", "Total"),
    )
    download: str = "Download"
    download_sound: str = "Audio (wav)"
    upscale_menu: str = "Upscale…"
    upscaling: str = "Upscaling"
    fact_upscaled: str = "Upscaled"
    fact_upscaled_by: str = "{scale}× by {name}, from {width} × {height}"
    export: str = "Export…"
    export_smooth: str = "MP4 at {fps} frames per second, smoothed"
    export_webm: str = "WebM, for the web"
    export_gif: str = "GIF: at most {seconds} s, {side} pixels on the longer side, {size} MB"
    export_webp: str = "Animated WebP: at most {seconds} s, {side} pixels on the longer side, {size} MB"
    export_png: str = "PNG frames (zip)"
    task_export: str = "Exporting"
    task_film: str = "Cutting the film"
    task_comparison: str = "Writing the comparison"
    task_import: str = "Importing the project"
    task_project: str = "Exporting the project"
    task_waiting: str = "waiting for other tasks"
    keep_seed: str = "Use this seed"

    details: tuple[tuple[str, str], ...] = tuple((text, text) for text in DETAILS)
    worker_starting: str = "Starting…"
    worker_loading: str = "Model is loading…"
    worker_warming: str = "Warming up…"
    worker_ready: str = "Ready"
    worker_busy: str = "Generating"
    worker_failed: str = "Model failed to start"
    workers_alike: str = "{count} of {total} workers"
    worker_none: str = "Waiting for a cluster node"
    job_queued: str = "queued"
    job_running: str = "running"
    job_finished: str = "finished"
    job_failed: str = "failed"
    job_cancelled: str = "stopped"

    opened_without: str = "The page opened without the settings of its link."
    error_unexpected: str = "Something went wrong in the studio."
    error_unexpected_fix: str = "Try again. The server's log has details."

    def describe_setting(self, name: str) -> str:
        """Return the description of a setting. It is English if this language has none."""
        return dict(self.descriptions).get(name) or SETTINGS[name].description

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the plain texts whose names start with `prefix`, keyed by their names without `prefix`."""
        names = [field.name for field in fields(self) if field.name.startswith(prefix) and field.type is str]
        return {name.removeprefix(prefix): getattr(self, name) for name in names}


ENGLISH = Texts()
