// Light or dark: as the system prefers until the user chooses; the choice is stored if the browser allows it.
{
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("cnfgnn-theme"); } catch { return null; } };
  let chosen = stored();
  const dark = () => (chosen ?? (system.matches ? "dark" : "light")) === "dark";
  const show = () => {
    root.dataset.theme = dark() ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) {
      button.hidden = false;
      button.textContent = dark() ? "Light" : "Dark";
    }
    document.dispatchEvent(new Event("themechange"));
  };
  show();
  system.addEventListener("change", show);
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      chosen = dark() ? "light" : "dark";
      try { localStorage.setItem("cnfgnn-theme", chosen); } catch { /* then it lasts until the page is closed */ }
      show();
    });
  });
}
