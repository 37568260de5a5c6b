// Keys for the whole page: Ctrl+Enter (or Cmd+Enter) generates, Escape stops. Buttons that are not shown do nothing.
document.addEventListener('keydown', event => {
  const wanted = event.key === 'Enter' && (event.ctrlKey || event.metaKey) ? '#generate'
    : event.key === 'Escape' ? '#stop' : null;
  const button = wanted && document.querySelector(wanted);
  if (!button || button.offsetParent === null || button.disabled) return;
  event.preventDefault();
  button.click();
});

// A picture that is pasted anywhere becomes the first frame, if that panel is open and still empty.
document.addEventListener('paste', event => {
  const picture = [...(event.clipboardData?.files ?? [])].find(file => file.type.startsWith('image/'));
  const input = document.querySelector('#input-image input[type="file"]');
  if (!picture || !input || input.closest('[role="tabpanel"]')?.offsetParent === null) return;
  const files = new DataTransfer();
  files.items.add(picture);
  input.files = files.files;
  input.dispatchEvent(new Event('change', {bubbles: true}));
});
