// The page's one script. It stands in the head, so that a chosen theme is there before the
// first paint; the rest waits for the document.

import './theme.js';

document.addEventListener('DOMContentLoaded', () => import('./app.js'));
