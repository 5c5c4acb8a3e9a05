import { useState } from "preact/hooks";
import { capital, number } from "./format";
import type { Cell, Comparison, Row } from "./types";

const SECTIONS: { key: "verdict" | "laws" | "settings" | "environment" | "curves"; title: string; onlyDifferent: boolean }[] = [
  { key: "verdict", title: "Verdict", onlyDifferent: false },
  { key: "laws", title: "Tests", onlyDifferent: false },
  { key: "settings", title: "Settings", onlyDifferent: true },
  { key: "environment", title: "Environment", onlyDifferent: true },
  { key: "curves", title: "Numbers", onlyDifferent: false },
];

// A model that differs is hundreds of rows: they come on request.
const PART = /^(module|parameter) (?!dtypes$)/;
const MOST_PARTS = 8;

/** What differs between two runs, section by section, and the change of the script between them. */
export function Differences({ found }: { found: Comparison }) {
  const [verdict, laws, ...rest] = SECTIONS;
  return (
    <div class="differences">
      <Section {...verdict} rows={found.verdict} />
      <Section {...laws} rows={found.laws} />
      <Code script={found.script} />
      {rest.map((section) => (
        <Section {...section} rows={found[section.key].filter((row) => !PART.test(row.name))} />
      ))}
      {found.settings.some((row) => PART.test(row.name)) && <Model rows={found.settings.filter((row) => PART.test(row.name))} />}
    </div>
  );
}

function Section({ title, rows, onlyDifferent }: { title: string; rows: Row[]; onlyDifferent: boolean }) {
  const [whole, setWhole] = useState(false);
  const shown = onlyDifferent && !whole ? rows.filter((row) => row.differs) : rows;
  const equal = rows.filter((row) => !row.differs).length;
  return (
    <section aria-label={title}>
      <h2>{title}</h2>
      {shown.length > 0 ? (
        <table class="sides">
          <thead>
            <tr>
              <th />
              <th>A</th>
              <th>B</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((row) => {
              const [a, b] = pair(row);
              return (
                <tr key={row.name} class={row.differs ? "differs" : ""}>
                  <th scope="row">
                    {row.name}
                    {row.note && <span class="plain">{row.note}</span>}
                  </th>
                  <td data-label="A">{a}</td>
                  <td data-label="B">{b}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      ) : (
        <p class="empty small">{rows.length ? `The same in all ${rows.length} that are known.` : "Not recorded."}</p>
      )}
      {onlyDifferent && equal > 0 && (shown.length > 0 || whole) && (
        <button type="button" class="link" aria-expanded={whole} onClick={() => setWhole(!whole)}>
          {whole ? "Show only what differs" : `Show the ${equal} that are the same`}
        </button>
      )}
    </section>
  );
}

function Model({ rows }: { rows: Row[] }) {
  const count = rows.filter((row) => row.differs).length;
  const [open, setOpen] = useState(count <= MOST_PARTS);
  if (open) return <Section title="Model" rows={rows} onlyDifferent />;
  return (
    <section aria-label="Model">
      <h2>Model</h2>
      <p class="empty small">
        {count} of {rows.length} modules and parameters differ.{" "}
        <button type="button" class="link" onClick={() => setOpen(true)}>
          Show them
        </button>
      </p>
    </section>
  );
}

function Code({ script }: { script: Comparison["script"] }) {
  return (
    <section aria-label="Code">
      <h2>Code</h2>
      {script.diff.length ? (
        <pre class="diff" tabIndex={0} aria-label="Difference of the scripts">
          {script.diff.map((line, i) => (
            <span key={i} class={kind(line)}>
              {line || " "}
              {"\n"}
            </span>
          ))}
        </pre>
      ) : (
        <p class="empty small">{capital(script.said)}.</p>
      )}
    </section>
  );
}

function kind(line: string): string {
  if (line.startsWith("+++") || line.startsWith("---") || line.startsWith("@@")) return "place";
  return line.startsWith("+") ? "added" : line.startsWith("-") ? "gone" : "";
}

/** Both cells in as few digits as show that they differ. */
function pair(row: Row): [string, string] {
  for (let digits = 4; digits < 17; digits++) {
    const [a, b] = [said(row.a, digits), said(row.b, digits)];
    if (a !== b || !row.differs) return [a, b];
  }
  return [String(row.a), String(row.b)];
}

function said(cell: Cell, digits: number): string {
  if (typeof cell === "boolean") return cell ? "yes" : "no";
  if (cell === "nan") return "NaN";
  if (typeof cell === "string") return cell.replaceAll("`", "");
  return typeof cell === "number" && !Number.isInteger(cell) && digits > 4 ? String(Number(cell.toPrecision(digits))) : number(cell);
}
