import { useEffect, useRef, useState } from "preact/hooks";
import { bytes, number } from "./format";
import type { Source } from "./source";
import type { Card, Contents } from "./types";

const NAMED = 6;

/** Says what would be gone, and asks. Escape and Cancel leave all as it is. */
export function DeleteDialog({ card, source, done }: { card: Card; source: Source; done(said: string | null): void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [found, setFound] = useState<Contents | null>(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    dialog.current?.showModal();
    source.contents(card.name).then(setFound, (problem) => setError(`${problem.message}.`));
  }, []);
  const remove = async () => {
    setBusy(true);
    try {
      await source.remove(card.name);
      done(`${card.name} was deleted.`);
    } catch (problem) {
      setError(`${(problem as Error).message}.`);
      setBusy(false);
    }
  };
  return (
    <dialog
      ref={dialog}
      aria-labelledby="delete-title"
      onCancel={(event) => {
        event.preventDefault();
        done(null);
      }}
    >
      <h2 id="delete-title">
        Delete <span class="name">{card.name}</span>?
      </h2>
      <p>
        {found ? `Its folder with ${number(found.files)} file${found.files === 1 ? "" : "s"} (${bytes(found.bytes)}) is removed from the disk` : "Its folder is removed from the disk"}
        . This cannot be undone.
      </p>
      {found && <p class="plain">{named(found.entries)}</p>}
      {card.state === "silent" && !error && <p class="error">It has not said that it ended. If its script still runs, what it records from now on is lost.</p>}
      {error && <p class="error" role="alert">{error}</p>}
      <p class="answers">
        <button type="button" autoFocus onClick={() => done(null)}>{error ? "Close" : "Cancel"}</button>
        <button type="button" class="danger" disabled={busy || !!error} onClick={remove}>Delete</button>
      </p>
    </dialog>
  );
}

function named(entries: string[]): string {
  // A log and an index beside a record say nothing to a reader.
  const plain = entries.filter((name) => !/-(wal|shm|journal)$/.test(name));
  const rest = plain.length - NAMED;
  return plain.slice(0, NAMED).join(", ") + (rest > 0 ? ` and ${rest} more` : "");
}
