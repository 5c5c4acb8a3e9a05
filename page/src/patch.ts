/** The changed lines of a unified diff, each group below the number of its line in the script. */
export function changed(diff: string): { text: string; kind: "place" | "added" | "gone" }[] {
  const lines: { text: string; kind: "place" | "added" | "gone" }[] = [];
  let at = 0;
  let last = "";
  for (const line of diff.split("\n").slice(2)) {
    const place = /^@@ -(\d+)/.exec(line);
    const sign = line.charAt(0);
    if (place) at = Number(place[1]);
    else if (sign === "+" || sign === "-") {
      if (last !== "+" && last !== "-") lines.push({ text: `line ${at}`, kind: "place" });
      lines.push({ text: line, kind: sign === "+" ? "added" : "gone" });
    }
    last = sign;
    if (sign === " " || sign === "-") at++;
  }
  return lines;
}
