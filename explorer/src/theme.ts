// Light or dark: what the system prefers, until the reader says otherwise.

export type Theme = "light" | "dark";

export function startTheme(): Theme {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
