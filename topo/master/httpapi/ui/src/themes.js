// The theme: the system's, or the one that was chosen.

const ORDER = ['system', 'light', 'dark'];
const NAMES = { system: 'as the system', light: 'light', dark: 'dark' };

const theme = () => document.documentElement.dataset.theme ?? 'system';

/** showTheme shows the theme on the button. */
export function showTheme(button) {
  button.dataset.theme = theme();
  button.title = `Theme: ${NAMES[theme()]} (t)`;
  button.setAttribute('aria-label', button.title);
}

/** nextTheme goes on: the system's, light, dark. */
export function nextTheme(button) {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  if (next === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === 'system') localStorage.removeItem('heddle-theme');
    else localStorage.setItem('heddle-theme', next);
  } catch {
    // It holds until the page is closed then.
  }
  showTheme(button);
}
