// Runs before the first paint: the theme somebody chose, else the system's.
"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("farm-theme"); } catch { /* no storage: the system's theme */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  document.documentElement.classList.add("js");
})();
