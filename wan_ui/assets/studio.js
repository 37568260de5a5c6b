// Keys for the whole page: Ctrl+Enter (or Cmd+Enter) generates, Escape stops. Buttons that are not shown do nothing.
document.addEventListener('keydown', event => {
  const wanted = event.key === 'Enter' && (event.ctrlKey || event.metaKey) ? '#generate'
    : event.key === 'Escape' ? '#stop' : null;
  const button = wanted && document.querySelector(wanted);
  if (!button || button.offsetParent === null || button.disabled) return;
  event.preventDefault();
  button.click();
});
