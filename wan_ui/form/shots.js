// The storyboard's editor. Whatever is changed is written as JSON into the field that the form sends; empty is no storyboard.
const field = () => document.querySelector('#shots textarea, #shots input');
const editor = () => element.querySelector('.shots');
const list = () => element.querySelector('.shots ol');
const isOn = () => element.querySelector('.shots-switch input').checked;
const row = line => Object.fromEntries([...line.querySelectorAll('[name]')].map(one => [one.name, one.value.trim()]));
const write = () => {
  const text = isOn() ? JSON.stringify([...list().children].map(row)) : '';
  editor().dataset.on = isOn();
  const target = field();
  if (!target || target.value === text) return;
  target.value = text;
  target.dispatchEvent(new Event('input', {bubbles: true}));
};
const add = prompt => {
  const line = element.querySelector('.shots template').content.firstElementChild.cloneNode(true);
  if (prompt) line.querySelector('textarea').value = prompt;
  list().append(line);
  return line;
};
element.addEventListener('input', event => {
  if (event.target.closest('.shots-switch') && isOn() && !list().children.length) {
    add(document.querySelector('#prompt textarea')?.value);
    add();
  }
  write();
});
element.addEventListener('click', event => {
  const button = event.target.closest('[data-shot]'), line = button?.closest('li');
  if (!button) return;
  const what = button.dataset.shot;
  if (what === 'add') add().querySelector('textarea').focus();
  if (what === 'remove') line.remove();
  if (what === 'up') line.previousElementSibling?.before(line);
  if (what === 'down') line.nextElementSibling?.after(line);
  if (what === 'up' || what === 'down') button.focus();
  write();
});
