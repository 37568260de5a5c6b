"""What the server keeps of a page does not grow with the number of its updates."""

import asyncio

import gradio as gr
from gradio.state_holder import SessionState

from wan_ui.desk.sessions import keep_ids


def test_a_component_that_is_updated_again_and_again_is_kept_once():
    keep_ids()
    asyncio.run(_update_again_and_again())


async def _update_again_and_again() -> None:
    with gr.Blocks() as blocks:
        choice, shown = gr.Dropdown(["one"]), gr.HTML()
        gr.Button().click(lambda chosen: None, choice, [choice, shown])
    (function,) = blocks.fns.values()
    state = SessionState(blocks)
    for number in range(6):
        await blocks.preprocess_data(function, ["one"], state)
        html = gr.skip() if number % 2 else f"<p>{number}</p>"
        await blocks.postprocess_data(function, [gr.update(choices=["one", str(number)]), html], state)
    assert state.blocks_config.blocks.keys() == blocks.blocks.keys()
    assert state.config_values.keys() <= blocks.blocks.keys()
    assert state[choice._id].choices == [("one", "one"), ("5", "5")]
