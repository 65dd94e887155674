/** The kit's dark colours hang on `data-theme`; it follows the system's preference, also when that changes. */
export function followSystemTheme(): void {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  };
  dark.addEventListener("change", apply);
  apply();
}
