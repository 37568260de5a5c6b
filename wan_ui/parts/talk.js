// What the scripts of views have in common that talk to the server themselves: it stands before each of them. `viewName` is
// the view's: its addresses begin with it, and its part of the page has it as a class.
const find = selector => element.querySelector(selector);
const words = () => JSON.parse(find(`.${viewName}`)?.dataset.words ?? '{}');
const note = text => {
  const shown = find(`.${viewName} > .note`);
  if (!shown) return;
  shown.textContent = text;
  shown.hidden = !text;
};
const fill = (text, values) => text.replace(/\{(\w+)(:[^}]*)?\}/g, (_, name) => values[name]);
const post = (path, body) => fetch(`studio/${viewName}${path}`, {
  method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify(body ?? {}),
});
// What the server answers; null if it refuses, and the note says why.
const send = async (path, body) => {
  try {
    const answer = await post(path, body), given = await answer.json();
    note(given.error ?? '');
    return answer.ok && !given.error ? given : null;
  } catch {
    note(words().lost);
    return null;
  }
};
// A file, uploaded: its path on the server; null if that failed.
const uploaded = async file => {
  const form = new FormData();
  form.append('files', file);
  try {
    const answer = await fetch('gradio_api/upload', {method: 'POST', body: form});
    if (answer.ok) return (await answer.json())[0];
    note((await answer.text()) || words().lost);
  } catch {
    note(words().lost);
  }
  return null;
};
const addressOf = path => (path.startsWith('/studio/media/') ? path.slice(1) : `gradio_api/file=${path.split('/').map(encodeURIComponent).join('/')}`);
// A pointer that is pressed on this belongs to it until it is released, wherever it goes.
const capture = (target, event) => {
  try { target.setPointerCapture(event.pointerId); } catch { /* the pointer is gone already */ }
};
const onRelease = act => {
  for (const kind of ['pointerup', 'pointercancel']) element.addEventListener(kind, act);
};

