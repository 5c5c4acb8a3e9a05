import type { Cause } from "./types";

/** The script's line that a cause names, with the two lines around it, as the record keeps them. */
export function SourceLines({ cause }: { cause: Cause }) {
  const lines = cause.source ?? [];
  if (!lines.length) return null;
  return (
    <figure class="source">
      <figcaption>{cause.line}</figcaption>
      <div class="code" tabIndex={0} role="region" aria-label={`Source around ${cause.line}`}>
        <table>
          <tbody>
            {lines.map((line) => (
              <tr key={line.number} class={line.meant ? "meant" : ""} aria-current={line.meant ? "true" : undefined}>
                <td class="number">{line.number}</td>
                <td>
                  <code>{line.text || " "}</code>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </figure>
  );
}
