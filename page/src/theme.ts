// Light or dark: the system's choice until the reader makes one.
import { useEffect, useState } from "preact/hooks";
import { recall, remember } from "./memory";

export type Theme = "light" | "dark";
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function stored(): Theme | null {
  const value = recall<string>("theme", "");
  return value === "light" || value === "dark" ? value : null;
}

export function useTheme(): [Theme, () => void] {
  const [chosen, choose] = useState<Theme | null>(stored);
  const [system, setSystem] = useState<Theme>(dark.matches ? "dark" : "light");
  useEffect(() => {
    const follow = () => setSystem(dark.matches ? "dark" : "light");
    dark.addEventListener("change", follow);
    return () => dark.removeEventListener("change", follow);
  }, []);
  const theme = chosen ?? system;
  document.documentElement.dataset.theme = theme;
  const toggle = () => {
    const next = theme === "dark" ? "light" : "dark";
    choose(next);
    remember("theme", next);
  };
  return [theme, toggle];
}

export const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
