import type { ComponentChildren } from "preact";

/** The little Markdown that a cause's page uses. It makes elements, never HTML: text stays text. */
export function Markdown({ text }: { text: string }) {
  const blocks: ComponentChildren[] = [];
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; ) {
    const line = lines[i];
    if (!line.trim()) i++;
    else if (/^#+ /.test(line)) {
      blocks.push(<h4>{inline(line.replace(/^#+ /, ""))}</h4>);
      i++;
    } else if (line.startsWith("```")) {
      const end = lines.findIndex((l, at) => at > i && l.startsWith("```"));
      const stop = end < 0 ? lines.length : end;
      blocks.push(<pre>{lines.slice(i + 1, stop).join("\n")}</pre>);
      i = stop + 1;
    } else if (/^\s*[-*] /.test(line)) {
      const items: string[] = [];
      for (; i < lines.length && lines[i].trim() && !/^#+ /.test(lines[i]); i++) {
        if (/^\s*[-*] /.test(lines[i])) items.push(lines[i].replace(/^\s*[-*] /, ""));
        else items[items.length - 1] += ` ${lines[i].trim()}`;
      }
      blocks.push(<ul>{items.map((item) => <li>{inline(item)}</li>)}</ul>);
    } else {
      const words: string[] = [];
      for (; i < lines.length && lines[i].trim() && !/^(#+ |```|\s*[-*] )/.test(lines[i]); i++) words.push(lines[i].trim());
      blocks.push(<p>{inline(words.join(" "))}</p>);
    }
  }
  return <div class="markdown">{blocks}</div>;
}

export function inline(text: string): ComponentChildren[] {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (part.startsWith("`") && part.length > 2) return <code>{part.slice(1, -1)}</code>;
    if (part.startsWith("**") && part.length > 4) return <strong>{part.slice(2, -2)}</strong>;
    return part;
  });
}
