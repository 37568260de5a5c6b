"""Actions of a visitor on the page, for the browser tests."""

from playwright import sync_api


def generate(page, prompt: str, steps: int = 2) -> None:
    page.locator("#prompt textarea").fill(prompt)
    page.locator("#steps input[type=number]").fill(str(steps))
    page.locator("#steps input[type=number]").blur()
    page.locator("#generate").click()


def made(page, prompt: str, steps: int = 2) -> str:
    """Generate a video and return its job's id."""
    generate(page, prompt, steps)
    try:
        page.wait_for_function(
            """prompt => document.querySelector('.stage').dataset.phase === 'finished'
               && document.querySelector('.stage .detail[title]').title === prompt""",
            arg=prompt,
        )
    except sync_api.TimeoutError:
        raise AssertionError(f"no video of {prompt!r} was made, and the page shows {shown(page)}") from None
    return page.locator(".stage").get_attribute("data-job")


def waiting(page) -> list[str]:
    return page.locator('.queue li[data-state="queued"] b').all_inner_texts()


def press(page, prompt: str, act: str) -> None:
    """Press a button of the queue's item with this prompt."""
    item = page.locator(".queue li", has_text=prompt).first
    item.hover()
    item.locator(f'[data-act="{act}"]').click()


def wait_until(page, expression: str, arg=None) -> None:
    """Wait until the JavaScript expression is true. Raises: AssertionError with the page's contents if it stays false."""
    try:
        page.wait_for_function(expression, arg=arg)
    except sync_api.TimeoutError:
        raise AssertionError(f"in vain: {expression}; the page shows {shown(page)}") from None


def shown(page) -> dict[str, str]:
    """Return the texts of the parts of the page that show its state, by selector."""
    places = ("#worker-status", "#message", "#instant-result", ".stage", ".queue")
    return {place: page.locator(place).first.inner_text() for place in places if page.locator(place).count()}


def held(page, requests: list) -> None:
    """Wait until a route of the test has appended a delayed request to `requests`."""
    for _ in range(1200):
        if requests:
            return
        page.wait_for_timeout(50)
    raise AssertionError("no such request came within a minute")


def ready(page) -> None:
    wait_until(page, "document.querySelector('.status')?.dataset.state === 'ready'")
    wait_until(page, "window.studio?.isOpen")


def again(page):
    """Close the tab and open another tab in the same browser."""
    address, context = page.url, page.context
    page.close()
    page = context.new_page()
    page.goto(address)
    ready(page)
    return page


def lists(page, *prompts: str) -> None:
    """Wait until the queue's waiting items have these prompts, in this order."""
    wait_until(
        page,
        """prompts => JSON.stringify([...document.querySelectorAll('.queue li[data-state="queued"] b')]
          .map(item => item.innerText)) === JSON.stringify(prompts)""",
        list(prompts),
    )


def rest(page) -> None:
    """Wait until the page has loaded nothing for a second.

    Leaving the page then interrupts no request, which would cause an error of Gradio's client in the console.
    """
    before, now = -1, 0
    while before != now:
        before = now
        page.wait_for_timeout(1000)
        now = page.evaluate("performance.getEntriesByType('resource').length")
