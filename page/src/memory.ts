// What a reader chose, kept in the browser: a sandboxed frame (a notebook's) has no storage, and then it lasts as long as the page.

const LEAD = "traindoctor-";

export function recall<T>(key: string, otherwise: T): T {
  try {
    const stored = localStorage.getItem(LEAD + key);
    const value = stored === null ? otherwise : JSON.parse(stored);
    return typeof value === typeof otherwise ? value : otherwise;
  } catch {
    return otherwise;
  }
}

export function remember(key: string, value: unknown) {
  try {
    localStorage.setItem(LEAD + key, JSON.stringify(value));
  } catch {
    // Then it is not remembered.
  }
}
