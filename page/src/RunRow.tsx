import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { DeleteDialog } from "./DeleteDialog";
import { ago, capital, steps } from "./format";
import { label } from "./Listing";
import { LossNow } from "./LossNow";
import type { Source } from "./source";
import type { Card } from "./types";

interface Props {
  card: Card;
  source: Source;
  /** The page was opened on this run alone: its folder is not ours to move. */
  alone: boolean;
  tick: (() => void) | null;
  ticked: boolean;
  changed(said: string): Promise<unknown>;
}

export function RunRow({ card, source, alone, tick, ticked, changed }: Props) {
  const [renaming, setRenaming] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const renameButton = useRef<HTMLButtonElement>(null);
  const deleteButton = useRef<HTMLButtonElement>(null);
  const why = card.state === "running" ? "A run that is still running stays as it is." : undefined;
  return (
    <li class="panel">
      {tick && <input type="checkbox" disabled={card.state === "corrupt"} checked={ticked} onChange={tick} aria-label={`Compare ${card.name}`} />}
      {renaming ? (
        <Rename
          card={card}
          source={source}
          done={(said) => {
            setRenaming(false);
            if (said) void changed(said);
            else requestAnimationFrame(() => renameButton.current?.focus());
          }}
        />
      ) : (
        <a href={`#/run/${encodeURIComponent(card.name)}`}>
          <span class="name">{card.name}</span>
          <span class="say">{say(card)}</span>
          <span class={`pill ${card.verdict ?? card.state}`}>{label(card)}</span>
          <Spark values={card.spark ?? []} />
          <span class="facts">
            {card.steps !== undefined && <span>{steps(card.steps)}</span>}
            {card.loss && <LossNow loss={card.loss} />}
            <span>{card.state === "running" ? <i class="dot" /> : null}{ago(card.written)}</span>
          </span>
        </a>
      )}
      {!alone && !renaming && (
        <span class="tools">
          <button type="button" class="quiet" ref={renameButton} disabled={card.state === "running"} title={why} onClick={() => setRenaming(true)} aria-label={`Rename ${card.name}`}>
            rename
          </button>
          <button type="button" class="quiet" ref={deleteButton} disabled={card.state === "running"} title={why} onClick={() => setDeleting(true)} aria-label={`Delete ${card.name}`}>
            delete
          </button>
        </span>
      )}
      {deleting && (
        <DeleteDialog
          card={card}
          source={source}
          done={(said) => {
            setDeleting(false);
            if (said) void changed(said);
            else requestAnimationFrame(() => deleteButton.current?.focus());
          }}
        />
      )}
    </li>
  );
}

/** The last part of a name can be changed: the run stays in its folder. */
function Rename({ card, source, done }: { card: Card; source: Source; done(said: string | null): void }) {
  const folder = card.name.slice(0, card.name.lastIndexOf("/") + 1);
  const [name, setName] = useState(card.name.slice(folder.length));
  const [error, setError] = useState("");
  const input = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => input.current?.select(), []);
  const save = async (event: Event) => {
    event.preventDefault();
    if (folder + name === card.name) return done(null);
    try {
      const { run } = await source.rename(card.name, name);
      done(`${card.name} is now called ${run}.`);
    } catch (problem) {
      setError(`${(problem as Error).message}.`);
      input.current?.focus();
    }
  };
  return (
    <form class="rename" onSubmit={save} onKeyDown={(e) => e.key === "Escape" && done(null)}>
      {folder && <span class="plain">{folder}</span>}
      <input ref={input} value={name} onInput={(e) => setName(e.currentTarget.value)} aria-label={`New name of ${card.name}`} aria-invalid={!!error} spellcheck={false} autocomplete="off" />
      <button type="submit">Rename</button>
      <button type="button" class="quiet" onClick={() => done(null)}>Cancel</button>
      {error && <p class="error" role="alert">{error}</p>}
    </form>
  );
}

function say(card: Card): string {
  if (card.error) return card.error;
  if (card.cause) return card.cause.replaceAll("`", "");
  if (card.verdict === "healthy") return "All tests that could be made pass.";
  if (card.reason) return capital(card.reason).replaceAll("`", "");
  if (card.state === "silent") return "Has written nothing for a while and has not said that it ended.";
  if (card.state === "failed") return "Ended with an error.";
  return "";
}

/** The course of the loss; a red mark at the top where it was not a number. */
export function Spark({ values }: { values: (number | null)[] }) {
  const finite = values.filter((v): v is number => v !== null);
  if (values.length < 2) return <svg class="spark" viewBox="0 0 96 28" aria-hidden="true" />;
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const x = (i: number) => ((i / (values.length - 1)) * 94 + 1).toFixed(1);
  let pen = "M";
  const path = values.map((v, i) => {
    if (v === null) {
      pen = "M";
      return "";
    }
    const move = `${pen}${x(i)} ${(26 - ((v - low) / (high - low || 1)) * 24).toFixed(1)}`;
    pen = "L";
    return move;
  });
  return (
    <svg class="spark" viewBox="0 0 96 28" aria-hidden="true">
      {values.map((v, i) => v === null && <rect key={i} class="bad" x={Number(x(i)) - 1} y="1" width="2.4" height="4" />)}
      <path d={path.join("")} />
    </svg>
  );
}
