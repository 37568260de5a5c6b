"""Every sentence that a visitor reads. One frozen value a language; nothing else in `wan_ui` spells words out."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The studio's words in one language. Fields with braces are filled in with `str.format`."""

    product: str = "Wan TPU Studio"
    serving: str = "{product} is at {address}"
    theme_toggle: str = "Switch between light and dark"

    view_create: str = "Create"
    view_compare: str = "Compare"
    view_library: str = "Library"
    view_system: str = "System"
    views: str = "Views"
    help_title: str = "Keyboard"
    help_keys: tuple[tuple[str, str], ...] = (
        ("Ctrl ↵", "Generate"),
        ("Esc", "Stop, or close what is open"),
        ("Alt 1 – 4", "Create, Compare, Library, System"),
        ("Alt Q", "Show or hide the queue"),
        (", .", "One frame back, one frame on"),
        ("Space", "Play or pause"),
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

    rewrite: str = "Suggest"
    rewrite_use: str = "Use it"
    rewrite_same: str = "There is nothing to change."
    history: str = "Earlier prompts"
    history_empty: str = "Your prompts will be kept here."

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

    more: str = "More settings"
    fps: str = "Frames a second"
    solver: str = "Sampler"
    guidance_start: str = "Guidance from (% of steps)"
    guidance_end: str = "Guidance until (% of steps)"
    step_cache: str = "Reuse similar steps (0 is off)"
    loras: str = "LoRAs, one a line"
    loras_info: str = "FILE.safetensors from the loras folder, or OWNER/NAME:FILE; then = and a strength"

    image: str = "First frame"
    image_placeholder: str = "Drop, paste or choose a picture"
    image_preview: str = "Crop to {width} × {height}"
    image_preview_empty: str = "The part that the video starts from appears here."
    image_hint: str = "Click the picture to move the crop."
    image_examples: str = "Or start from one of these"
    last_image: str = "Last frame (optional)"
    image_pad: str = "Add bars instead"

    generate: str = "Generate"
    stop: str = "Stop"
    stopping: str = "Stopping…"
    save_changes: str = "Save changes"
    keep_as_it_is: str = "Leave it as it is"
    estimate_about: str = "About {seconds}"
    estimate_measured: str = "By the last {count} of this size that were made here"
    estimate_scaled: str = "Reckoned from {count} of other sizes that were made here"
    estimate_about_predicted: str = "About {seconds} (predicted)"
    estimate_predicted: str = "Predicted from the chips' published rates: nothing was made here with this model yet"
    estimate_none: str = "No estimate before its first video"
    estimate_compiles: str = "compiles first ({seconds})"
    estimate_compiles_unknown: str = "compiles first"
    estimate_warm: str = "nothing to compile"

    queue_title: str = "Queue"
    queue_empty: str = "Nothing is waiting. Generate as often as you like: videos are made one after another."
    queue_recent: str = "Just ended"
    queue_group: str = "{width} × {height} · {frames} frames"
    queue_warm: str = "compiled"
    queue_cold: str = "compiles first"
    queue_wait: str = "done in about {seconds}"
    queue_others: str = "{count} videos of others are in line too; everybody gets a turn."
    queue_up: str = "Earlier"
    queue_down: str = "Later"
    queue_edit: str = "Change before it starts"
    queue_duplicate: str = "Queue the same once more"
    queue_cancel: str = "Take out of the queue"
    queue_stop: str = "Stop and keep what there is"
    queue_show: str = "Show: {prompt}"
    queue_steps: str = "{steps} steps · seed {seed}"

    same_again: str = "Same again"
    new_seed: str = "New seed"
    full_quality: str = "Full quality"
    full_quality_hint: str = "Load the settings of {title}: same prompt and seed"
    go_on: str = "Continue"
    go_on_hint: str = "Start the next video from the last frame of this one"
    use_settings: str = "Use settings"
    star: str = "Star"
    delete: str = "Delete"
    deleted: str = "Deleted."
    undo: str = "Undo"
    restore: str = "Take back"
    restored: str = "It is back in the library."
    open_folder: str = "Open folder"
    folder_opened: str = "Opened on the server: {folder}"
    folder_at: str = "The server has no desktop to open it on. It is at {folder}"
    add_compare: str = "Compare"
    frame_back: str = "One frame back"
    frame_on: str = "One frame on"
    play: str = "Play or pause"
    loop: str = "Loop"
    scrub: str = "Position in the video"
    close: str = "Close"
    loaded: str = "Settings loaded, with the seed {seed}."
    loaded_new_seed: str = "Settings loaded; a new seed is drawn each time."
    loaded_seed_button: str = "New seed instead"
    loaded_elsewhere: str = "{preset} is not on this machine, so nothing was loaded."
    loaded_first_frame: str = "Its first frame was taken from the video itself."
    loaded_editing: str = "You are changing a video that waits."
    loaded_full: str = "These are the settings of {title}. Press Generate when you like them."
    loaded_continue: str = "The last frame is now the first one. Say how it goes on."
    drop_here: str = "Drop it here: a video of ours loads its settings, a picture becomes the first frame"

    library_search: str = "Search in prompts"
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
    compare_empty: str = "Vary one setting of the form on the left, or choose videos with Compare in the library."
    compare_tray: str = "{count} chosen. Choose another to see them side by side."
    compare_export: str = "Save as one video"
    compare_link: str = "Copy link"
    compare_linked: str = "The link is in the clipboard. Only you see the videos behind it; others get the settings."
    compare_wipe: str = "Wipe"
    compare_wipe_left: str = "Left video"
    compare_wipe_right: str = "Right video"
    compare_wipe_edge: str = "Where the wipe is"
    compare_clear: str = "Start over"
    compare_seconds: str = "Seconds"
    compare_same: str = "All settings are the same."
    compare_progress: str = "{done} of {total} done"
    compare_shared: str = "Somebody else's comparison: here are its settings. Queue them to see the videos."
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
    own_delete: str = "Delete"
    own_load: str = "Load {name}"
    own_imported: str = "{count} presets came in."
    own_link: str = "Copy link"
    own_linked: str = "The link is in the clipboard. It opens the studio with these settings."
    own_bad_file: str = "This file holds no presets of ours: {reason}"

    system_devices: str = "Devices"
    system_memory: str = "{used} of {limit} in use"
    system_memory_unknown: str = "does not tell its memory"
    system_worker: str = "Worker"
    system_model: str = "Model loaded"
    system_no_model: str = "none"
    system_shapes: str = "Compiled sizes"
    system_no_shapes: str = "none yet"
    system_shape: str = "{task} {width} × {height}, {frames} frames, {guided}"
    system_guided: str = "guided"
    system_unguided: str = "unguided"
    system_storage: str = "Storage"
    system_cache: str = "Compiler cache"
    system_videos: str = "Videos and jobs"
    system_disk: str = "Free on the disk"
    system_jobs: str = "Jobs"
    system_versions: str = "Versions"
    system_errors: str = "Recent errors"
    system_no_errors: str = "None."
    system_copy: str = "Copy report"
    system_copied: str = "The report is in the clipboard."
    system_operator: str = "You are the operator: you see everybody's jobs and videos."
    system_visitor: str = "You see your own jobs and videos."
    system_log: str = "End of the worker's log"


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

CHINESE = Texts(
    product="Wan TPU 工作室",
    theme_toggle="切换明暗",
    views="页面",
    view_create="创作",
    view_compare="对比",
    view_library="资料库",
    view_system="系统",
    help_title="键盘快捷键",
    help_keys=(
        ("Ctrl ↵", "生成"),
        ("Esc", "停止，或关闭打开的菜单"),
        ("Alt 1 – 4", "创作、对比、资料库、系统"),
        ("Alt Q", "显示或隐藏队列"),
        (", .", "后退一帧，前进一帧"),
        ("Space", "播放或暂停"),
        ("← → ↑ ↓", "在资料库中移动；回车显示视频"),
        ("S C Del", "收藏、对比、删除所选视频"),
        ("?", "本列表"),
    ),
    tab_text="文生视频",
    tab_image="图生视频",
    prompt="提示词",
    prompt_placeholder="视频里要有什么？",
    negative_prompt="反向提示词",
    negative_placeholder="不想出现的内容（可留空）",
    examples="试试这些",
    rewrite="润色建议",
    rewrite_use="采用",
    rewrite_same="没有需要修改的地方。",
    history="用过的提示词",
    history_empty="您的提示词会保存在这里。",
    preset="模型",
    presets_elsewhere="另有 {count} 个不在本机",
    presets_none="本机没有能做这件事的模型。",
    preset_missing="本机没有它的权重。",
    preset_fix="请在有权重的机器上用 --model {model} 启动。",
    resolution="分辨率",
    length="时长",
    length_choice="{seconds:.1f} 秒 · {frames} 帧",
    steps="步数",
    guidance="引导强度",
    guidance_low="低噪声引导强度",
    flow_shift="时间步偏移",
    seed="种子",
    seed_random="每次换新种子",
    more="更多设置",
    fps="每秒帧数",
    solver="采样器",
    guidance_start="引导起点（步数的百分比）",
    guidance_end="引导终点（步数的百分比）",
    step_cache="复用相近的步（0 为关闭）",
    loras="LoRA，每行一个",
    loras_info="loras 文件夹中的 FILE.safetensors，或 OWNER/NAME:FILE；后面可加 = 和强度",
    image="首帧",
    image_placeholder="拖入、粘贴或选择图片",
    image_preview="裁剪为 {width} × {height}",
    image_preview_empty="视频开始的画面会显示在这里。",
    image_hint="点击图片可移动裁剪位置。",
    image_examples="或从这些图片开始",
    last_image="尾帧（可选）",
    image_pad="改为加黑边",
    generate="生成",
    stop="停止",
    stopping="正在停止…",
    save_changes="保存修改",
    keep_as_it_is="保持原样",
    estimate_about="约 {seconds}",
    estimate_measured="依据本机最近 {count} 个同尺寸视频",
    estimate_scaled="依据本机 {count} 个其他尺寸的视频推算",
    estimate_about_predicted="约 {seconds}（预测）",
    estimate_predicted="由芯片公布的速率预测：本机尚未用该模型做过视频",
    estimate_none="做完第一个视频后才有预计时间",
    estimate_compiles="先编译（{seconds}）",
    estimate_compiles_unknown="先编译",
    estimate_warm="无需编译",
    queue_title="队列",
    queue_empty="没有等待的视频。可以连续点击生成，视频会一个接一个地制作。",
    queue_recent="刚刚结束",
    queue_group="{width} × {height} · {frames} 帧",
    queue_warm="已编译",
    queue_cold="先编译",
    queue_wait="约 {seconds} 后完成",
    queue_others="其他人还有 {count} 个视频在排队，大家轮流制作。",
    queue_up="提前",
    queue_down="推后",
    queue_edit="开始前修改",
    queue_duplicate="再排一个相同的",
    queue_cancel="移出队列",
    queue_stop="停止并保留已有部分",
    queue_show="显示：{prompt}",
    queue_steps="{steps} 步 · 种子 {seed}",
    same_again="再做一次",
    new_seed="换新种子",
    full_quality="完整质量",
    full_quality_hint="载入 {title} 的设置：提示词和种子不变",
    go_on="继续",
    go_on_hint="从本视频的最后一帧开始下一个视频",
    use_settings="使用这些设置",
    star="收藏",
    delete="删除",
    deleted="已删除。",
    undo="撤销",
    restore="恢复",
    open_folder="打开文件夹",
    folder_opened="已在服务器上打开：{folder}",
    folder_at="服务器没有桌面，无法打开。位置：{folder}",
    restored="已回到资料库。",
    add_compare="对比",
    frame_back="后退一帧",
    frame_on="前进一帧",
    play="播放或暂停",
    loop="循环",
    scrub="播放位置",
    close="关闭",
    loaded="设置已载入，种子为 {seed}。",
    loaded_new_seed="设置已载入，每次换新种子。",
    loaded_seed_button="改用新种子",
    loaded_elsewhere="本机没有 {preset}，因此没有载入任何设置。",
    loaded_first_frame="首帧取自视频本身。",
    loaded_editing="您正在修改一个等待中的视频。",
    loaded_full="这是 {title} 的设置，满意后请点击生成。",
    loaded_continue="最后一帧已成为首帧，请写下接下来的内容。",
    drop_here="拖到这里：本工作室的视频会载入其设置，图片会成为首帧",
    library_search="搜索提示词",
    library_presets="全部模型",
    library_starred="已收藏",
    library_bin="已删除",
    library_count="{count} 个视频",
    library_one="1 个视频",
    library_none="没有符合条件的视频。",
    library_empty="您制作的每个视频都会出现在这里。",
    library_more="显示更多",
    library_choose="选择一个视频查看详情。",
    library_request="设置",
    library_versions="软件版本",
    library_made="制作于 {when} UTC",
    library_owner="作者 {owner}",
    show="在舞台上显示",
    compare_vary="变化项",
    compare_values="取值，最多四个",
    compare_presets="模型，最多四个",
    compare_start="加入队列",
    compare_what=(
        ("seed", "种子"),
        ("steps", "步数"),
        ("guidance", "引导强度"),
        ("flow_shift", "时间步偏移"),
        ("preset", "模型"),
        ("loras", "有无 LoRA"),
    ),
    compare_hint="例如 8, 20, 40；种子留空则取四个新的",
    compare_empty_title="还没有可对比的视频",
    compare_empty="改变左侧表单中的一项设置，或在资料库中用“对比”选择视频。",
    compare_tray="已选 {count} 个，再选一个即可并排观看。",
    compare_export="存为一个视频",
    compare_link="复制链接",
    compare_linked="链接已在剪贴板中。只有您能看到视频，其他人得到的是设置。",
    compare_wipe="划变",
    compare_wipe_left="左侧视频",
    compare_wipe_right="右侧视频",
    compare_wipe_edge="划变位置",
    compare_clear="重新开始",
    compare_seconds="秒数",
    compare_same="所有设置都相同。",
    compare_progress="已完成 {done} / {total}",
    compare_shared="这是别人的对比：这里是它的设置，加入队列即可看到视频。",
    compare_off="关",
    own_presets="预设",
    own_title="您的预设",
    own_none="把表单的设置以您起的名字保存。",
    own_name="名称",
    own_save="保存",
    own_saved="已保存为 {name}。",
    own_rename="改为上面的名称",
    own_export="全部导出",
    own_import="导入",
    own_delete="删除",
    own_load="载入 {name}",
    own_imported="已导入 {count} 个预设。",
    own_link="复制链接",
    own_linked="链接已在剪贴板中，打开它即载入这些设置。",
    own_bad_file="此文件不是本工作室的预设：{reason}",
    system_devices="设备",
    system_memory="已用 {used}，共 {limit}",
    system_memory_unknown="不报告内存",
    system_worker="工作进程",
    system_model="已载入的模型",
    system_no_model="无",
    system_shapes="已编译的尺寸",
    system_no_shapes="还没有",
    system_shape="{task} {width} × {height}，{frames} 帧，{guided}",
    system_guided="有引导",
    system_unguided="无引导",
    system_storage="存储",
    system_cache="编译缓存",
    system_videos="视频和任务",
    system_disk="磁盘剩余",
    system_jobs="任务",
    system_versions="版本",
    system_errors="最近的错误",
    system_no_errors="没有。",
    system_copy="复制报告",
    system_copied="报告已在剪贴板中。",
    system_operator="您是管理员，可以看到所有人的任务和视频。",
    system_visitor="您只看到自己的任务和视频。",
    system_log="工作进程日志的末尾",
    upload_refused="一小时内从这里上传的内容太多：最多 {megabytes} MB，请稍后再试。",
    idle_title="还没有视频",
    idle_detail="写下提示词，点击生成。每一步的画面都会在这里出现。",
    queued_next="下一个就是它",
    queued_place="排在第 {place} 位",
    queued_first="前面还有 {count} 个视频。",
    queued_one_first="前面还有一个视频。",
    queued="等待中",
    starting="正在开始",
    loading="正在载入模型",
    compiling="正在编译 {what}",
    compiling_detail="每种尺寸和时长只需编译一次。",
    encoding="正在读取提示词",
    denoising="去噪",
    denoising_step="第 {index} / {total} 步",
    decoding="解码",
    decoding_frame="第 {frame} / {total} 帧",
    finished="用时 {seconds}",
    cancelled="已停止",
    cancelled_partial="这是停止时已有的画面。",
    cancelled_nothing="停止得太早，还没有画面可保留。",
    failed="没有成功",
    rate="每步 {seconds}",
    time_left="剩余 {seconds}",
    preview_label="视频到目前为止的预览",
    video_label="生成的视频：{prompt}",
    fact_seed="种子",
    fact_size="尺寸",
    fact_length="时长",
    fact_steps="步数",
    fact_guidance="引导",
    fact_shift="偏移",
    stage_names=(
        ("load", "载入"),
        ("compile", "编译"),
        ("encode", "编码"),
        ("denoise", "去噪"),
        ("decode", "解码"),
        ("total", "总计"),
    ),
    download="下载",
    keep_seed="使用这个种子",
    worker_starting="正在启动…",
    worker_loading="正在载入模型…",
    worker_warming="正在预热…",
    worker_ready="就绪",
    worker_busy="正在生成",
    worker_failed="模型启动失败",
    error_unexpected="工作室出了问题。",
    error_unexpected_fix="请再试一次；服务器日志里有更多信息。",
)
LANGUAGES = {"en": ENGLISH, "zh": CHINESE}
