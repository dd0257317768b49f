// Before anything is painted: the language and the theme that were chosen here before, so that nothing flashes.
(() => {
  const root = document.documentElement;
  let kept = {};
  try {
    kept = { language: localStorage.getItem("augury.language"), theme: localStorage.getItem("augury.theme") };
  } catch {
    // A browser that keeps nothing still shows the page.
  }
  const wanted = kept.language ?? (navigator.language || "").slice(0, 2);
  root.lang = wanted === "zh" || wanted === "zh-CN" ? "zh-CN" : "en";
  if (kept.theme === "light" || kept.theme === "dark") root.dataset.theme = kept.theme;
})();
