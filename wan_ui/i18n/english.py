"""The page's words in English. Other languages are further values of `Texts`, one file each (`wan_ui.i18n.chinese`);
`wan_ui.i18n.languages` lists them. Errors come in the engine's words; `wan_ui.routes` has its own for programs."""

from dataclasses import dataclass, fields

DETAILS = (
    "The worker has not been started",
    "Starting the worker",
    "Starting the runtime",
    "Waiting for a machine of the cluster",
    "Waiting for the other hosts: number {which} of {count} (`app.py member` there; this one is 0)",
    "Bringing back a model",
    "Looking for what would fit",
    "Making a video",
    "Ready",
    "Ready, with no model loaded",
    "Compiling ahead of the first video",
    "Compiling {what}",
    "Loaded {what} precompiled",
    "Loading {what} ({done} of {total} MB, {speed} MB/s, {left} s left)",
    "Loading {what} ({done} of {total} MB)",
    "Loading {what}",
    "what would fit: {size}, {frames} frames",
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
    "the step at half the size",
    "the refining step",
    "a step that is left out",
    "a step that reuses another",
    "a window of the latents",
    "the blend of windows",
    "a finished block's keys",
    "the last frame",
    "the decoder's first frame",
    "the decoder",
    "the decoder of previews",
    "the sound's spectrum",
    "the vocoder",
    "the latent upsampler",
)
"""What workers report: sentences, and the names of programs and networks in them."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The studio's words in one language. Fields with braces are filled in with `str.format`."""

    language: str = "en"  # the code in browsers' requests and in presets

    product: str = "Wan TPU Studio"
    serving: str = "{product} is at {address}"
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
    help_title: str = "Keyboard"
    between: str = ", "
    help_keys: tuple[tuple[str, str], ...] = (
        ("Ctrl ↵", "Generate"),
        ("Esc", "Stop, or close what is open"),
        ("Alt Q", "Show or hide the queue"),
        (", .", "One frame back, one frame on"),
        ("Space", "Play or pause"),
        ("M", "Sound on or off"),
        ("1 – 4", "In Compare: hear this video; again: none"),
        ("← → ↑ ↓", "Move in the library; Enter shows the video"),
        ("S C Del", "Star, compare, delete the chosen video"),
        ("?", "This list"),
    )

    tab_text: str = "Text to video"
    tab_image: str = "Image to video"

    prompt: str = "Prompt"
    prompt_placeholder: str = "What should the video show?"
    negative_prompt: str = "Negative prompt"
    negative_placeholder: str = "What it should not show (optional)"
    examples: str = "Try one of these"

    many: str = "Many at once"
    many_table: str = "Prompts, one on each line, or a table"
    many_hint: str = "The first line may name columns, such as prompt,seed,steps,size; what a row leaves out is as in the form."
    many_look: str = "Look at them"
    many_file: str = "From a CSV file"
    many_more: str = "and {count} more"
    many_cost: str = "{count} videos, about {seconds} together"
    many_cost_unknown: str = "{count} videos; how long they take is not known yet"
    many_queue: str = "Queue all {count}"
    many_queued: str = "{count} videos wait in line."
    notice_ask: str = "Shall your browser tell you when the next long video is done?"
    notice_yes: str = "Tell me"
    notice_no: str = "No"
    notice_done: str = "Your video is done"
    notice_failed: str = "A video has failed"
    rewrite: str = "Suggest"
    rewrite_use: str = "Use it"
    rewrite_waits: str = "The helper is reading..."
    rewrite_used: str = "The suggestion stands in the prompt."
    rewrite_undo: str = "Undo"
    rewrite_same: str = "There is nothing to change."
    history: str = "Earlier prompts"
    history_empty: str = "Your prompts will be kept here."

    preset: str = "Model"
    presets_elsewhere: str = "{count} more presets, not on this machine"
    presets_none: str = "No model on this machine can do this."
    preset_missing: str = "Its weights are not on this machine."
    presets_where: str = "What each needs, and how it comes here: Models"

    resolution: str = "Resolution"
    length: str = "Length"
    length_choice: str = "{seconds:.1f} s · {frames} frames"
    length_in_windows: str = "{length} · in windows"
    steps: str = "Steps"
    guidance: str = "Guidance"
    guidance_low: str = "Guidance, low noise"
    flow_shift: str = "Flow shift"
    guided_steps: str = "Guided first steps"
    nag: str = "Negative prompt, NAG"
    cfg_zero: str = "CFG-Zero*: scaled guidance, first steps left out"
    cfg_zero_info: str = "Its authors: better pictures than plain guidance; saves the time of those steps"
    seed: str = "Seed"
    seed_random: str = "New seed each time"

    more: str = "More settings"
    fps: str = "Frames a second"
    solver: str = "Sampler"
    guidance_start: str = "Guidance from (% of steps)"
    guidance_end: str = "Guidance until (% of steps)"
    keeps_sound: str = "With sound"
    progressive: str = "Faster: the first steps at half size (0 is off)"
    progressive_info: str = "Published for Wan 2.1 at 480p: 1.7 to 2.8 times as fast by level; no measure of the quality given"
    step_cache: str = "Reuse similar steps (0 is off)"
    step_cache_info: str = "Its authors: HunyuanVideo twice as fast; no figure for its quality"
    upscale: str = "Upscale the finished video (0 is off)"
    upscale_info: str = "2 or 4 times larger, as a step after the video"
    upscaler: str = "Upscaler"
    upscaler_info: str = "A model of `app.py upscale --list`; empty: animevideov3"
    mag_cache: str = "Reuse steps by plan, MagCache (0 is off)"
    mag_cache_info: str = "Its authors, Wan 2.1 14B at 0.24: 2.8 times faster, 21.8 to 24.4 dB beside the full video"
    storyboard: str = "Storyboard"
    storyboard_hint: str = "A shot goes on from the one before, or starts anew. Empty seconds are the length below."
    shot_prompt: str = "What this shot shows"
    shot_seconds: str = "Seconds"
    shot_add: str = "Add a shot"
    shot_up: str = "Earlier"
    shot_down: str = "Later"
    shot_remove: str = "Remove this shot"
    shot_number: str = "Shot {index}"
    shot_seconds_of: str = "{seconds} s"
    shot_is_made: str = "made"
    shot_is_new: str = "to be made"
    shot_start: str = "Begins"
    shot_goes_on: str = "with the last frames of the shot before"
    shot_cut: str = "anew, from its words"
    shot_from_picture: str = "anew, from a picture"
    shot_picture: str = "Its picture"
    shot_picture_choose: str = "Choose a picture"
    shot_fade: str = "Fade (s)"
    shot_from: str = "From (s)"
    shot_to: str = "To (s)"
    shot_split: str = "Split"
    shot_double: str = "Double"
    shot_alone: str = "Make this shot"
    shot_keep: str = "Keep as it is"
    film_timeline: str = "Timeline; Alt and an arrow key move a shot"
    film_player: str = "The film as it is"
    film_place: str = "Place in the film"
    film_take: str = "To the storyboard"
    film_take_hint: str = "Puts this video on the timeline, as a shot that is made"
    film_play: str = "Play the whole"
    film_pause: str = "Pause"
    film_close: str = "Close the player"
    film_none: str = "Add a shot to begin."
    film_all_made: str = "All shots are made: Generate cuts the film at once, without the model."
    film_some_made: str = "Still to be made: {shots}. Generate makes them and keeps the others."
    film_made_anew: str = "Made anew, because they go on from a shot that has changed: {shots}."
    figures: str = "Figures"
    figures_hint: str = "A shot whose prompt has a figure's name is shown its picture, {count} pictures in a shot at most."
    figures_hint_one: str = "A shot whose prompt has a figure's name is shown its picture, one in a shot."
    figures_none: str = "Figures need a model of VACE: the chosen one takes no reference pictures."
    figures_known: str = "Used before:"
    figure_add: str = "Add a figure's picture"
    figure_name: str = "Name, as prompts have it"
    figure_picture: str = "Choose another picture"
    figure_remove: str = "Remove this figure"
    figure_in: str = "in shot {shots}"
    figure_unused: str = "in no shot"
    shot_with: str = "Shown to it: {names}"
    shot_without: str = "It names none of the figures."
    film_track: str = "Sound track"
    film_track_add: str = "Choose a sound"
    film_track_start: str = "Starts at (s)"
    film_track_fade: str = "Fades within (s)"
    film_track_volume: str = "Volume"
    film_track_remove: str = "Remove the sound"
    film_track_of: str = "Sound track from {start} to {end} seconds; drag to move it"
    film_large: str = "A sound may have 60 MB at most; choose a smaller one."
    film_lost: str = "The file could not be sent; try again."
    from_shot: str = "From shot {index}"
    from_shot_hint: str = "Makes this shot and those after it again, with new seeds; the earlier ones stay"
    shot_of: str = "Shot {index} of {total}"
    context_windows: str = "Context windows, for long videos"
    windows_by_preset: str = "where the length needs them"
    windows_on: str = "above the trained length"
    windows_off: str = "never, in one piece"
    loras: str = "LoRAs, one a line"
    loras_info: str = "FILE.safetensors from the loras folder, or OWNER/NAME:FILE; then = and a strength"

    live_none: str = "No model on this machine makes videos live."
    live_start: str = "Start"
    live_say: str = "Say it now"
    live_start_hint: str = "Press Start, then steer with the arrow keys."
    live_on: str = "Live"
    live_picture: str = "First picture"
    live_choose: str = "Choose a picture"
    live_picture_may: str = "First picture, if you like"
    live_drag: str = "Press Start, then walk with the arrow keys, and drag on the picture to look around."
    live_left: str = "others wait: {seconds} s left"
    live_rate: str = "{fps} frames a second · {milliseconds} ms behind"
    live_kept: str = "The video is in your library."
    live_lost: str = "The studio cannot be reached. Is it still running?"
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

    edit_none: str = "No model on this machine makes clips anew."
    edit_upscale: str = "Upscale the clip"
    edit_drop: str = "Drop a clip here, or choose one: mp4, webm, mov or gif"
    edit_other: str = "Another clip"
    edit_reading: str = "Reading the clip…"
    edit_large: str = "A clip may have {megabytes} MB. Cut out the part that you want first."
    edit_facts: str = "{width} × {height} · {fps} frames a second · {seconds} s"
    edit_sound: str = "with sound"
    edit_part: str = "{start} to {end} s: {frames} frames at {fps} a second, {length} s"
    edit_short: str = "This clip is too short: {model} needs {frames} frames, {seconds} s."
    edit_from: str = "Where the part begins, in seconds"
    edit_to: str = "Where the part ends, in seconds"
    edit_placeholder: str = "What should it become?"
    edit_placeholder_sound: str = "What should be heard?"
    edit_placeholder_animate: str = "The figure and the scene, if you like"
    edit_as_picture: str = "As the picture"
    animated: str = "An animated figure"
    edit_drive_prompt: str = "What the clip shows"
    edit_poses: str = (
        "For this model the clip above is one of poses. Poses, faces and masks are not made here: the scripts in "
        "wan/modules/animate/preprocess of github.com/Wan-Video/Wan2.2 make them."
    )
    edit_face: str = "A clip of the face, cut out square"
    edit_into: str = "The clip into which the figure is put"
    edit_into_mask: str = "Its mask, white where the figure goes"
    edit_figure: str = "The figure that moves"
    edit_add_figure: str = "Choose a picture of the figure"
    edit_strength: str = "How much is made anew"
    edit_steps: str = "{count} of {steps} steps"
    edit_seed: str = "new each time"
    edit_ways: str = "What to do with the clip"
    edit_way_anew: str = "Make anew"
    edit_way_follow: str = "Follow"
    edit_way_paint: str = "Paint over"
    edit_way_widen: str = "Widen"
    edit_way_extend: str = "Go on"
    edit_way_keys: str = "Key frames"
    edit_way_sound: str = "Add sound"
    edit_way_animate: str = "Animate"
    edit_hint_anew: str = "The clip, touched up or made anew by how much you say."
    edit_hint_follow: str = "A new video that moves as the clip does."
    edit_hint_paint: str = "Paint over what should be made anew; the rest stays."
    edit_hint_widen: str = "New pixels around the clip, in a larger picture."
    edit_hint_extend: str = "A new video that continues the clip, or leads up to it."
    edit_hint_keys: str = "A video through the pictures that you place on its timeline."
    edit_hint_animate: str = "The figure in a picture moves as the one in the clip does, for as long as the clip is."
    edit_hint_sound: str = "The clip as it is, with a new sound made for its pictures. The prompt says what is heard."
    edit_kind: str = "What it follows"
    edit_kind_edges: str = "the clip's edges"
    edit_kind_grey: str = "the clip in grey, for new colours"
    edit_kind_as_is: str = "this is a control clip: depth, pose or scribble"
    edit_scale: str = "How closely it follows what it is shown"
    edit_downscale: str = "How large the model sees the clip, as its LoRA was trained"
    edit_downscale_none: str = "as large as the video"
    edit_downscale_half: str = "half as wide and high"
    edit_lora: str = "The LoRA that follows such clips"
    edit_brush: str = "Paint"
    edit_eraser: str = "Erase"
    edit_brush_size: str = "Size of the brush"
    edit_undo: str = "Undo"
    edit_clear: str = "Clear"
    edit_play: str = "Play the clip below the paint"
    edit_canvas: str = "Paint here what is made anew"
    edit_invert: str = "Keep what is painted, and make the rest anew"
    edit_keeps: str = "Keep the clip's own pixels where nothing is made anew"
    edit_keeps_sound: str = "Keep the clip's sound, if it has one"
    edit_bring: str = "Bring a mask: a picture or a clip, white is made anew"
    edit_brought: str = "Mask: {name}"
    edit_unpainted: str = "Paint what should be made anew first, or bring a mask."
    edit_left: str = "Left"
    edit_top: str = "Above"
    edit_right: str = "Right"
    edit_bottom: str = "Below"
    edit_margins: str = "New pixels on each side"
    edit_inner: str = "The clip takes {inner} of {outer}."
    edit_where: str = "Where"
    edit_after: str = "after its end"
    edit_before: str = "before its beginning"
    edit_length: str = "Length of the video"
    edit_lengths: str = "{seconds} s ({frames} frames)"
    edit_overlap: str = "Frames taken over from the clip"
    edit_overlaps: str = "{frames} frames"
    edit_goes_after: str = "Begins with the {overlap} frames before {at} s; {new} frames after them are new."
    edit_goes_before: str = "Ends with the {overlap} frames from {at} s on; {new} frames before them are new."
    edit_track: str = "Key frames of the video"
    edit_track_empty: str = "Drop pictures here, each at its moment"
    edit_add_keys: str = "Add pictures"
    edit_key: str = "Frame {frame} of {last}, at {at} s"
    edit_remove: str = "Remove"
    edit_key_taken: str = "Two pictures cannot be the same frame: this one went to the nearest free one, {frame}."
    edit_key_full: str = "Every frame of the video has a picture already."
    edit_references: str = "Reference pictures of what should be seen"
    edit_add_reference: str = "Add a reference picture"
    edit_references_full: str = "There can be {count} reference pictures at most."
    edit_pictures_only: str = "Key frames are pictures: png, jpeg or webp."

    image: str = "First frame"
    image_placeholder: str = "Drop, paste or choose a picture"
    image_preview: str = "Crop to {width} × {height}"
    image_preview_empty: str = "The part that the video starts from appears here."
    image_hint: str = "Click the picture to move the crop."
    image_examples: str = "Or start from one of these"
    last_image: str = "Last frame (optional)"
    own_sound: str = "Your own sound"
    own_sound_file: str = "The picture follows it: a file, or a recording."
    recording_unsent: str = "The recording could not be uploaded. Press Generate to send it again."
    own_sound_start: str = "Begin at this second of it"
    image_pad: str = "Add bars instead"

    generate: str = "Generate"
    stop: str = "Stop"
    stopping: str = "Stopping…"
    save_changes: str = "Save changes"
    keep_as_it_is: str = "Leave it as it is"
    estimate_about: str = "About {seconds}"
    estimate_measured: str = "By the last {count} of this size that were made here"
    estimate_scaled: str = "Estimated from {count} of other sizes that were made here"
    estimate_about_predicted: str = "About {seconds} (predicted)"
    estimate_predicted: str = "Predicted from the chips' published rates: nothing was made here with this model yet"
    estimate_none: str = "No estimate before its first video"
    estimate_compiles: str = "compiles first ({seconds})"
    estimate_compiles_unknown: str = "compiles first"
    estimate_warm: str = "nothing to compile"
    estimate_loads: str = "loads its model first ({seconds})"
    estimate_loads_unknown: str = "loads its model first"

    queue_title: str = "Queue"
    queue_empty: str = "Nothing is waiting. Generate as often as you like: videos wait here for their turn."
    queue_recent: str = "Just ended"
    queue_group: str = "{width} × {height} · {frames} frames"
    queue_warm: str = "compiled"
    queue_wait: str = "done in about {seconds}"
    queue_other: str = "Somebody else's video is in line too; everybody gets a turn."
    queue_others: str = "{count} videos of others are in line too; everybody gets a turn."
    queue_up: str = "Earlier"
    queue_down: str = "Later"
    queue_edit: str = "Change before it starts"
    queue_duplicate: str = "Queue the same once more"
    queue_cancel: str = "Take out of the queue"
    queue_stop: str = "Stop and keep what is done so far"
    queue_show: str = "Show: {prompt}"
    queue_steps: str = "{steps} steps · seed {seed}"

    same_again: str = "Same again"
    new_seed: str = "New seed"
    full_quality: str = "Full quality"
    full_quality_hint: str = "Load the settings of {title}: same prompt and seed"
    go_on: str = "Continue"
    go_on_hint: str = "Start the next video from the last frame of this one"
    go_on_sound_hint: str = "Start the next video with the end of this one, picture and sound"
    edit_this: str = "Edit"
    edit_this_hint: str = "Take this video as the clip in Edit: make it anew, paint over it, go on after its end"
    use_settings: str = "Use settings"
    star: str = "Star"
    delete: str = "Delete"
    deleted: str = "Deleted."
    undo: str = "Undo"
    restore: str = "Restore"
    restored: str = "It is back in the library."
    open_folder: str = "Open folder"
    folder_opened: str = "Opened on the server: {folder}"
    folder_at: str = "The server has no desktop to open it on. It is at {folder}"
    add_compare: str = "Compare"
    frame_back: str = "One frame back"
    frame_on: str = "One frame on"
    play: str = "Play"
    pause: str = "Pause"
    loop: str = "Loop"
    sound: str = "Sound on or off"
    sound_refused: str = "Your browser begins videos without sound. Press here to hear it."
    volume: str = "Volume"
    with_sound: str = "with sound"
    scrub: str = "Position in the video"
    close: str = "Close"
    loaded: str = "Settings loaded, with the seed {seed}."
    loaded_new_seed: str = "Settings loaded; a new seed is drawn each time."
    loaded_seed_button: str = "New seed instead"
    loaded_elsewhere: str = "{preset} is not on this machine, so nothing was loaded."
    loaded_first_frame: str = "Its first frame was taken from the video itself."
    loaded_cues: str = "What changed while it was made live is left out; Same again, below the video, keeps it."
    loaded_clip: str = "The clip or the pictures that it was made from are left out; Same again, below the video, keeps them."
    loaded_own_sound: str = (
        "The sound that its picture followed is not in the video's settings: give it again under Your own sound."
    )
    loaded_editing: str = "You are changing a video that waits."
    loaded_full: str = "These are the settings of {title}. Press Generate when you like them."
    loaded_fits: str = "With these settings it fits into the memory. Press Generate when you like them."
    loaded_as_clip: str = "The video is the clip now. Choose what should be done with it."
    loaded_goes_on: str = "The video is the clip now, and the next one begins with its end, sound and all. Say how it goes on."
    loaded_continue: str = "The last frame is now the first one. Say how it goes on."
    not_used: str = "Not used here: {settings}."
    kept: str = "Also used from the loaded video"
    kept_remove: str = "Do not use this: {setting}"
    setting_on: str = "on"
    setting_off: str = "off"
    setting_task: str = "kind of video"
    setting_preset: str = "model"
    setting_is_open: str = "open end"
    setting_width: str = "width"
    setting_height: str = "height"
    setting_num_frames: str = "frames"
    setting_guidance: str = "guidance"
    setting_seed: str = "seed"
    setting_prompt: str = "prompt"
    setting_negative_prompt: str = "negative prompt"
    setting_fps: str = "frames per second"
    setting_steps: str = "steps"
    setting_sound_guidance: str = "audio guidance"
    setting_perturbed_guidance: str = "perturbed guidance"
    setting_modality_guidance: str = "modality guidance"
    setting_guidance_rescale: str = "guidance rescale"
    setting_flow_shift: str = "flow shift"
    setting_solver: str = "sampler"
    setting_image: str = "first frame"
    setting_last_image: str = "last frame"
    setting_video: str = "clip"
    setting_strength: str = "strength"
    setting_trim: str = "part of the clip, seconds"
    setting_mask: str = "mask"
    setting_control: str = "control clip"
    setting_control_kind: str = "kind of control clip"
    setting_control_scale: str = "control strength"
    setting_control_downscale: str = "control clip smaller by"
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
    setting_guidance_interval: str = "guided share of the steps"
    setting_cfg_zero: str = "CFG-Zero*"
    setting_nag: str = "NAG"
    setting_step_cache: str = "step cache"
    setting_mag_cache: str = "MagCache"
    setting_progressive: str = "first steps at half size, level"
    setting_keeps_sound: str = "audio"
    setting_sound: str = "audio file"
    setting_sound_start: str = "start of the audio, seconds"
    setting_make: str = "generate"
    setting_drive: str = "motion clip"
    setting_face: str = "face clip"
    setting_drive_prompt: str = "prompt of the motion clip"
    setting_action: str = "action"
    setting_cues: str = "live changes"
    setting_context_windows: str = "context windows"
    setting_shots: str = "shots"
    setting_shot_images: str = "images of shots"
    setting_shot_videos: str = "finished shots"
    setting_shot_drives: str = "motion clips of shots"
    setting_figures: str = "characters"
    setting_figure_images: str = "images of characters"
    setting_track: str = "soundtrack"
    setting_track_start: str = "start of the soundtrack, seconds"
    setting_track_fade: str = "fade of the soundtrack, seconds"
    setting_track_volume: str = "volume of the soundtrack"
    setting_upscale: str = "upscaling factor"
    setting_upscaler: str = "upscaler"
    drop_clip: str = "Drop it here, to use it in Edit"
    drop_here: str = "Drop it here: a video made here loads its settings, a picture becomes the first frame"

    project: str = "Project"
    projects: str = "Projects"
    projects_all: str = "All projects"
    projects_none: str = "In no project"
    projects_hint: str = "A project keeps videos together. One of them can take what you make next."
    projects_archived: str = "archived"
    project_name: str = "Name of a project"
    project_create: str = "New project"
    project_rename: str = "Give this name"
    project_use: str = "New videos go here"
    project_leave: str = "New videos go nowhere in particular"
    project_archive: str = "Archive"
    project_restore: str = "Bring back"
    project_export: str = "Export as a file"
    project_import: str = "Import a project"
    project_large: str = "The file could not be sent: a project may have {megabytes} MB, and all uploads of an hour have a limit."
    project_delete: str = "Delete the project; its videos stay"
    project_made: str = "The project {name} is there."
    project_imported: str = "{name}: {count} videos have come in."
    project_goes: str = "Goes into the project {name}."
    tags: str = "Tags"
    tags_hint: str = "words with blanks between them; a search for #word finds them"
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
        ("720p", "720p and more"),
    )
    library_search: str = "Search in prompts, or #tag"
    library_order: str = "Order"
    library_presets: str = "All models"
    library_starred: str = "Starred"
    library_bin: str = "Deleted"
    library_count: str = "{count} videos"
    library_one: str = "1 video"
    library_none: str = "No video fits."
    library_empty: str = "Every video that you make appears here."
    library_more: str = "Show more"
    library_choose: str = "Choose a video to see all about it."
    library_request: str = "Settings"
    library_versions: str = "Made with"
    library_made: str = "Made {when} UTC"
    library_owner: str = "By {owner}"
    show: str = "Show on the stage"

    compare_vary: str = "Vary"
    compare_values: str = "Values, up to four"
    compare_also: str = "And, in rows"
    compare_also_none: str = "Nothing else"
    compare_presets: str = "Models, up to four"
    compare_start: str = "Queue them"
    compare_what: tuple[tuple[str, str], ...] = (
        ("seed", "Seed"),
        ("steps", "Steps"),
        ("guidance", "Guidance"),
        ("flow_shift", "Flow shift"),
        ("preset", "Model"),
        ("loras", "LoRAs on and off"),
    )
    compare_hint: str = "Such as 8, 20, 40; no seeds: four new ones"
    compare_empty_title: str = "Nothing to compare yet"
    compare_empty: str = (
        "Fill in the form under Create, then vary one of its settings here. Or choose videos with Compare in the library."
    )
    compare_tray: str = "{count} chosen. Choose another to see them side by side."
    compare_export: str = "Save as one video"
    copy_link: str = "Copy link"
    copy_by_hand: str = "Press Ctrl+C to copy the selected text."
    compare_linked: str = "The link is in the clipboard. Only you see the videos behind it; others get the settings."
    compare_hear: str = "Hear video {number} (key {number})"
    compare_wipe: str = "Wipe"
    compare_wipe_left: str = "Left video"
    compare_wipe_right: str = "Right video"
    compare_wipe_edge: str = "Where the wipe is"
    compare_clear: str = "Start over"
    compare_rates: str = "Arithmetic"
    share_of_peak: str = "{percent:.0f} % of the peak (MFU)"
    compare_same: str = "All settings are the same."
    compare_original: str = "Before and after"
    compare_before: str = "Before"
    compare_after: str = "After"
    compare_progress: str = "{done} of {total} done"
    compare_shared: str = "Somebody else's comparison: here are its settings. Queue them to see the videos."
    compare_not_varied: str = "The videos also differ in settings that cannot be varied here: {settings}."
    compare_off: str = "off"

    own_presets: str = "Presets"
    own_title: str = "Your presets"
    own_none: str = "Keep the settings of the form under a name of your own."
    own_name: str = "Name"
    own_save: str = "Save"
    own_saved: str = "Saved as {name}."
    own_rename: str = "Rename to the name above"
    own_export: str = "Export all"
    own_import: str = "Import"
    own_load: str = "Load {name}"
    own_imported: str = "{count} presets were imported."
    own_linked: str = "The link is in the clipboard. It opens the studio with these settings."
    own_linked_without: str = "Files are not part of a link: {settings}."
    own_bad_file: str = "This file holds no presets of this studio: {reason}"

    system_devices: str = "Devices"
    system_memory: str = "{used} of {limit} in use"
    system_memory_unknown: str = "does not report its memory"
    system_not_used: str = "Not used"
    system_worker: str = "Worker"
    system_machine: str = "Machine"
    system_model: str = "Model loaded"
    system_no_model: str = "none"
    system_kept: str = "Models kept"
    system_kept_bytes: str = "{chips} on the devices, {host} in the host's memory"
    system_kept_chips: str = "{chips} on the devices"
    system_kept_host: str = "{host} in the host's memory"
    system_pinned: str = "pinned"
    system_pin: str = "Pin"
    system_pin_hint: str = "Keep this model as long as there is room"
    system_unpin: str = "Unpin"
    system_unpin_hint: str = "Let this model go when another one needs the room"
    system_drop: str = "Drop"
    system_drop_hint: str = "Take this model out of memory; its files stay"
    system_shapes: str = "Compiled sizes"
    system_rates: str = "Last video"
    system_refused: str = "Refused here, so not used"
    system_no_shapes: str = "none yet"
    system_shape: str = "{task} {width} × {height}, {frames} frames, {guided}"
    system_guided: str = "guided"
    system_unguided: str = "unguided"
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
    system_disk: str = "Free on the disk"
    system_limits: str = "Limits for videos"
    system_limit_days: str = "{days:g} days"
    system_limit_size: str = "{gigabytes:g} GB in all"
    system_limit_both: str = "{days}, {size}"
    system_limit_none: str = "none"
    system_clean: str = "Clean up now"
    system_clean_hint: str = "Remove what the hourly cleaning would remove"
    system_cleaned: str = "{size} freed: {parts}."
    system_cleaned_nothing: str = "There was nothing to remove."
    system_jobs: str = "Jobs"
    system_versions: str = "Versions"
    charts: str = "The last hour and day"
    chart_steps: str = "Time of a step"
    chart_queue: str = "Videos in line and being made"
    chart_memory: str = "Memory of the devices"
    chart_disk: str = "Disk in use"
    chart_hour: str = "hour"
    chart_day: str = "day"
    system_errors: str = "Recent errors"
    system_no_errors: str = "None."
    system_copy: str = "Copy report"
    system_copied: str = "The report is in the clipboard."
    system_operator: str = "You are the operator: you see everybody's jobs and videos."
    system_visitor: str = "You see your own jobs and videos."
    system_log: str = "End of the worker's log"

    models_operator: str = (
        "One download at a time. A pause, a broken connection or a restart loses nothing: the next one goes on within each file."
    )
    models_visitor: str = (
        "What this server makes videos with. Its operator can bring more: the operator's link is in the last line that the"
        " studio printed when it began."
    )
    models_here: str = "On this machine"
    models_coming: str = "Being downloaded"
    models_others: str = "Can be downloaded"
    models_count: str = "models {models}, LoRAs {loras}"
    model_disk: str = "Disk"
    model_disk_least: str = "{size} at least, by its networks; the Hub says it exactly before the first byte comes"
    model_disk_unknown: str = "the Hub says it before the first byte comes"
    model_memory: str = "Memory"
    model_weights: str = "{size} of weights, on all devices together"
    model_room: str = "there are {size}"
    model_unknown: str = "not known"
    model_slice: str = "Slice"
    model_anywhere: str = "none: any computer"
    model_slice_found: str = "{slice} for {preset}: {gib:g} GiB a chip, {seconds} a step (predicted)"
    model_slice_unknown: str = "not looked at yet: app.py check-tpu --preset {preset}"
    model_licence: str = "Licence"
    model_licence_hub: str = "as on its page on the Hub"
    model_licence_ours: str = "the studio's own"
    model_presets: str = "Presets"
    model_verdicts: tuple[tuple[str, str], ...] = (
        ("runs", "runs here"),
        ("short", "too large for this machine"),
        ("slow", "needs a TPU or a GPU"),
        ("untried", "not tried on these devices"),
        ("unknown", "devices not known yet"),
    )
    model_resume: str = "Resume"
    model_again: str = "Try again"
    model_later: str = "Not now"
    model_remove: str = "Remove"
    model_begun: str = "{model} stands at the top now, under “{where}”."
    model_sure: str = "Remove {model} from this machine?"
    model_removed: str = "{model} was removed: {size} are free again."
    model_share: str = "{done} of {total}"
    model_paused: str = "Paused at {share}"
    model_phases: tuple[tuple[str, str], ...] = (
        ("waiting", "Waits for the download before it"),
        ("asking", "Asking the Hub for its files"),
        ("pausing", "Pausing"),
    )

    host_refused: str = "This server does not answer to the name {name}. If it should, start it with --allowed-host {name}."
    origin_refused: str = "A page from {origin} may not use this server. Open the server's own page."
    not_found: str = "There is nothing here."
    login_needed: str = "Log in first: this server asks for a password."
    logout_by_post: str = "A login ends by a POST from this server's own page."
    login_pause: str = "Too many wrong passwords. Try again in {seconds} s."
    key_needed: str = "The operator's key is needed as a bearer token."
    program_key_needed: str = (
        "A key is needed as a bearer token. Whoever runs this server makes one: python app.py keys create NAME."
    )
    key_unknown: str = "This key is not known here, or was revoked. Ask whoever runs this server for another."
    too_many_open: str = "Too many requests from your address are open. Close some pages and try again."
    too_many_streams: str = "Too many pages or programs of yours are connected at once. Close some and try again."
    body_slow: str = "The request came too slowly. Try again."
    file_refused: str = "A file in this request was not uploaded here. Upload it first."
    disk_low: str = "The server's disk is almost full, so it takes nothing more. Ask the operator to make room."
    body_refused: str = "This is too long to be sent: at most {kilobytes} KB at a time. Shorten the text."
    upload_refused: str = "Too much was uploaded from here within an hour: at most {megabytes} MB. Try again later."

    password_made: str = "Visitors are asked for user {user} and password {password} (--auth sets others, --open asks for none)"
    operator_link: str = "For the operator, who sees everybody's videos: {address}"
    idle_title: str = "Nothing made yet"
    idle_detail: str = "Write a prompt and press Generate. Every step appears here as it is computed."
    queued_next: str = "Next in the queue"
    queued_place: str = "Place {place} in the queue"
    queued_first: str = "{count} videos come first."
    queued_one_first: str = "One video comes first."
    queued: str = "Waiting"
    interrupted: str = "Interrupted"
    goes_on: str = "It goes on by itself from there, as soon as a worker is ready. Nothing that was done is lost."
    held: str = "Work on this video was ended from outside several times. It waits for you, or for ten minutes without a failure."
    go_on_now: str = "Go on now"
    disk_short: str = "The disk has {free} free, and the next video needs {needed}: make room, the queue goes on by itself."
    disk_full: str = "The disk is full: make room, the queue goes on by itself."
    starting: str = "Starting"
    loading: str = "Loading the model"
    downloading: str = "Downloading the model"
    compiling: str = "Compiling {what}"
    compiling_share: str = "{index} of {total}"
    compiling_detail: str = "This happens once for each size and length."
    encoding: str = "Reading the prompt"
    denoising: str = "Denoising"
    denoising_step: str = "Step {index} of {total}"
    decoding: str = "Decoding"
    decoding_frame: str = "Frame {frame} of {total}"
    finished: str = "Done in {seconds}"
    cancelled: str = "Stopped"
    cancelled_partial: str = "This is how far it had come when it was stopped."
    cancelled_nothing: str = "It stopped before there was a picture to keep."
    failed: str = "It did not work"
    rate: str = "{seconds} a step"
    time_left: str = "{seconds} left"
    time_left_about: str = "about {seconds} left"
    fits: str = "{width} × {height} · {frames} frames"
    fits_hint: str = "This would fit into the memory. The button fills the form; nothing is made yet."
    preview_label: str = "Preview of the video so far"
    video_label: str = "Generated video: {prompt}"
    fact_size: str = "Size"
    fact_guidance: str = "Guidance"
    fact_guided_steps: str = "Guided steps"
    fact_nag: str = "NAG"
    fact_shots: str = "Shots"
    fact_windows: str = "Windows of"
    fact_window_frames: str = "{frames} frames"
    fact_shift: str = "Shift"
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
    download_sound: str = "Sound (wav)"
    upscale_menu: str = "Upscale…"
    upscaling: str = "Making it larger"
    fact_upscaled: str = "Upscaled"
    fact_upscaled_by: str = "{scale}× by {name}, from {width} × {height}"
    export: str = "Formats…"
    export_smooth: str = "MP4 at {fps} frames a second, smoothed"
    export_webm: str = "WebM, for the web"
    export_gif: str = "GIF: at most {seconds} s, {side} pixels, {size} MB"
    export_webp: str = "Animated WebP: at most {seconds} s, {side} pixels, {size} MB"
    export_png: str = "PNG frames, zip"
    task_export: str = "Exporting"
    task_film: str = "Cutting the film"
    task_comparison: str = "Writing the comparison"
    task_import: str = "Importing the project"
    task_project: str = "Exporting the project"
    task_waits: str = "waiting for others"
    keep_seed: str = "Use this seed"

    details: tuple[tuple[str, str], ...] = tuple((text, text) for text in DETAILS)
    worker_starting: str = "Starting…"
    worker_loading: str = "Model is loading…"
    worker_warming: str = "Warming up…"
    worker_ready: str = "Ready"
    worker_busy: str = "Generating"
    worker_failed: str = "Model failed to start"
    workers_alike: str = "{count} of {total} workers"
    worker_none: str = "Waiting for a machine of the cluster"
    job_queued: str = "waiting"
    job_running: str = "being made"
    job_finished: str = "finished"
    job_failed: str = "failed"
    job_cancelled: str = "stopped"

    opened_without: str = "The page was opened without the settings of its link."
    error_unexpected: str = "Something went wrong in the studio."
    error_unexpected_fix: str = "Try again; the server's log says more."

    def beginning(self, prefix: str) -> dict[str, str]:
        """The plain words whose names begin with this, by the rest of their names: for a view's script."""
        names = [field.name for field in fields(self) if field.name.startswith(prefix) and field.type is str]
        return {name.removeprefix(prefix): getattr(self, name) for name in names}


ENGLISH = Texts()
